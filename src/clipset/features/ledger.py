"""The ledger of a store: what happened to each video, in SQLite so that a kill loses nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Literal

from clipset.errors import StoreError
from clipset.videos.damage import describe_damage

Status = Literal["pending", "done", "failed"]
Kind = Literal["random", "regular"]
KINDS: tuple[Kind, ...] = ("random", "regular")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One video: where its rows are if it is done, why there are none if it failed.

    `frames_expected` is what the file's header claims, `frames_found` what is really in it, and
    `frames_missing` how many of the `frames_needed` by clips did not decode and were replaced.
    `claimed_duration` is what the file's timestamps say, if that cannot be true.
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
    frames_needed: int | None = None
    claimed_duration: float | None = None

    @property
    def damage(self) -> str | None:
        """What is wrong with a video that was kept; None if there is nothing to say."""
        return describe_damage(
            frames_needed=self.frames_needed,
            frames_missing=self.frames_missing,
            frames_found=self.frames_found,
            frames_expected=self.frames_expected,
            duration=self.duration,
            claimed_duration=self.claimed_duration,
        )

    def rows(self) -> tuple[tuple[Kind, int, int], ...]:
        """Where the video's clips are: kind, first row, count."""
        return (
            ("random", self.random_first, self.random_count),
            ("regular", self.regular_first, self.regular_count),
        )


_COLUMNS = tuple(field.name for field in fields(Entry))
_SCHEMA = """
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
    frames_needed INTEGER, claimed_duration REAL
)"""


class Ledger:
    """Reads and writes entries; every `write` is one transaction."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        if not create and not path.is_file():
            raise StoreError(f"{path.parent} is no feature store (no {path.name})")
        self.path = path
        with self._reading():
            self._connection = sqlite3.connect(path, timeout=30.0)
        try:
            with self._reading():
                if create:
                    self._connection.execute(_SCHEMA)
                self._check_columns()
        except BaseException:
            self._connection.close()
            raise

    def append(self, ids: Iterable[str]) -> None:
        """Add videos that are not there yet, as pending, behind those that are."""
        known = {entry.id for entry in self.entries()}
        start = len(known)
        new = [id for id in ids if id not in known]
        self.write(Entry(ordinal=start + place, id=id) for place, id in enumerate(new))

    def write(self, entries: Iterable[Entry]) -> None:
        """Insert or replace entries, all or none."""
        marks = ", ".join("?" * len(_COLUMNS))
        with self._connection:
            self._connection.executemany(
                f"INSERT OR REPLACE INTO videos ({', '.join(_COLUMNS)}) VALUES ({marks})",
                [astuple(entry) for entry in entries],
            )

    def entries(self, *statuses: Status) -> Sequence[Entry]:
        """All entries, or those of some statuses, in the order of the catalog."""
        with self._reading():
            rows = self._connection.execute(
                f"SELECT {', '.join(_COLUMNS)} FROM videos ORDER BY ordinal"
            ).fetchall()
        entries = [Entry(**dict(zip(_COLUMNS, row, strict=True))) for row in rows]
        return [entry for entry in entries if not statuses or entry.status in statuses]

    def _check_columns(self) -> None:
        """Refuse the ledger of another version, or of another program."""
        found = {row[1] for row in self._connection.execute("PRAGMA table_info(videos)")}
        if found == set(_COLUMNS):
            return
        missing, unknown = sorted(set(_COLUMNS) - found), sorted(found - set(_COLUMNS))
        odd = f"no {', '.join(missing)}" if missing else f"also {', '.join(unknown)}"
        what = f"its videos have {odd}" if found else "it has no table of videos"
        raise StoreError(
            f"the ledger {self.path} is of another version or program ({what}); "
            f"use another folder and extract again"
        )

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Say in one line what SQLite has against the file."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise StoreError(f"the ledger {self.path} cannot be used: {error}") from None

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()
