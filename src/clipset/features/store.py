"""FeatureStore: clip features of each video on disk, read through memory maps.

store/
├── manifest.json        what the rows are: backbone, sampling, seed, number type, versions
├── catalog.csv          the videos that were asked for
├── ledger.sqlite        what happened to each of them, and where its rows are
├── random/              the clips to learn from
│   ├── features.npy     (rows, D)
│   ├── boxes.npy        (rows, 7): start, end in seconds; top, left, bottom, right; flipped
│   └── times.npy        (rows, T): when each frame of the clip is shown, in seconds
└── regular/             the clips to judge by, the same files
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from clipset.backbones.registry import BackboneSpec
from clipset.clips.box import BOX_COLUMNS
from clipset.clips.config import Sampling
from clipset.config import build, fingerprint, read_json
from clipset.data.catalog import Catalog, read_catalog_table
from clipset.errors import NothingReadError, StoreError
from clipset.features.arrays import open_rows
from clipset.features.ledger import KINDS, Entry, Kind, Ledger

FORMAT = 1
IMPORTED = "imported"  # what a store of imported features calls its backbone


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a store's rows are; two stores with equal manifests can be compared row by row."""

    backbone: BackboneSpec
    sampling: Sampling
    seed: int
    dtype: Literal["float16", "float32"]
    format: int = FORMAT
    made_by: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**63:
            raise StoreError(f"seed must be at least 0 and less than 2^63, got {self.seed}")

    @property
    def fingerprint(self) -> str:
        """A short name for what the rows are, whoever made them."""
        return fingerprint(replace(self, made_by={}))

    @property
    def backbone_name(self) -> str:
        """The name that the backbone was requested by; a custom file's absolute path."""
        return self.made_by.get("backbone", self.backbone.name)

    def columns(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """The files of a kind of clips: name, shape of a row, number type."""
        return {
            "features": ((self.backbone.dim,), self.dtype),
            "boxes": ((len(BOX_COLUMNS),), "float32"),
            "times": ((self.backbone.frames,), "float32"),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipTable:
    """The clips of one kind, one video's after the other's: count[i] rows from first[i] on."""

    features: NDArray[np.generic]
    boxes: Float[np.ndarray, "rows 7"]
    times: Float[np.ndarray, "rows T"]
    first: Int[np.ndarray, " N"]
    count: Int[np.ndarray, " N"]

    @property
    def fewest(self) -> int:
        """The least number of clips that a video has."""
        return int(self.count.min()) if len(self.count) else 0

    @property
    def per_video(self) -> int:
        """V, where every video has the same number of clips."""
        counts = np.unique(self.count)
        if len(counts) != 1:
            raise StoreError(
                f"the videos have {counts.min()} to {counts.max()} clips, not one number"
            )
        return int(counts[0])

    def of(self, videos: Int[np.ndarray, " B"]) -> Int[np.ndarray, "B V"]:
        """The row numbers of some videos' clips; -1 where a video has fewer than another."""
        count = self.count[videos][:, None]
        places = np.arange(count.max(initial=0))[None]
        rows: Int[np.ndarray, "B V"] = np.where(
            places < count, self.first[videos][:, None] + places, -1
        )
        return rows


class FeatureStore:
    """A store opened for reading. Video i of it is `entries[i]`; failed videos are kept apart.

    Videos that were stored once but are no longer in the catalog stay on disk and are passed over.
    """

    def __init__(self, folder: Path, catalog: Catalog | None = None) -> None:
        self.folder = folder
        self.manifest = read_manifest(folder)
        if catalog is not None:  # other labels and splits than those that it was made with
            self.catalog = catalog
        with closing(Ledger(folder / "ledger.sqlite")) as ledger:
            everything, self.lost = ledger.entries(), ledger.lost
            self.manifest_fingerprint = ledger.manifest
        wanted = {video.id for video in self.catalog}
        asked = [entry for entry in everything if entry.id in wanted]
        self.everything: Sequence[Entry] = everything
        self.entries: Sequence[Entry] = [entry for entry in asked if entry.status == "done"]
        self.failed: Sequence[Entry] = [entry for entry in asked if entry.status == "failed"]
        self.pending: Sequence[Entry] = [entry for entry in asked if entry.status == "pending"]

    def __len__(self) -> int:
        return len(self.entries)

    @cached_property
    def catalog(self) -> Catalog:
        """The videos with their labels and splits, as given when the store was last extended."""
        return read_catalog_table(self.folder / "catalog.csv")

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """The ids of the videos that have rows."""
        return tuple(entry.id for entry in self.entries)

    @cached_property
    def durations(self) -> Float[np.ndarray, " N"]:
        """How long each video is, in seconds."""
        return np.array([entry.duration for entry in self.entries], dtype=np.float64)

    @cached_property
    def random(self) -> ClipTable:
        """The clips to learn from."""
        return self.table("random")

    @cached_property
    def regular(self) -> ClipTable:
        """The clips to judge by."""
        return self.table("regular")

    def table(self, kind: Kind) -> ClipTable:
        """The clips of one kind."""
        first = np.array(
            [getattr(entry, f"{kind}_first") for entry in self.entries], dtype=np.int64
        )
        count = np.array(
            [getattr(entry, f"{kind}_count") for entry in self.entries], dtype=np.int64
        )
        rows = int((first + count).max(initial=0))
        features, boxes, times = (
            open_rows(self.folder / kind / f"{name}.npy", rows, *column)
            for name, column in self.manifest.columns().items()
        )
        return ClipTable(features=features, boxes=boxes, times=times, first=first, count=count)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a store, or an error that says what the folder is instead."""
    path = folder / "manifest.json"
    if not path.is_file():
        raise StoreError(
            f"{folder} is no feature store (no manifest.json); run `clipset extract` first"
        )
    content = read_json(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise StoreError(f"{path} is not a manifest of format {FORMAT}; another clipset made it")
    return build(Manifest, content, str(path))


def open_store(folder: Path, catalog: Catalog | None = None) -> FeatureStore:
    """A finished store with at least one video; `catalog` may say other labels and splits."""
    store = FeatureStore(folder, catalog)
    if store.lost:
        raise StoreError(
            f"{store.lost} videos were deleted from the ledger of {folder}; "
            f"run `clipset extract` again, it makes what is missing"
        )
    if store.pending:
        known = len(store) + len(store.failed) + len(store.pending)
        raise StoreError(
            f"{folder} is not finished ({len(store.pending)} of {known} videos to go); "
            f"run `clipset extract` again, it goes on where it stopped"
        )
    if not store.entries:
        reason = f": {store.failed[0].id}: {store.failed[0].reason}" if store.failed else ""
        raise StoreError(f"{folder} holds no video that could be read{reason}")
    return store


def refuse_nothing_read(store: FeatureStore) -> None:
    """Raise NothingReadError if every video of a store failed."""
    if store.failed and not store.entries and not store.pending:
        first = store.failed[0]
        counted = f"all {len(store.failed)} videos" if len(store.failed) > 1 else "the only video"
        raise NothingReadError(f"{counted} failed; {first.id}: {first.reason}")


def checksum_of(rows: Sequence[NDArray[np.generic]]) -> str:
    """A fingerprint of one video's rows; one flipped bit changes it."""
    digest = hashlib.blake2b(digest_size=16)
    for array in rows:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def count_rows(entries: Iterable[Entry], kind: Kind) -> int:
    """Where the rows of the last video end."""
    ends = (
        first + count
        for entry in entries
        if entry.status == "done"
        for each, first, count in entry.rows()
        if each == kind
    )
    return max(ends, default=0)


def store_digest(folder: Path) -> str:
    """A fingerprint of all that a store says: equal for stores with the same content."""
    store = FeatureStore(folder)
    digest = hashlib.blake2b(digest_size=16)
    for entry in store.everything:
        said = (entry.ordinal, entry.id, entry.status, entry.reason, entry.checksum)
        digest.update(repr(said).encode())
    for kind in KINDS:
        for name in store.manifest.columns():
            digest.update((folder / kind / f"{name}.npy").read_bytes())
    return digest.hexdigest()
