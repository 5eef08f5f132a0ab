"""StoreWriter: commits videos in the order of the catalog, in whatever order they get ready."""

from __future__ import annotations

import platform
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clipset.config import to_mapping, write_json
from clipset.data.catalog import Catalog, Video, write_catalog
from clipset.data.file_state import read_file_state
from clipset.errors import StoreError
from clipset.features.arrays import GrowingArray
from clipset.features.encode import ClipRows, Seen
from clipset.features.file_changes import compare_files
from clipset.features.ledger import KINDS, Entry, Kind, Ledger
from clipset.features.store import Manifest, checksum_of, count_rows, read_manifest
from clipset.locks import exclusive, is_empty
from clipset.progress import say

Part = tuple[Kind, str, int, NDArray[Any]]

COMMIT_SECONDS = 1.0  # finished videos wait at most this long for their transaction


class StoreWriter:
    """A store opened for writing, by one process at a time. What is committed stays as it is.

    `sources` are the files that rows are read from, by the ids of their videos. Rows of a file that
    has other content by now are dropped and made again; None compares no files. Nothing is written
    before everything has been checked.
    """

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        catalog: Catalog,
        *,
        sources: Sequence[Video] | None,
        retry_failed: bool = False,
    ) -> None:
        self.folder = folder
        self._open = ExitStack()
        with self._open, writing_to(folder):
            self._open.enter_context(exclusive(folder))
            self._begin(manifest, catalog, sources)
            self._sources = {video.id: video for video in sources or ()}
            self.todo = self._list_pending(catalog, retry_failed)
            self._arrays = {kind: self._open_arrays(kind) for kind in KINDS}
            self._open = self._open.pop_all()
        self.failures = 0
        self._waiting: dict[int, Seen] = {}
        self._next = 0
        self._batch: list[Entry] = []
        self._committed = time.monotonic()
        done = self.ledger.entries("done")
        self._rows: dict[Kind, int] = {kind: count_rows(done, kind) for kind in KINDS}

    def _begin(self, manifest: Manifest, catalog: Catalog, sources: Sequence[Video] | None) -> None:
        """Check manifest, ledger and files; then note the catalog and what has changed."""
        is_new = not (self.folder / "manifest.json").exists()
        join = _new_manifest if is_new else agree
        self.manifest = join(self.folder, manifest)
        if is_new:  # so that whoever sees a ledger also sees a catalog
            write_catalog(_absolute(catalog), self.folder / "catalog.csv")
        self.ledger = Ledger(self.folder / "ledger.sqlite", create=True)
        self._open.callback(self.ledger.close)
        self._check_manifest(is_new)
        changes = compare_files(self.ledger.entries(), sources or ())
        changes.refuse_unverifiable(self.folder)
        write_catalog(_absolute(catalog), self.folder / "catalog.csv")
        if self.ledger.lost:
            say(f"{self.ledger.lost} videos were deleted from {self.ledger.path}")
        self.ledger.write([*changes.moved, *changes.pending])
        self.ledger.append(video.id for video in catalog)
        if changes.pending:
            say(f"{len(changes.pending)} videos have changed since: they are extracted again")

    def _check_manifest(self, is_new: bool) -> None:
        """The ledger knows the manifest that it was begun with."""
        if is_new or not self.ledger.manifest:
            self.ledger.manifest = self.manifest.fingerprint
        elif self.ledger.manifest != self.manifest.fingerprint:
            raise StoreError(
                f"{self.folder}/manifest.json was changed: it is not the one that the rows were "
                f"made with; restore it, or use another folder"
            )

    def _list_pending(self, catalog: Catalog, retry_failed: bool) -> Sequence[Entry]:
        """The videos that have no rows and may get some."""
        requested = {video.id for video in catalog}
        entries = [e for e in self.ledger.entries("pending", "failed") if e.id in requested]
        pending = [e for e in entries if e.status == "pending" or e.transient or retry_failed]
        if kept := len(entries) - len(pending):
            say(f"{kept} videos failed before and are left out; --retry-failed tries them again")
        return pending

    def _open_arrays(self, kind: Kind) -> dict[str, GrowingArray]:
        (self.folder / kind).mkdir(exist_ok=True)
        return {
            name: self._open.enter_context(
                GrowingArray(self.folder / kind / f"{name}.npy", shape, dtype)
            )
            for name, (shape, dtype) in self.manifest.columns().items()
        }

    def sign(self, made_by: dict[str, str]) -> None:
        """Note in the manifest what makes the features, the first time."""
        if not self.manifest.made_by:
            versions = {name: version(name) for name in ("clipset", "torch", "av", "numpy")}
            self.credit(made_by | versions | {"python": platform.python_version()})

    def credit(self, made_by: dict[str, str]) -> None:
        """Write in the manifest what made the features."""
        self.manifest = replace(self.manifest, made_by=made_by)
        with writing_to(self.folder):
            write_json(self.folder / "manifest.json", to_mapping(self.manifest))

    def put(self, seen: Seen) -> None:
        """Take in the video at `seen.place` of `todo`; it is committed once all before it are."""
        self._waiting[seen.place] = seen
        while self._next in self._waiting:
            self._take(self._waiting.pop(self._next))
            self._next += 1

    def _take(self, seen: Seen) -> None:
        entry = seen.note(self.todo[seen.place])
        source = self._sources.get(entry.id)
        if seen.rows is None:
            self.failures += 1
            say(f"skipped {entry.id}: {entry.reason}")
            entry = replace(entry, file=read_file_state(source.path) if source else None)
        elif (damage := entry.damage) is not None:
            say(f"damaged {entry.id}: {damage}")
        self.add(replace(entry, video_end=source.end if source else None), seen.rows)

    def add(self, entry: Entry, rows: ClipRows | None) -> None:
        """Put a video's rows behind those that are there, and note its entry."""
        if rows is not None:
            entry = replace(
                entry, random_first=self._rows["random"], regular_first=self._rows["regular"]
            )
            entry = self.fill(entry, rows)
            for kind, _, count in entry.rows():
                self._rows[kind] += count
        self.note(entry)

    def fill(self, entry: Entry, rows: ClipRows) -> Entry:
        """Write a video's rows where its entry says; the entry with their checksum."""
        parts = parts_of(entry, rows, self.manifest)
        with writing_to(self.folder):
            for kind, name, first, part in parts:
                self._arrays[kind][name].write(first, part)
        return replace(entry, checksum=checksum_of([part for *_, part in parts]))

    def note(self, entry: Entry) -> None:
        """Have an entry committed soon, together with others."""
        self._batch.append(entry)
        if time.monotonic() - self._committed > COMMIT_SECONDS:
            self.commit()

    def commit(self) -> None:
        """Put the rows on disk, then say so in the ledger."""
        if self._batch:
            with writing_to(self.folder):
                for arrays in self._arrays.values():
                    for array in arrays.values():
                        array.sync()
                self.ledger.write(self._batch)
            self._batch = []
        self._committed = time.monotonic()

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.commit()
            with writing_to(self.folder):
                for each in KINDS:
                    for array in self._arrays[each].values():
                        array.finish(self._rows[each])
        finally:
            self._open.close()


