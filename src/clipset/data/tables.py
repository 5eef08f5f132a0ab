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

from clipset.config import check_depth, parse_json
from clipset.errors import CatalogError, ConfigError
from clipset.progress import log
from clipset.text import decode_western

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
DELIMITERS = (",", ";", "\t")
BYTE_ORDER_MARKS = (  # the longer ones first
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Named columns and rows; a row has no keys for its empty cells."""

    path: Path
    columns: tuple[str, ...]
    rows: list[dict[str, str]]

    def select(
        self, columns: Mapping[str, str], common_names: Mapping[str, Sequence[str]]
    ) -> list[dict[str, str]]:
        """The rows under our column names.

        `columns` maps our names to the table's. Other columns are matched by their common names,
        in any case.
        """
        for column in columns.values():
            if column not in self.columns:
                raise CatalogError(f"{self.path} has no column {column!r}; {self.columns_text}")
        matched = {key: self._match(names) for key, names in common_names.items()} | dict(columns)
        rows = [
            {key: row[name] for key, name in matched.items() if name is not None and name in row}
            for row in self.rows
        ]
        return self._decode(rows)

    def has_column(self, names: Sequence[str]) -> bool:
        """Whether there is a column with one of these names."""
        return self._match(names) is not None

    @property
    def columns_text(self) -> str:
        """The column names, for messages."""
        return f"its columns: {', '.join(self.columns) or 'none'}"

    def _decode(self, rows: list[dict[str, str]]) -> list[dict[str, str]]:
        """The rows as text; only paths keep bytes that are not UTF-8, as file names may."""
        examples: list[str] = []
        for line, row in enumerate(rows, start=2):
            for key in (key for key in row if key != "path"):
                if "\0" in row[key]:
                    raise CatalogError(
                        f"row {line} of {self.path} has a NUL character in its {key}; remove it"
                    )
                text = decode_western(row[key])
                examples += [text] if text != row[key] else []
                row[key] = text
        say_decoded(self.path, examples)
        return rows

    def _match(self, names: Sequence[str]) -> str | None:
        by_name = {column.lower(): column for column in reversed(self.columns)}
        return next((by_name[name] for name in names if name in by_name), None)


def read_table(path: Path) -> Table:
    """The table in a file; the suffix selects the format."""
    if path.suffix.lower() == ".jsonl":
        return _read_json_lines(path)
    if path.suffix.lower() == ".parquet":
        return _read_parquet(path)
    return _read_csv(path)


def read_text(path: Path) -> str:
    """The text of a file: UTF-8 with undecodable bytes escaped, or UTF-16/32 with a BOM."""
    try:
        content = path.read_bytes()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise CatalogError(f"cannot read {path}: {reason}") from None
    for mark, encoding in BYTE_ORDER_MARKS:
        if content.startswith(mark):
            try:
                return content.decode(encoding)
            except UnicodeDecodeError:
                raise CatalogError(
                    f"{path} starts like {encoding} but is not valid; save it as UTF-8"
                ) from None
    return content.decode("utf-8-sig", errors="surrogateescape")


def say_decoded(path: Path, examples: Sequence[str]) -> None:
    """Print how many values of a table were not UTF-8."""
    if examples:
        log(
            f"{path}: read {len(examples)} values that are not UTF-8 as Windows-1252, "
            f"such as {examples[0]!r}"
        )


def read_json(path: Path) -> Any:
    """The content of a JSON file."""
    return _decode_json(read_text(path), f"{path}")


def _decode_json(text: str, source: str) -> Any:
    try:
        return parse_json(text, source)
    except ConfigError as error:
        raise CatalogError(str(error)) from None
    except UnicodeEncodeError:  # bytes that are not UTF-8, which msgspec refuses
        pass
    try:
        return check_depth(json.loads(text), source)
    except (ValueError, RecursionError, ConfigError) as error:
        raise CatalogError(f"{source} is not valid JSON: {error}") from None


def _read_csv(path: Path) -> Table:
    text = read_text(path)
    delimiter = max(DELIMITERS, key=text.split("\n", 1)[0].count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        lines = [line for line in reader if line]
    except csv.Error as error:
        raise CatalogError(f"{path} is not a valid table: {error}") from None
    if not lines:
        raise CatalogError(f"{path} is empty; its first line must name the columns")
    columns = tuple(decode_western(column.strip()) for column in lines[0])
    if any("\0" in column for column in columns):
        raise CatalogError(f"the header of {path} has NUL characters; save the table as UTF-8 text")
    for row_number, line in enumerate(lines[1:], start=2):
        if len(line) != len(columns):
            raise CatalogError(
                f"row {row_number} of {path} has {len(line)} fields; the header has {len(columns)}"
            )
    rows = [_drop_empty(zip(columns, line, strict=True)) for line in lines[1:]]
    return Table(path=path, columns=columns, rows=rows)


def _read_json_lines(path: Path) -> Table:
    rows = []
    for line_number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        row = _decode_json(line, f"line {line_number} of {path}")
        if not isinstance(row, dict):
            raise CatalogError(f"line {line_number} of {path} is not a JSON object")
        rows.append(_drop_empty(row.items()))
    return Table(path=path, columns=_columns_of(rows), rows=rows)


def _read_parquet(path: Path) -> Table:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise CatalogError(
            f"reading {path} needs pyarrow; run `pip install 'clipset[tables]'`"
        ) from None
    try:
        rows = [_drop_empty(row.items()) for row in parquet.read_table(path).to_pylist()]
    except (ArrowException, OSError) as error:
        first_line = str(error).split("\n", 1)[0]
        raise CatalogError(f"{path} is not a readable parquet file: {first_line}") from None
    return Table(path=path, columns=_columns_of(rows), rows=rows)


def _columns_of(rows: list[dict[str, str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(column for row in rows for column in row))


def _drop_empty(fields: Iterable[tuple[str, Any]]) -> dict[str, str]:
    return {key: _to_text(value) for key, value in fields if value is not None and value != ""}


def _to_text(value: Any) -> str:
    """A value as text; 3.0 becomes `3`, as pandas turns integers with missing values to floats."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="surrogateescape")
    return str(value)
