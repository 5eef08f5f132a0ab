"""TableFile: the finished cells of a table, in one JSON file from which all else is written."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from clipset.config import build, read_json, to_mapping
from clipset.errors import RunError
from clipset.evaluation.results import ProbeResult
from clipset.files import write_json
from clipset.process.locks import is_empty
from clipset.reproduce.paper import PaperTable

FORMAT = 1
TABLE_FILE = "table.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A cost instead of a score: memory in GiB, speed, a number of videos."""

    value: float
    kind: Literal["measured", "predicted"] = "measured"
    limit: float | None = None
    """more than this is out of memory"""

    @property
    def text(self) -> str:
        """The number as it stands in the table; ≈ before a prediction."""
        if self.limit is not None and self.value > self.limit:
            return "OOM"
        digits = 2 if self.value < 100 and self.value % 1 else 0
        return f"{'≈ ' if self.kind == 'predicted' else ''}{self.value:,.{digits}f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One result, or the reason of a failure; of one official split if the data has several."""

    row: str
    column: str
    task: str = ""
    tasks: tuple[str, ...] = ()
    """all tasks that the score is a mean over; empty for a single task"""
    status: Literal["done", "failed"]
    fingerprint: str
    """of everything that the score depends on"""
    reason: str = ""
    result: ProbeResult | None = None
    measurement: Measurement | None = None
    recipe: str = ""
    """key of one of the file's recipes"""
    environment: str = ""
    """key of one of the file's environments: versions, commit, machine"""
    seed: int = 0
    date: str = ""
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.task not in (self.tasks or ("",)):
            raise ValueError(f"{self.label}: the task is not one of {', '.join(self.tasks)}")
        if (self.status == "done") != (self.result is not None or self.measurement is not None):
            raise ValueError(f"{self.label}: a finished cell has a result, a failed one has none")

    @property
    def label(self) -> str:
        """Row, column and task."""
        return " · ".join(filter(None, (self.row, self.column, self.task)))


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
    """backbones without weights, and where to get them"""
    notes: list[str] = field(default_factory=list)
    """how costs were measured"""
    recipes: dict[str, dict[str, Any]] = field(default_factory=dict)
    environments: dict[str, dict[str, str]] = field(default_factory=dict)

    def find(self, row: str, column: str) -> list[Cell]:
        """The cells of a row and column, one for each task."""
        return [cell for cell in self.cells if (cell.row, cell.column) == (row, column)]

    def is_done(self, row: str, column: str, task: str, fingerprint: str) -> bool:
        """Whether this very cell is finished."""
        return any(
            (cell.task, cell.fingerprint, cell.status) == (task, fingerprint, "done")
            for cell in self.find(row, column)
        )

    def put(self, cell: Cell) -> None:
        """Add a cell; replaces an older one, and those of another selection of tasks."""
        old_cells = [
            other
            for other in self.find(cell.row, cell.column)
            if other.task == cell.task or other.tasks != cell.tasks
        ]
        self.cells = [other for other in self.cells if other not in old_cells] + [cell]
        if cell.row not in self.rows:  # rows and columns that the paper does not have come last
            self.rows.append(cell.row)
        if cell.column not in self.columns:
            self.columns.append(cell.column)


def write_table(table: TableFile, folder: Path) -> None:
    """Write `table.json` atomically."""
    write_json(folder / TABLE_FILE, to_mapping(table))


def read_table_file(folder: Path) -> TableFile:
    """The table in a folder."""
    table_path = folder / TABLE_FILE
    if not table_path.is_file():
        raise RunError(f"{folder} has no {TABLE_FILE}; `clipset reproduce TABLE --out` writes one")
    content = read_json(table_path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise RunError(f"{table_path} is not of format {FORMAT}; another clipset wrote it")
    return build(TableFile, content, str(table_path))


def open_table(folder: Path, paper: PaperTable) -> TableFile:
    """Resume a table in its folder, or start it in an empty one with the paper's numbers alone."""
    if (folder / TABLE_FILE).is_file():
        table = read_table_file(folder)
        if table.table != paper.name:
            raise RunError(
                f"{folder} holds the table {table.table}, not {paper.name}; use another folder"
            )
        return table
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not is_empty(folder):
            raise RunError(f"{folder} is not empty and has no {TABLE_FILE}; use another folder")
    except OSError as error:
        raise RunError(f"cannot write to {folder}: {error.strerror}") from None
    return empty_table(paper)


def empty_table(paper: PaperTable) -> TableFile:
    """A table with the paper's numbers alone."""
    return TableFile(
        table=paper.name,
        number=paper.number,
        title=paper.title,
        columns=list(paper.columns),
        rows=list(paper.rows),
        quoted=list(paper.quoted),
        paper=[(row, column, text) for (row, column), text in paper.cells.items()],
    )