def parts_of(entry: Entry, rows: ClipRows, manifest: Manifest) -> list[Part]:
    """A video's rows as they are stored: for each file its kind, name, first row and content."""
    parts: list[Part] = []
    low = 0
    for kind, first, count in entry.rows():
        for name, (_, dtype) in manifest.columns().items():
            part = getattr(rows, name)[low : low + count]
            if name == "features":
                _refuse_overflow(part, np.dtype(dtype), entry.id)
            parts.append((kind, name, first, part.astype(dtype)))
        low += count
    return parts


def _refuse_overflow(features: NDArray[Any], dtype: np.dtype[Any], video_id: str) -> None:
    largest = float(np.abs(features).max(initial=0.0))
    if largest > float(np.finfo(dtype).max):
        raise StoreError(
            f"{video_id}: a feature of {largest:g} is too large for {dtype}; use --dtype float32"
        )


@contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """Say in one line why the disk did not take it; what was committed before is safe."""
    try:
        yield
    except (OSError, sqlite3.OperationalError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise StoreError(
            f"cannot write to {folder}: {reason}; what is done so far is kept, "
            f"make room (or mend the disk) and run the same command again"
        ) from error


def agree(folder: Path, manifest: Manifest) -> Manifest:
    """The manifest of a store that was made in the wanted way; an error if it was not."""
    found = read_manifest(folder)
    if replace(found, made_by={}) != manifest:
        raise StoreError(f"{folder} was made {difference(found, manifest)}; use another folder")
    return found


def _new_manifest(folder: Path, manifest: Manifest) -> Manifest:
    """Begin a store in an empty folder."""
    if not is_empty(folder):
        raise StoreError(f"{folder} holds something that is no feature store; use another folder")
    write_json(folder / "manifest.json", to_mapping(manifest))
    return manifest


def difference(found: Manifest, wanted: Manifest) -> str:
    """The first thing in which two manifests differ, as the end of `was made …`."""
    if found.backbone.name != wanted.backbone.name:
        return f"with backbone {found.backbone.name}, not {wanted.backbone.name}"
    for name in ("backbone", "sampling", "seed", "dtype"):
        old, new = getattr(found, name), getattr(wanted, name)
        if old != new:
            inner = getattr(old, "__dataclass_fields__", {})
            for field_name in inner:
                was, now = getattr(old, field_name), getattr(new, field_name)
                if was != now:
                    return f"with {name} {field_name} {was}, not {now}"
            return f"with {name} {old}, not {new}"
    return "in another way"


def _absolute(catalog: Catalog) -> Catalog:
    return catalog.only(replace(video, path=video.path.absolute()) for video in catalog)
