"""StoreWriter: commits videos in the order of the catalog, in whatever order they arrive."""

from __future__ import annotations

import platform
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
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
from clipset.errors import BackboneError, StoreError, VideoError
from clipset.features.encode import ClipRows, EncodedVideo, EncodeResult
from clipset.features.ledger import KINDS, Kind, Ledger, LedgerEntry
from clipset.features.sprites import write_sprite
from clipset.features.store import (
    Manifest,
    check_manifest,
    compare_files,
    count_rows,
    retry_hint,
    row_checksum,
)
from clipset.files import write_json
from clipset.process.locks import exclusive, is_empty
from clipset.progress import bar, log
from clipset.row_files import GrowingArray
from clipset.text import counted

COMMIT_SECONDS = 1.0  # entries wait at most this long for their transaction


class StoreWriter:
    """A store opened for writing, by one process at a time. Committed rows never change.

    `sources` are the files that the rows are read from, by the ids of their videos. Rows of a file
    that has changed are dropped and made again; None compares no files. Nothing is written before
    everything has been checked. `pending` are the entries of the `pending_videos`, to process.
    """

    def __init__(
        self,
        store_folder: Path,
        manifest: Manifest,
        catalog: Catalog,
        *,
        sources: Sequence[Video] | None,
        retry_failed: bool = False,
    ) -> None:
        self.folder, self.catalog = store_folder, catalog
        self._sources = {video.id: video for video in sources or ()}
        self._resources = ExitStack()
        with self._resources, writing_to(store_folder):
            self._resources.enter_context(exclusive(store_folder))
            self._open(manifest)
            videos = {video.id: video for video in catalog}
            entries = [e for e in self.ledger.entries("pending", "failed") if e.id in videos]
            self.pending = [
                e for e in entries if e.status == "pending" or e.transient or retry_failed
            ]
            self.pending_videos = [videos[entry.id] for entry in self.pending]
            if num_skipped := len(entries) - len(self.pending):
                log(retry_hint(num_skipped))
            self._arrays = {
                (kind, column_name): self._resources.enter_context(
                    GrowingArray(store_folder / kind / f"{column_name}.npy", shape, dtype)
                )
                for kind in KINDS
                for column_name, (shape, dtype) in self.manifest.columns().items()
            }
            self._resources = self._resources.pop_all()
        self.num_failed = 0
        self._waiting: dict[int, EncodedVideo | VideoError] = {}
        self._next_index = 0
        self._uncommitted: list[LedgerEntry] = []
        self._last_commit = time.monotonic()
        done = self.ledger.entries("done")
        self._num_rows: dict[Kind, int] = {kind: count_rows(done, kind) for kind in KINDS}

    def _open(self, manifest: Manifest) -> None:
        """Check manifest, ledger and files; then write the catalog and the changed entries."""
        store_folder = self.folder
        is_new = not (store_folder / "manifest.json").exists()
        if is_new:
            if not is_empty(store_folder):
                raise StoreError(
                    f"{store_folder} is not empty and not a feature store; use another folder"
                )
            write_json(store_folder / "manifest.json", to_mapping(manifest))
            write_catalog(self.catalog, store_folder / "catalog.csv")  # before there is a ledger
        self.manifest = check_manifest(store_folder, manifest)
        self.ledger = ledger = Ledger(store_folder / "ledger.sqlite", create=True)
        self._resources.callback(ledger.close)
        if is_new or not ledger.manifest:
            ledger.manifest = self.manifest.fingerprint
        elif ledger.manifest != self.manifest.fingerprint:
            raise StoreError(
                f"{store_folder}/manifest.json was changed: it is not the one that the rows were "
                f"made with; restore it, or use another folder"
            )
        moved, changed = compare_files(store_folder, ledger.entries(), self._sources.values())
        write_catalog(self.catalog, store_folder / "catalog.csv")
        if ledger.num_lost:
            num_lost = counted(ledger.num_lost, "video was", "videos were")
            log(f"{num_lost} deleted from {ledger.path}")
        ledger.write([*moved, *changed])
        ledger.append(video.id for video in self.catalog)
        if changed:
            words = "video has changed and is", "videos have changed and are"
            log(f"{counted(len(changed), *words)} extracted again")
        for kind in KINDS:
            (store_folder / kind).mkdir(exist_ok=True)

    def record_provenance(self, engine_name: str, backbone_name: str) -> None:
        """Record in the manifest what makes the features, the first time."""
        if "engine" in self.manifest.made_by:
            return
        made_by = self.manifest.made_by | {"engine": engine_name}
        if backbone_name != self.manifest.backbone.name:  # the path of a custom backbone
            made_by["backbone"] = backbone_name
        made_by |= {package: version(package) for package in ("clipset", "torch", "av", "numpy")}
        self.write_provenance(made_by | {"python": platform.python_version()})

    def write_provenance(self, made_by: dict[str, str]) -> None:
        """Write in the manifest what made the features."""
        self.manifest = replace(self.manifest, made_by=made_by)
        with writing_to(self.folder):
            write_json(self.folder / "manifest.json", to_mapping(self.manifest))

    def write_all(self, results: Iterable[EncodeResult], title: str) -> None:
        """Write encoded videos as they come, and show progress."""
        if "clips" in self.manifest.made_by:
            log(self.manifest.made_by["clips"])
        num_videos = len(self.catalog)
        with bar(title, num_videos, "videos", done=num_videos - len(self.pending)) as advance:
            for video_index, video in results:
                self.put(video_index, video)
                advance(note=f"{self.num_failed} failed" if self.num_failed else "")

    def put(self, video_index: int, video: EncodedVideo | VideoError | BackboneError) -> None:
        """Take the result of `pending[video_index]`; it is written once all before it are.

        A video on which the backbone fails ends the extraction.
        """
        if isinstance(video, BackboneError):
            raise BackboneError(f"{self.pending[video_index].id}: {video}") from None
        self._waiting[video_index] = video
        while self._next_index in self._waiting:
            self._put_next(self._waiting.pop(self._next_index))
            self._next_index += 1

    def _put_next(self, video: EncodedVideo | VideoError) -> None:
        entry = self.pending[self._next_index]
        source = self._sources.get(entry.id)
        entry = replace(entry, video_end=source.end if source else None)
        if isinstance(video, EncodedVideo):
            entry = video.update(entry)
            if entry.damage is not None:
                log(f"damaged {entry.id}: {entry.damage}")
            self.write_sprite(entry, video.sprite)
            self.add(entry, video.rows)
        else:
            self.write_sprite(entry, b"")
            self.num_failed += 1
            log(f"skipped {entry.id}: {video}")
            file_state = read_file_state(source.path) if source else None
            self.record(entry.failed(str(video), video.transient, file_state))

    def add(self, entry: LedgerEntry, rows: ClipRows) -> None:
        """Append a video's rows and record its entry."""
        random_first, regular_first = (self._num_rows[kind] for kind in KINDS)
        entry = replace(entry, random_first=random_first, regular_first=regular_first)
        entry = self.write_rows(entry, rows)
        for kind, (_, num_rows) in entry.rows().items():  # before the entry is committed
            self._num_rows[kind] += num_rows
        self.record(entry)

    def write_rows(self, entry: LedgerEntry, rows: ClipRows) -> LedgerEntry:
        """Write a video's rows where its entry says; returns the entry with their checksum."""
        row_parts = []
        row_offset = 0
        for kind, (first_row, num_rows) in entry.rows().items():
            for column_name, (_, dtype) in self.manifest.columns().items():
                part = getattr(rows, column_name)[row_offset : row_offset + num_rows]
                if column_name == "features":
                    check_overflow(part, np.dtype(dtype), entry.id)
                row_parts.append((self._arrays[kind, column_name], first_row, part.astype(dtype)))
            row_offset += num_rows
        with writing_to(self.folder):
            for array, first_row, part in row_parts:
                array.write(first_row, part)
        return replace(entry, checksum=row_checksum([part for *_, part in row_parts]))

    def write_sprite(self, entry: LedgerEntry, content: bytes) -> None:
        """Write a video's sprite before its entry is committed; empty: it has none."""
        with writing_to(self.folder):
            write_sprite(self.folder, entry.ordinal, content)

    def record(self, entry: LedgerEntry) -> None:
        """Commit an entry soon, together with others."""
        self._uncommitted.append(entry)
        if time.monotonic() - self._last_commit > COMMIT_SECONDS:
            self.commit()

    def commit(self) -> None:
        """Sync the rows to disk, then write the entries."""
        if self._uncommitted:
            with writing_to(self.folder):
                for array in self._arrays.values():
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
                for (kind, _), array in self._arrays.items():
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
def writing_to(store_folder: Path) -> Iterator[None]:
    """Turn errors of the disk into a StoreError of one line; committed rows are safe."""
    try:
        yield
    except (OSError, sqlite3.OperationalError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise StoreError(
            f"cannot write to {store_folder}: {reason}; finished videos are kept, "
            f"free some space (or repair the disk) and run the same command again"
        ) from error
