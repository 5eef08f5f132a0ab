"""StoreWriter: commits videos in the order of the catalog, in whatever order they get ready."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from types import TracebackType

import numpy as np
from jaxtyping import Float

from clipset.config import write_json
from clipset.errors import StoreError
from clipset.features.arrays import GrowingArray
from clipset.features.ledger import KINDS, Entry, Kind, Ledger
from clipset.features.store import Manifest, checksum_of, read_manifest
from clipset.progress import say
from clipset.videos.catalog import Catalog, write_catalog

COMMIT_SECONDS = 1.0  # finished videos wait at most this long for their transaction


@dataclass(frozen=True, slots=True)
class ClipRows:
    """What is kept of one video, random clips first; fields are named like the store's files."""

    features: Float[np.ndarray, "V D"]
    boxes: Float[np.ndarray, "V 7"]
    times: Float[np.ndarray, "V T"]


class StoreWriter:
    """A store opened for writing. What is committed is never touched again."""

    def __init__(
        self, folder: Path, manifest: Manifest, catalog: Catalog, *, retry_failed: bool = False
    ) -> None:
        self.folder = folder
        self.manifest = _agree_on_manifest(folder, manifest)
        write_catalog(_absolute(catalog), folder / "catalog.csv")
        self.ledger = Ledger(folder / "ledger.sqlite", create=True)
        self.ledger.append(video.id for video in catalog)
        wanted = {video.id for video in catalog}
        entries = (
            self.ledger.entries("pending", "failed")
            if retry_failed
            else self.ledger.entries("pending")
        )
        self.todo: Sequence[Entry] = [entry for entry in entries if entry.id in wanted]
        self.failures = 0
        self._waiting: dict[int, tuple[Entry, ClipRows | None]] = {}
        self._next = 0
        self._batch: list[Entry] = []
        self._committed = time.monotonic()
        done = self.ledger.entries("done")
        self._rows: dict[Kind, int] = {
            "random": max((e.random_first + e.random_count for e in done), default=0),
            "regular": max((e.regular_first + e.regular_count for e in done), default=0),
        }
        self._open = ExitStack()
        self._arrays = {kind: self._open_arrays(kind) for kind in KINDS}

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
            made_by = made_by | versions | {"python": platform.python_version()}
            self.manifest = replace(self.manifest, made_by=made_by)
            write_json(self.folder / "manifest.json", self.manifest)

    def put(self, place: int, entry: Entry, rows: ClipRows | None) -> None:
        """Take in the video at `place` of `todo`; it is committed once all before it are."""
        self._waiting[place] = (entry, rows)
        while self._next in self._waiting:
            self._append(*self._waiting.pop(self._next))
            self._next += 1
        if time.monotonic() - self._committed > COMMIT_SECONDS:
            self.commit()

    def _append(self, entry: Entry, rows: ClipRows | None) -> None:
        if rows is None:
            self.failures += 1
            say(f"skipped {entry.id}: {entry.reason}")
            self._batch.append(entry)
            return
        entry = replace(
            entry, random_first=self._rows["random"], regular_first=self._rows["regular"]
        )
        written, low = [], 0
        for kind, first, count in entry.rows():
            for name, target in self._arrays[kind].items():
                part = getattr(rows, name)[low : low + count].astype(target.dtype)
                target.write(first, part)
                written.append(part)
            self._rows[kind] += count
            low += count
        self._batch.append(replace(entry, checksum=checksum_of(written)))

    def commit(self) -> None:
        """Put the rows on disk, then say so in the ledger."""
        if self._batch:
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
            for each in KINDS:
                for array in self._arrays[each].values():
                    array.finish(self._rows[each])
        finally:
            self._open.close()
            self.ledger.close()


def _agree_on_manifest(folder: Path, manifest: Manifest) -> Manifest:
    """The folder's own manifest if it was made the same way, else a new one in an empty folder."""
    if (folder / "manifest.json").exists():
        found = read_manifest(folder)
        if replace(found, made_by={}) != manifest:
            raise StoreError(
                f"{folder} was made {_difference(found, manifest)}; use another folder"
            )
        return found
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise StoreError(
                f"{folder} holds something that is no feature store; use another folder"
            )
        write_json(folder / "manifest.json", manifest)
    except OSError as error:
        raise StoreError(f"cannot write to {folder}: {error.strerror}") from None
    return manifest


def _difference(found: Manifest, wanted: Manifest) -> str:
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
