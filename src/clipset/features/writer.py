"""StoreWriter: commits videos in the order of the catalog, in whatever order they arrive."""

from __future__ import annotations

import platform
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clipset.config import to_mapping
from clipset.data.catalog import Catalog, Video, write_catalog
from clipset.data.file_state import read_file_state
from clipset.errors import StoreError
from clipset.features.encode import ClipRows, EncodedVideo
from clipset.features.ledger import KINDS, Kind, Ledger, LedgerEntry
from clipset.features.store import Manifest, count_rows, retry_hint, row_checksum
from clipset.features.store_check import check_manifest, compare_files
from clipset.files import write_json
from clipset.process.locks import exclusive, is_empty
from clipset.progress import log
from clipset.row_files import GrowingArray

COMMIT_SECONDS = 1.0  # entries wait at most this long for their transaction


class StoreWriter:
    """A store opened for writing, by one process at a time. Committed rows never change.

    `sources` are the files that the rows are read from, by the ids of their videos. Rows of a file
    that has changed are dropped and made again; None compares no files. Nothing is written before
    everything has been checked.
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
        self._resources = ExitStack()
        with self._resources, writing_to(folder):
            self._resources.enter_context(exclusive(folder))
            self._open(manifest, catalog, sources)
            self._sources = {video.id: video for video in sources or ()}
            self.pending = self._list_pending(catalog, retry_failed)
            self._arrays = {kind: self._open_arrays(kind) for kind in KINDS}
            self._resources = self._resources.pop_all()
        self.num_failed = 0
        self._waiting: dict[int, EncodedVideo] = {}
        self._next = 0
        self._uncommitted: list[LedgerEntry] = []
        self._last_commit = time.monotonic()
        done = self.ledger.entries("done")
        self._num_rows: dict[Kind, int] = {kind: count_rows(done, kind) for kind in KINDS}

    def _open(self, manifest: Manifest, catalog: Catalog, sources: Sequence[Video] | None) -> None:
        """Check manifest, ledger and files; then write the catalog and the changed entries."""
        is_new = not (self.folder / "manifest.json").exists()
        open_manifest = _create_manifest if is_new else check_manifest
        self.manifest = open_manifest(self.folder, manifest)
        if is_new:  # a store that has a ledger also has a catalog
            write_catalog(_absolute(catalog), self.folder / "catalog.csv")
        self.ledger = Ledger(self.folder / "ledger.sqlite", create=True)
        self._resources.callback(self.ledger.close)
        self._check_fingerprint(is_new)
        changes = compare_files(self.ledger.entries(), sources or ())
        changes.check_verifiable(self.folder)
        write_catalog(_absolute(catalog), self.folder / "catalog.csv")
        if self.ledger.num_lost:
            log(f"{self.ledger.num_lost} videos were deleted from {self.ledger.path}")
        self.ledger.write([*changes.moved, *changes.pending])
        self.ledger.append(video.id for video in catalog)
        if changes.pending:
            log(f"{len(changes.pending)} videos have changed and are extracted again")

    def _check_fingerprint(self, is_new: bool) -> None:
        if is_new or not self.ledger.manifest:
            self.ledger.manifest = self.manifest.fingerprint
        elif self.ledger.manifest != self.manifest.fingerprint:
            raise StoreError(
                f"{self.folder}/manifest.json was changed: it is not the one that the rows were "
                f"made with; restore it, or use another folder"
            )

    def _list_pending(self, catalog: Catalog, retry_failed: bool) -> Sequence[LedgerEntry]:
        """The videos to process."""
        requested = {video.id for video in catalog}
        entries = [e for e in self.ledger.entries("pending", "failed") if e.id in requested]
        pending = [e for e in entries if e.status == "pending" or e.transient or retry_failed]
        if skipped := len(entries) - len(pending):
            log(retry_hint(skipped))
        return pending

    def _open_arrays(self, kind: Kind) -> dict[str, GrowingArray]:
        (self.folder / kind).mkdir(exist_ok=True)
        return {
            name: self._resources.enter_context(
                GrowingArray(self.folder / kind / f"{name}.npy", shape, dtype)
            )
            for name, (shape, dtype) in self.manifest.columns().items()
        }

    def record_provenance(self, made_by: dict[str, str]) -> None:
        """Record in the manifest what makes the features, the first time."""
        if "engine" not in self.manifest.made_by:
            versions = {name: version(name) for name in ("clipset", "torch", "av", "numpy")}
            versions |= {"python": platform.python_version()}
            self.write_provenance(self.manifest.made_by | made_by | versions)

    def write_provenance(self, made_by: dict[str, str]) -> None:
        """Write in the manifest what made the features."""
        self.manifest = replace(self.manifest, made_by=made_by)
        with writing_to(self.folder):
            write_json(self.folder / "manifest.json", to_mapping(self.manifest))

    def put(self, video: EncodedVideo) -> None:
        """Take the result of `pending[video.index]`; it is written once all before it are."""
        self._waiting[video.index] = video
        while self._next in self._waiting:
            self._put_next(self._waiting.pop(self._next))
            self._next += 1

    def _put_next(self, video: EncodedVideo) -> None:
        entry = video.update(self.pending[video.index])
        source = self._sources.get(entry.id)
        if video.rows is None:
            self.num_failed += 1
            log(f"skipped {entry.id}: {entry.reason}")
            entry = replace(entry, file=read_file_state(source.path) if source else None)
        elif (damage := entry.damage) is not None:
            log(f"damaged {entry.id}: {damage}")
        self.add(replace(entry, video_end=source.end if source else None), video.rows)

    def add(self, entry: LedgerEntry, rows: ClipRows | None) -> None:
        """Append a video's rows and record its entry."""
        if rows is not None:
            random_first, regular_first = (self._num_rows[kind] for kind in KINDS)
            entry = replace(entry, random_first=random_first, regular_first=regular_first)
            entry = self.write_rows(entry, rows)
            for kind, _, count in entry.rows():
                self._num_rows[kind] += count
        self.record(entry)

    def write_rows(self, entry: LedgerEntry, rows: ClipRows) -> LedgerEntry:
        """Write a video's rows where its entry says; returns the entry with their checksum."""
        parts = []
        offset = 0
        for kind, first, count in entry.rows():
            for name, (_, dtype) in self.manifest.columns().items():
                part = getattr(rows, name)[offset : offset + count]
                if name == "features":
                    check_overflow(part, np.dtype(dtype), entry.id)
                parts.append((self._arrays[kind][name], first, part.astype(dtype)))
            offset += count
        with writing_to(self.folder):
            for array, first, part in parts:
                array.write(first, part)
        return replace(entry, checksum=row_checksum([part for *_, part in parts]))

    def record(self, entry: LedgerEntry) -> None:
        """Commit an entry soon, together with others."""
        self._uncommitted.append(entry)
        if time.monotonic() - self._last_commit > COMMIT_SECONDS:
            self.commit()

    def commit(self) -> None:
        """Sync the rows to disk, then write the entries."""
        if self._uncommitted:
            with writing_to(self.folder):
                for arrays in self._arrays.values():
                    for array in arrays.values():
                        array.sync()
                self.ledger.write(self._uncommitted)
            self._uncommitted = []
        self._last_commit = time.monotonic()

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self.commit()
            with writing_to(self.folder):
                for kind, arrays in self._arrays.items():
                    for array in arrays.values():
                        array.finish(self._num_rows[kind])
        finally:
            self._resources.close()


def check_overflow(features: NDArray[Any], dtype: np.dtype[Any], video_id: str) -> None:
    """Raise StoreError if features are too large for the dtype of the store."""
    largest = float(np.abs(features).max(initial=0.0))
    if largest > float(np.finfo(dtype).max):
        raise StoreError(
            f"{video_id}: a feature of {largest:g} is too large for {dtype}; use --dtype float32"
        )


@contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """Turn errors of the disk into a StoreError of one line; committed rows are safe."""
    try:
        yield
    except (OSError, sqlite3.OperationalError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise StoreError(
            f"cannot write to {folder}: {reason}; finished videos are kept, "
            f"free some space (or repair the disk) and run the same command again"
        ) from error


def _create_manifest(folder: Path, manifest: Manifest) -> Manifest:
    """Start a store in an empty folder."""
    if not is_empty(folder):
        raise StoreError(f"{folder} is not empty and not a feature store; use another folder")
    write_json(folder / "manifest.json", to_mapping(manifest))
    return manifest


def _absolute(catalog: Catalog) -> Catalog:
    return catalog.only(replace(video, path=video.path.absolute()) for video in catalog)
