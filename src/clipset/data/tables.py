"""Tables of text (csv, tsv, jsonl, parquet) with named columns."""

from __future__ import annotations

import codecs
import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clipset.config import parse_json, refuse_deep
from clipset.errors import CatalogError, ConfigError
from clipset.progress import say
from clipset.text import decode_western

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
DELIMITERS = (",", ";", "\t")
UTF_MARKS = (  # the longer marks first
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


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
        rows = [
            {ours: row[name] for ours, name in found.items() if name is not None and name in row}
            for row in self.rows
        ]
        return self._decoded(rows)

    def has(self, names: Sequence[str]) -> bool:
        """Whether one of the columns has one of these names."""
        return self._find(names) is not None

    @property
    def found(self) -> str:
        """Which columns there are, in words."""
        return f"it has the columns: {', '.join(self.columns) or 'none'}"

    def _decoded(self, rows: list[dict[str, str]]) -> list[dict[str, str]]:
        """The rows as text; only paths keep bytes that are not UTF-8, as files have such names."""
        examples: list[str] = []
        for number, row in enumerate(rows, start=2):
            for name in (name for name in row if name != "path"):
                if "\0" in row[name]:
                    raise CatalogError(
                        f"row {number} of {self.path} has a NUL character in its {name}; remove it"
                    )
                text = decode_western(row[name])
                examples += [text] if text != row[name] else []
                row[name] = text
        say_decoded(self.path, examples)
        return rows

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
    """The text of a file, line ends and bytes that are no UTF-8 kept; UTF-16 by its first bytes."""
    try:
        content = path.read_bytes()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise CatalogError(f"cannot read {path}: {reason}") from None
    for mark, encoding in UTF_MARKS:
        if content.startswith(mark):
            try:
                return content.decode(encoding)
            except UnicodeDecodeError:
                what = f"{path} begins as {encoding} but is not; save it as UTF-8"
                raise CatalogError(what) from None
    return content.decode("utf-8-sig", errors="surrogateescape")


def say_decoded(path: Path, examples: Sequence[str]) -> None:
    """Say that some values of a table were not UTF-8, and how they were read."""
    if examples:
        say(
            f"{path}: {len(examples)} values are not UTF-8 and were read as Windows-1252, "
            f"such as {examples[0]!r}"
        )


def read_json(path: Path) -> Any:
    """The content of a JSON file."""
    return _decode_json(read_text(path), f"{path}")


def _decode_json(text: str, where: str) -> Any:
    try:
        return parse_json(text, where)
    except ConfigError as error:
        raise CatalogError(str(error)) from None
    except UnicodeEncodeError:  # bytes that are not UTF-8, which msgspec does not take
        pass
    try:
        return refuse_deep(json.loads(text), where)
    except (ValueError, RecursionError, ConfigError) as error:
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
    columns = tuple(decode_western(column.strip()) for column in lines[0])
    if any("\0" in column for column in columns):
        raise CatalogError(f"the header of {path} has NUL characters; save the table as UTF-8 text")
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
    return {key: _text(value) for key, value in fields if value is not None and value != ""}


def _text(value: Any) -> str:
    """A value as text; pandas makes 3.0 of 3 where a column lacks values, so both are `3`."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="surrogateescape")
    return str(value)
