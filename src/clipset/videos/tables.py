"""Tables of text (csv, tsv, jsonl, parquet) with named columns."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clipset.config import parse_json
from clipset.errors import CatalogError, ConfigError

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
DELIMITERS = (",", ";", "\t")


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Named columns and rows; what is empty in a row is left out of it."""

    path: Path
    columns: tuple[str, ...]
    rows: list[dict[str, str]]

    def renamed(
        self, columns: Mapping[str, str], usual: Mapping[str, Sequence[str]]
    ) -> list[dict[str, str]]:
        """The rows under our column names.

        `columns` says which of the table's columns holds what; the others are found by their usual
        names, whatever their case.
        """
        for column in columns.values():
            if column not in self.columns:
                raise CatalogError(f"{self.path} has no column {column!r}; {self.found}")
        found = {ours: self._find(names) for ours, names in usual.items()} | dict(columns)
        return [
            {ours: row[name] for ours, name in found.items() if name is not None and name in row}
            for row in self.rows
        ]

    def has(self, names: Sequence[str]) -> bool:
        """Whether one of the columns has one of these names."""
        return self._find(names) is not None

    @property
    def found(self) -> str:
        """Which columns there are, in words."""
        return f"it has the columns: {', '.join(self.columns) or 'none'}"

    def _find(self, names: Sequence[str]) -> str | None:
        by_name = {column.lower(): column for column in reversed(self.columns)}
        return next((by_name[name] for name in names if name in by_name), None)


def read_table(path: Path) -> Table:
    """The table in a file, read as its suffix says."""
    if path.suffix.lower() == ".jsonl":
        return _read_json_lines(path)
    if path.suffix.lower() == ".parquet":
        return _read_parquet(path)
    return _read_csv(path)


def read_text(path: Path) -> str:
    """The text of a file, line ends and bytes that are no UTF-8 kept."""
    try:
        return path.read_bytes().decode("utf-8-sig", errors="surrogateescape")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise CatalogError(f"cannot read {path}: {reason}") from None


def read_json(path: Path) -> Any:
    """The content of a JSON file."""
    return _decode_json(read_text(path), f"{path}")


def _decode_json(text: str, where: str) -> Any:
    try:
        return parse_json(text, where)
    except ConfigError as error:
        raise CatalogError(str(error)) from None
    except UnicodeEncodeError as error:
        raise CatalogError(f"{where} is not valid JSON: {error}") from None


def _read_csv(path: Path) -> Table:
    text = read_text(path)
    delimiter = max(DELIMITERS, key=text.split("\n", 1)[0].count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        lines = [line for line in reader if line]
    except csv.Error as error:
        raise CatalogError(f"{path} is not a valid table: {error}") from None
    if not lines:
        raise CatalogError(f"the table {path} is empty; its first line must name the columns")
    columns = tuple(column.strip() for column in lines[0])
    for number, line in enumerate(lines[1:], start=2):
        if len(line) != len(columns):
            raise CatalogError(
                f"row {number} of {path} has {len(line)} fields; the header names {len(columns)}"
            )
    rows = [_filled(zip(columns, line, strict=True)) for line in lines[1:]]
    return Table(path=path, columns=columns, rows=rows)


def _read_json_lines(path: Path) -> Table:
    rows = []
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        row = _decode_json(line, f"line {number} of {path}")
        if not isinstance(row, dict):
            raise CatalogError(f"line {number} of {path} is not a JSON object")
        rows.append(_filled(row.items()))
    return Table(path=path, columns=_columns_of(rows), rows=rows)


def _read_parquet(path: Path) -> Table:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise CatalogError(
            f"reading {path} needs pyarrow; run `pip install 'clipset[tables]'`"
        ) from None
    try:
        rows = [_filled(row.items()) for row in parquet.read_table(path).to_pylist()]
    except (ArrowException, OSError) as error:
        first_line = str(error).split("\n", 1)[0]
        raise CatalogError(f"{path} is not a readable parquet file: {first_line}") from None
    return Table(path=path, columns=_columns_of(rows), rows=rows)


def _columns_of(rows: list[dict[str, str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(column for row in rows for column in row))


def _filled(fields: Iterable[tuple[str, Any]]) -> dict[str, str]:
    return {key: str(value) for key, value in fields if value is not None and value != ""}
