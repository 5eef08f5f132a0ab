"""The ledger of a store: what happened to each video, in SQLite so that a kill loses nothing."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from clipset.data.file_state import FileState
from clipset.decoding.damage import describe_damage
from clipset.errors import StoreError

Status = Literal["pending", "done", "failed"]
Kind = Literal["random", "regular"]
KINDS: tuple[Kind, ...] = ("random", "regular")


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """One video: where its rows are if it is done, the reason if it failed.

    `frames_expected` is claimed by the file's header, `frames_found` were counted, and
    `frames_missing` of the `frames_needed` by clips did not decode and were replaced.
    `claimed_duration` is that of the file's timestamps, if it cannot be true. After a `transient`
    failure a retry may succeed. `file` is the state of the file that was read, and `video_end` the
    end that the catalog gives the video. `num_repairs` counts how often its rows were damaged.
    """

    ordinal: int
    id: str
    status: Status = "pending"
    reason: str | None = None
    random_first: int = 0
    random_count: int = 0
    regular_first: int = 0
    regular_count: int = 0
    duration: float = 0.0
    width: int = 0
    height: int = 0
    frames_expected: int | None = None
    frames_found: int | None = None
    frames_missing: int | None = None
    checksum: str | None = None
    seconds: float | None = None
    transient: bool = False
    file: FileState | None = None
    video_end: float | None = None
    frames_needed: int | None = None
    claimed_duration: float | None = None
    num_repairs: int = 0

    @property
    def fingerprint(self) -> str | None:
        """Identifies the rows for whatever is computed from them.

        Repaired rows count as others, even if they were restored to the same bytes: what was
        computed while they were damaged has to be computed again.
        """
        return f"{self.checksum}, repair {self.num_repairs}" if self.num_repairs else self.checksum

    @property
    def damage(self) -> str | None:
        """What is wrong with a video that could still be read; None if nothing is."""
        return describe_damage(
            frames_needed=self.frames_needed,
            frames_missing=self.frames_missing,
            frames_found=self.frames_found,
            frames_expected=self.frames_expected,
            duration=self.duration,
            claimed_duration=self.claimed_duration,
        )

    def rows(self) -> dict[Kind, tuple[int, int]]:
        """Where the rows of the video's clips are, by their kind: first row, number of rows."""
        return {
            "random": (self.random_first, self.random_count),
            "regular": (self.regular_first, self.regular_count),
        }

    def reset(self) -> LedgerEntry:
        """The same video as a pending one."""
        return LedgerEntry(ordinal=self.ordinal, id=self.id, num_repairs=self.num_repairs)

    def failed(self, reason: str, transient: bool, file: FileState | None) -> LedgerEntry:
        """The same video as one that failed and has no rows."""
        entry = replace(self.reset(), status="failed", reason=reason, transient=transient)
        return replace(entry, file=file, video_end=self.video_end)


_COLUMNS = tuple(field.name for field in fields(LedgerEntry))
_REPAIRS = "num_repairs INTEGER NOT NULL DEFAULT 0"  # a column that older ledgers do not have
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS videos (
    ordinal INTEGER PRIMARY KEY,
    id TEXT UNIQUE NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('pending', 'done', 'failed')),
    reason TEXT,
    random_first INTEGER NOT NULL, random_count INTEGER NOT NULL,
    regular_first INTEGER NOT NULL, regular_count INTEGER NOT NULL,
    duration REAL NOT NULL, width INTEGER NOT NULL, height INTEGER NOT NULL,
    frames_expected INTEGER, frames_found INTEGER, frames_missing INTEGER,
    checksum TEXT, seconds REAL,
    transient INTEGER NOT NULL, file TEXT, video_end REAL,
    frames_needed INTEGER, claimed_duration REAL, {_REPAIRS}
);
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""


