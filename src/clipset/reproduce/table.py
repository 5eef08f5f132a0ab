"""TableFile: what was run for a table so far, in one JSON file from which all else is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from clipset.config import build, read_json, to_mapping, write_json
from clipset.errors import ReportError, RunError
from clipset.locks import is_empty
from clipset.report.records import read_record

FORMAT = 1
FILE = "table.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One score, or why there is none; of one official split where the data has several."""

    row: str
    column: str
    part: str = ""
    parts: tuple[str, ...] = ()
    """all parts that the place in the table is the mean of; none if it is of one"""
    status: Literal["done", "failed"]
    mark: str
    """changes when anything changes that the score depends on"""
    reason: str = ""
    record: dict[str, Any] = field(default_factory=dict)
    """what the probe said: score, interval, seeds, selected_on, …"""
    recipe: str = ""
    """which of the file's recipes"""
    environment: str = ""
    """which of the file's environments: versions, commit, machine"""
    seed: int = 0
    date: str = ""
    seconds: float = 0.0


@dataclass(slots=True, kw_only=True)
class TableFile:
    """A table with the paper's numbers and ours; grows by one cell at a time."""

    format: int = FORMAT
    table: str
    number: int
    title: str
    data: str = ""
    columns: list[str]
    rows: list[str]
    quoted: list[str]
    paper: list[tuple[str, str, str]]
    cells: list[Cell] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    """backbones that are not here, and where to get them"""
    recipes: dict[str, dict[str, Any]] = field(default_factory=dict)
    environments: dict[str, dict[str, str]] = field(default_factory=dict)

    def find(self, row: str, column: str) -> list[Cell]:
        """The cells of a place in the table, one for each part."""
        return [cell for cell in self.cells if (cell.row, cell.column) == (row, column)]

    def is_done(self, row: str, column: str, part: str, mark: str) -> bool:
        """Whether this very cell is finished."""
        return any(
            (cell.part, cell.mark, cell.status) == (part, mark, "done")
            for cell in self.find(row, column)
        )

    def put(self, cell: Cell) -> None:
        """Take in a cell, in place of an older one and of those of another choice of parts."""
        old = [
            each
            for each in self.find(cell.row, cell.column)
            if each.part == cell.part or each.parts != cell.parts
        ]
        self.cells = [each for each in self.cells if each not in old] + [cell]
        self.add_lines([cell.row], [cell.column])

    def add_lines(self, rows: Sequence[str], columns: Sequence[str]) -> None:
        """Rows and columns that the paper does not have come last."""
        self.rows += [row for row in rows if row not in self.rows]
        self.columns += [column for column in columns if column not in self.columns]


def write_table(table: TableFile, folder: Path) -> None:
    """Write `table.json`, whole or not at all."""
    write_json(folder / FILE, to_mapping(table))


def read_table_file(folder: Path) -> TableFile:
    """The table in a folder."""
    path = folder / FILE
    if not path.is_file():
        raise RunError(f"{folder} holds no {FILE}; `clipset reproduce TABLE --out` writes one")
    content = read_json(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise RunError(f"{path} is not of format {FORMAT}; another clipset wrote it")
    table = build(TableFile, content, str(path))
    for cell in table.cells:
        _check_cell(cell, path)
    return table


def _check_cell(cell: Cell, path: Path) -> None:
    """Refuse a cell whose score cannot be shown."""
    where = f"the cell {cell.row} · {cell.column} of {path}"
    if cell.part not in (cell.parts or ("",)):
        raise RunError(f"{where} is of the part {cell.part!r}, not of {', '.join(cell.parts)}")
    if cell.status == "done":
        try:
            record = read_record(cell.record)
        except ReportError as error:
            raise RunError(f"{where}: {error}") from None
        if not isinstance(record.seeds, tuple):
            raise RunError(f"{where} does not list its seeds")


def claim(folder: Path, new: TableFile) -> TableFile:
    """Go on with the same table in a folder, or begin it in an empty one."""
    if (folder / FILE).is_file():
        found = read_table_file(folder)
        if found.table != new.table:
            raise RunError(f"{folder} holds the table {found.table}, not {new.table}; use another")
        return found
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not is_empty(folder):
            raise RunError(f"{folder} holds something that is no table; use another folder")
    except OSError as error:
        raise RunError(f"cannot write to {folder}: {error.strerror}") from None
    return new
