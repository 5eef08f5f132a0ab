"""Tables of text (csv, tsv, jsonl, parquet) with named columns."""

from __future__ import annotations

import codecs
import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clipset.config import check_depth, parse_json
from clipset.errors import CatalogError, ConfigError
from clipset.progress import log
from clipset.text import decode_western, deneutralise, escape_undecodable, text_path

MAX_OTHER_TEXT = 1000  # characters of a cell in a column without a meaning for clipset
SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
DELIMITERS = (",", ";", "\t")
Records = dict[int, dict[str, Any]]
"""The rows of a table by their line numbers."""
BYTE_ORDER_MARKS = (  # the longer ones first
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def read_table(
    table_path: Path,
    common_names: Mapping[str, Sequence[str]],
    *,
    required: str,
    columns: Mapping[str, str] | None = None,
) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """The rows of a table under our column names, and the rows of all other columns of text.

    A row has no keys for its empty cells. `columns` maps our names to the table's. Others are
    matched by their common names, in any case. The column `required` must exist.
    """
    header, records = _read_records(table_path)
    available = f"its columns: {', '.join(header) or 'none'}"
    for column in (columns or {}).values():
        if column not in header:
            raise CatalogError(f"{table_path} has no column {column!r}; {available}")
    by_lower_name = {column.lower(): column for column in reversed(header)}
    matched = {
        key: next(by_lower_name[name] for name in names if name in by_lower_name)
        for key, names in common_names.items()
        if any(name in by_lower_name for name in names)
    } | dict(columns or {})
    if required not in matched:
        raise CatalogError(f"{table_path} needs a column {required!r}; {available}")
    for column in matched.values():
        if header.count(column) > 1:
            raise CatalogError(f"{table_path} has several columns {column!r}; remove all but one")
        _refuse_nested(records, column, table_path)
    rows = []
    for record in records.values():
        cells = {key: record.get(column) for key, column in matched.items()}
        rows.append({key: _to_text(cell) for key, cell in cells.items() if cell not in (None, "")})
    for key in matched:
        _decode_column(rows, key, table_path)
    names = [name for name in header if name not in matched.values()]
    other_names = [name for name in names if name.lower() not in common_names]
    return rows, _read_others(list(records.values()), other_names)


def _refuse_nested(records: Records, column: str, table_path: Path) -> None:
    """Refuse a list or an object in a column of single values."""
    for line_number, record in records.items():
        value = record.get(column)
        if isinstance(value, list | dict):
            line = f"line {line_number} of {table_path}"
            kind = "a list" if isinstance(value, list) else "an object"
            raise CatalogError(f"{column!r} in {line} must be a single value, got {kind}")


def _read_others(records: list[dict[str, Any]], column_names: list[str]) -> list[dict[str, str]]:
    """The cells of columns that hold short texts, numbers or truth values only."""
    columns = {name: [record.get(name) for record in records] for name in column_names}
    text_columns = [
        name
        for name, cells in columns.items()
        if name and not set(name) & set(",;\t\r\n")
        if all(isinstance(cell, str | int | float | None) for cell in cells)
        if max((len(str(cell)) for cell in cells), default=0) <= MAX_OTHER_TEXT
    ]
    rows: list[dict[str, str]] = [{} for _ in records]
    for name in text_columns:
        for row, cell in zip(rows, columns[name], strict=True):
            if cell not in (None, ""):
                text = escape_undecodable(decode_western(_to_text(cell)))
                row[escape_undecodable(deneutralise(name))] = deneutralise(text)
    return rows


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


def decode_json(text: str, source: str) -> Any:
    """The value in a JSON text, which may have bytes that are not UTF-8."""
    try:
        try:
            return parse_json(text, source)
        except UnicodeEncodeError:  # bytes that are not UTF-8, which msgspec refuses
            return check_depth(json.loads(text), source)
    except ConfigError as error:
        raise CatalogError(str(error)) from None
    except (ValueError, RecursionError) as error:
        raise CatalogError(f"{source} is not valid JSON: {error}") from None


def _read_records(table_path: Path) -> tuple[list[str], Records]:
    """The columns and the rows of a table; the suffix selects the format."""
    suffix = table_path.suffix.lower()
    if suffix not in (".jsonl", ".parquet"):
        return _read_csv(table_path)
    records = _read_parquet(table_path) if suffix == ".parquet" else _read_json_lines(table_path)
    return list(dict.fromkeys(column for record in records.values() for column in record)), records


def _read_csv(path: Path) -> tuple[list[str], Records]:
    text = read_text(path)
    delimiter = max(DELIMITERS, key=text.split("\n", 1)[0].count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        lines = [line for line in reader if line]
    except csv.Error as error:
        raise CatalogError(f"{path} is not a valid table: {error}") from None
    if not lines:
        raise CatalogError(f"{path} is empty; its first line must name the columns")
    header = [decode_western(column.strip()) for column in lines[0]]
    if any("\0" in column for column in header):
        raise CatalogError(f"the header of {path} has NUL characters; save the table as UTF-8 text")
    for row_number, line in enumerate(lines[1:], start=2):
        if len(line) != len(header):
            raise CatalogError(
                f"row {row_number} of {path} has {len(line)} fields; the header has {len(header)}"
            )
    rows = (dict(zip(header, line, strict=True)) for line in lines[1:])
    return header, dict(enumerate(rows, start=2))


def _read_json_lines(table_path: Path) -> Records:
    records = {}
    for line_number, line in enumerate(read_text(table_path).split("\n"), start=1):
        if line.strip():
            record = decode_json(line, f"line {line_number} of {table_path}")
            if not isinstance(record, dict):
                raise CatalogError(f"line {line_number} of {table_path} is not a JSON object")
            records[line_number] = record
    return records


def _read_parquet(table_path: Path) -> Records:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise CatalogError(
            f"reading {table_path} needs pyarrow; run `pip install 'clipset[tables]'`"
        ) from None
    try:
        records: list[dict[str, Any]] = parquet.read_table(table_path).to_pylist()
    except (ArrowException, OSError) as error:
        first_line = str(error).split("\n", 1)[0]
        raise CatalogError(f"{table_path} is not a readable parquet file: {first_line}") from None
    return dict(enumerate(records, start=1))


def _to_text(value: Any) -> str:
    """A value as text; 3.0 becomes `3`, as pandas turns integers with missing values to floats."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="surrogateescape")
    return str(value)


def _decode_column(rows: list[dict[str, str]], column: str, table: Path) -> None:
    """Read values that are not UTF-8 as Windows-1252; a path only if just that file exists."""

    def exists(path: str) -> bool:
        return os.path.isfile(table.parent / text_path(path))  # noqa: PTH113 (never raises)

    examples = []
    for line_number, row in enumerate(rows, start=2):
        raw_text = row.get(column, "")
        if column != "path" and "\0" in raw_text:
            raise CatalogError(
                f"row {line_number} of {table} has a NUL character in its {column}; remove it"
            )
        text = decode_western(raw_text)
        if text != raw_text and (column != "path" or (exists(text) and not exists(raw_text))):
            row[column] = text
            examples.append(text)
    if examples:
        log(
            f"{table}: read {len(examples)} values that are not UTF-8 as Windows-1252, "
            f"such as {examples[0]!r}"
        )