class Ledger:
    """Reads and writes entries; every `write` is one transaction.

    A second table has facts about the store: the number of videos, so that a deleted row is
    noticed; the next ordinal, so that none is used twice; and the fingerprint of the manifest.
    """

    def __init__(self, path: Path, *, create: bool = False) -> None:
        if not create and not path.is_file():
            raise StoreError(f"{path.parent} is not a feature store (no {path.name})")
        self.path = path
        writable = os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
        open_mode = "rwc" if create else "rw" if writable else "ro"
        with self._errors():
            address = f"{path.absolute().as_uri()}?mode={open_mode}"
            self._connection = sqlite3.connect(address, uri=True, timeout=30.0)
        try:
            with self._errors():
                if create:
                    self._connection.executescript(_SCHEMA)
                self._has_repairs = self._check_columns()
                if create and not self._has_repairs:
                    self._connection.execute(f"ALTER TABLE videos ADD COLUMN {_REPAIRS}")
                    self._has_repairs = True
        except BaseException:
            self.close()
            raise

    def append(self, ids: Iterable[str]) -> None:
        """Add new videos as pending ones, behind the others."""
        ordinals = {entry.id: entry.ordinal for entry in self.entries()}
        new_ids = [id for id in ids if id not in ordinals]
        first = max([self._count("next_ordinal"), *(last + 1 for last in ordinals.values())])
        marks = ", ".join("?" * len(_COLUMNS))
        with self._connection:
            self._connection.executemany(
                f"INSERT INTO videos ({', '.join(_COLUMNS)}) VALUES ({marks})",
                [_to_row(LedgerEntry(ordinal=first + i, id=id)) for i, id in enumerate(new_ids)],
            )
            self._set_fact("next_ordinal", str(first + len(new_ids)))
            self._set_fact("videos", str(len(ordinals) + len(new_ids)))

    def write(self, entries: Sequence[LedgerEntry]) -> None:
        """Replace the entries of some videos, all or none."""
        settings = ", ".join(f"{column_name} = ?" for column_name in _COLUMNS)
        with self._connection:
            cursor = self._connection.executemany(
                f"UPDATE videos SET {settings} WHERE ordinal = ? AND id = ?",
                [(*_to_row(entry), entry.ordinal, entry.id) for entry in entries],
            )
            if entries and cursor.rowcount != len(entries):
                raise StoreError(
                    f"{self.path} lost videos while it was written; run the same command again"
                )

    @property
    def num_lost(self) -> int:
        """Number of videos whose rows were deleted by another program."""
        [[count]] = self._query("SELECT COUNT(*) FROM videos")
        return max(self._count("videos") - int(count), 0)

    def entries(self, *statuses: Status) -> Sequence[LedgerEntry]:
        """All entries, or those of some statuses, in the order of the catalog."""
        columns = _COLUMNS if self._has_repairs else (*_COLUMNS[:-1], "0")
        rows = self._query(f"SELECT {', '.join(columns)} FROM videos ORDER BY ordinal")
        entries = [_from_row(row) for row in rows]
        return [entry for entry in entries if not statuses or entry.status in statuses]

    @property
    def manifest(self) -> str:
        """The fingerprint of the store's manifest."""
        return self._fact("manifest")

    @manifest.setter
    def manifest(self, fingerprint: str) -> None:
        with self._connection:
            self._set_fact("manifest", fingerprint)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _fact(self, fact_name: str) -> str:
        rows = self._query("SELECT value FROM facts WHERE name = ?", fact_name)
        return str(rows[0][0]) if rows else ""

    def _set_fact(self, fact_name: str, value: str) -> None:
        self._connection.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", [fact_name, value])

    def _count(self, fact_name: str) -> int:
        value = self._fact(fact_name) or "0"
        if not value.isdecimal():
            raise StoreError(f"the ledger {self.path} is damaged: its {fact_name} is {value!r}")
        return int(value)

    def _check_columns(self) -> bool:
        """Refuse the ledger of another version or program; returns whether it counts repairs."""
        self._connection.execute("PRAGMA trusted_schema = OFF")
        columns = {row[1] for row in self._connection.execute("PRAGMA table_info(videos)")}
        if columns | {"num_repairs"} == set(_COLUMNS):
            return "num_repairs" in columns
        problem = "it has no table of videos"
        if columns:
            missing, unknown = sorted(set(_COLUMNS) - columns), sorted(columns - set(_COLUMNS))
            problem = f"no {', '.join(missing)}" if missing else f"also {', '.join(unknown)}"
            problem = f"its videos have {problem}"
        raise StoreError(
            f"the ledger {self.path} is of another version or program ({problem}); "
            f"use another folder and extract again"
        )

    def _query(self, sql: str, *values: object) -> list[Any]:
        with self._errors():
            return self._connection.execute(sql, values).fetchall()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn errors of SQLite into a StoreError of one line."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise StoreError(f"the ledger {self.path} cannot be used: {error}") from None


def _to_row(entry: LedgerEntry) -> list[object]:
    """An entry as SQLite stores it: the file's state is JSON."""
    file_state = None if entry.file is None else msgspec.json.encode(entry.file).decode()
    return [file_state if name == "file" else getattr(entry, name) for name in _COLUMNS]


def _from_row(row: tuple[object, ...]) -> LedgerEntry:
    """An entry from its row; values of the wrong type are refused."""
    row_values = dict(zip(_COLUMNS, row, strict=True))
    try:
        file = None if row_values["file"] is None else msgspec.json.decode(str(row_values["file"]))
        row_values |= {"file": file, "transient": bool(row_values["transient"])}
        return msgspec.convert(row_values, LedgerEntry)
    except msgspec.MsgspecError as error:
        raise StoreError(f"the ledger's row {row_values['ordinal']} is damaged: {error}") from None
