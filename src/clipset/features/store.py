"""FeatureStore: clip features of each video on disk, read through memory maps.

store/
├── manifest.json        what the rows are: backbone, sampling, seed, dtype, versions
├── catalog.csv          the requested videos
├── ledger.sqlite        the state of each video, and where its rows are
├── random/              random clips, for training
│   ├── features.npy     (rows, D)
│   ├── boxes.npy        (rows, 7): start, end in seconds; top, left, bottom, right; flipped
│   └── times.npy        (rows, T): the time of each frame of the clip, in seconds
├── regular/             clips on a regular grid, for evaluation; the same files
└── sprites/             ten small frames of each video for the page; may be missing
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
from clipset.data.catalog import Catalog, Video, read_catalog_table
from clipset.data.file_state import read_file_state, resolve_path
from clipset.errors import NothingReadError, StoreError
from clipset.features.ledger import KINDS, Kind, Ledger, LedgerEntry
from clipset.progress import bar
from clipset.row_files import open_rows
from clipset.text import counted

FORMAT = 1
SHOW_PROGRESS_FROM = 10_000  # compared files
IMPORTED = "imported"  # the name of the backbone in a store of imported features


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
        """Identifies the kind of rows, whoever made them."""
        return fingerprint(replace(self, made_by={}))

    def columns(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """The arrays of a kind of clips: name, row shape, dtype."""
        return {
            "features": ((self.backbone.dim,), self.dtype),
            "boxes": ((len(BOX_COLUMNS),), "float32"),
            "times": ((self.backbone.frames,), "float32"),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipTable:
    """The clips of one kind, video by video: video i has count[i] rows from first[i] on."""

    features: NDArray[np.generic]
    boxes: Float[np.ndarray, "rows 7"]
    times: Float[np.ndarray, "rows T"]
    first: Int[np.ndarray, " N"]
    count: Int[np.ndarray, " N"]

    def row_indices(self, video_indices: Int[np.ndarray, " B"]) -> Int[np.ndarray, "B V"]:
        """The rows of some videos' clips, padded with -1 where a video has fewer than others."""
        count = self.count[video_indices][:, None]
        clip_index = np.arange(count.max(initial=0))[None]
        row_indices: Int[np.ndarray, "B V"] = np.where(
            clip_index < count, self.first[video_indices][:, None] + clip_index, -1
        )
        return row_indices


class FeatureStore:
    """A store opened for reading. Video i is `entries[i]`; failed videos are listed separately.

    Stored videos that are no longer in the catalog stay on disk and are skipped. `catalog` may
    give other labels and splits than those that the store was made with.
    """

    has_checked_rows = False  # against their checksums, since the store was opened

    def __init__(self, store_folder: str | Path, catalog: Catalog | None = None) -> None:
        self.folder = store_folder = Path(store_folder)
        self.manifest = read_manifest(store_folder)
        if catalog is not None:
            self.catalog = catalog
        with closing(Ledger(store_folder / "ledger.sqlite")) as ledger:
            self.all_entries: Sequence[LedgerEntry] = ledger.entries()
            self.num_lost, self.manifest_fingerprint = ledger.num_lost, ledger.manifest
        video_ids = {video.id for video in self.catalog}
        listed_entries = [entry for entry in self.all_entries if entry.id in video_ids]
        self.entries: Sequence[LedgerEntry] = [e for e in listed_entries if e.status == "done"]
        self.failed: Sequence[LedgerEntry] = [e for e in listed_entries if e.status == "failed"]
        self.pending: Sequence[LedgerEntry] = [e for e in listed_entries if e.status == "pending"]

    def __len__(self) -> int:
        return len(self.entries)

    @cached_property
    def catalog(self) -> Catalog:
        """The videos with their labels and splits, as given when the store was last extended."""
        return read_catalog_table(self.folder / "catalog.csv")

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """The ids of the stored videos."""
        return tuple(entry.id for entry in self.entries)

    @cached_property
    def durations(self) -> Float[np.ndarray, " N"]:
        """The duration of each video in seconds."""
        return np.array([entry.duration for entry in self.entries], dtype=np.float64)

    @cached_property
    def random(self) -> ClipTable:
        """The random clips."""
        return self._open_table("random")

    @cached_property
    def regular(self) -> ClipTable:
        """The regular clips."""
        return self._open_table("regular")

    def table(self, kind: Kind) -> ClipTable:
        """The clips of one kind."""
        return self.random if kind == "random" else self.regular

    def _open_table(self, kind: Kind) -> ClipTable:
        row_spans = np.array([entry.rows()[kind] for entry in self.entries], dtype=np.int64)
        first, count = row_spans.reshape(-1, 2).T.copy()
        num_rows = int((first + count).max(initial=0))
        features, boxes, times = (
            open_rows(self.folder / kind / f"{column_name}.npy", num_rows, *column)
            for column_name, column in self.manifest.columns().items()
        )
        return ClipTable(features=features, boxes=boxes, times=times, first=first, count=count)


def read_manifest(store_folder: Path) -> Manifest:
    """The manifest of a store; an error if the folder is not a store."""
    path = store_folder / "manifest.json"
    if not path.is_file():
        problem = "no manifest.json" if store_folder.is_dir() else "no such folder"
        is_run = (store_folder / "store" / path.name).is_file()
        advice = (
            f"its store is {store_folder / 'store'}" if is_run else "run `clipset extract` first"
        )
        raise StoreError(f"{store_folder} is not a feature store ({problem}); {advice}")
    content = read_json(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise StoreError(f"{path} is not a manifest of format {FORMAT}; another clipset made it")
    return build(Manifest, content, str(path))


def check_manifest(store_folder: Path, manifest: Manifest) -> Manifest:
    """The manifest of a store that was made in the requested way; an error if it was not."""
    stored = read_manifest(store_folder)
    if replace(stored, made_by={}) != replace(manifest, made_by={}):
        difference = manifest_difference(stored, manifest)
        raise StoreError(f"{store_folder} was made {difference}; use another folder")
    return stored


def manifest_difference(stored: Manifest, requested: Manifest) -> str:
    """The first difference of two manifests, as the end of `was made …`."""
    if stored.backbone.name != requested.backbone.name:
        return f"with backbone {stored.backbone.name}, not {requested.backbone.name}"
    for field_name in ("backbone", "sampling", "seed", "dtype"):
        old, new = getattr(stored, field_name), getattr(requested, field_name)
        for inner in getattr(old, "__dataclass_fields__", {}):
            if getattr(old, inner) != getattr(new, inner):
                return f"with {field_name} {inner} {getattr(old, inner)}, not {getattr(new, inner)}"
        if old != new:
            return f"with {field_name} {old}, not {new}"
    return "in another way"


def open_store(store_folder: str | Path, catalog: Catalog | None = None) -> FeatureStore:
    """A finished store with at least one video; `catalog` may give other labels and splits."""
    store = FeatureStore(store_folder, catalog)
    if store.num_lost:
        raise StoreError(
            f"{counted(store.num_lost, 'video was', 'videos were')} deleted from the ledger of "
            f"{store_folder}; "
            f"run `clipset extract` again to restore them"
        )
    if store.pending:
        num_videos = len(store) + len(store.failed) + len(store.pending)
        raise StoreError(
            f"{store_folder} is not finished ({len(store.pending)} of {num_videos} videos to go); "
            f"run `clipset extract` again to resume"
        )
    if not store.entries:
        reason = f": {store.failed[0].id}: {store.failed[0].reason}" if store.failed else ""
        raise StoreError(f"{store_folder} has no video that could be read{reason}")
    return store


def open_run_store(run_folder: Path) -> FeatureStore:
    """The store of a run with the labels of its catalog; a task of a run uses that of the whole."""
    own_store, shared_store = run_folder / "store", run_folder.absolute().parent / "store"
    catalog_path = run_folder / "catalog.csv"
    path = shared_store if not own_store.exists() and shared_store.is_dir() else own_store
    return open_store(path, read_catalog_table(catalog_path) if catalog_path.is_file() else None)


def retry_hint(num_failed: int) -> str:
    """One line about videos that failed in an earlier run."""
    videos = counted(num_failed, "video")
    return f"not retried: {videos} that failed before; --retry-failed does it"


def repair_hint(store_folder: Path) -> str:
    """What to do about damaged rows."""
    return (
        f"`clipset verify {store_folder}` lists what is damaged, "
        f"`clipset repair {store_folder}` extracts it again"
    )


def check_any_read(store: FeatureStore) -> None:
    """Raise NothingReadError if every video of a store failed."""
    if store.failed and not store.entries and not store.pending:
        first_failed = store.failed[0]
        counted = f"all {len(store.failed)} videos" if len(store.failed) > 1 else "the only video"
        raise NothingReadError(f"{counted} failed; {first_failed.id}: {first_failed.reason}")


def row_checksum(arrays: Iterable[NDArray[np.generic]]) -> str:
    """A checksum of one video's rows."""
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def count_rows(entries: Iterable[LedgerEntry], kind: Kind) -> int:
    """The end of the last video's rows."""
    return max((sum(e.rows()[kind]) for e in entries if e.status == "done"), default=0)


def store_digest(store_folder: str | Path) -> str:
    """A digest of entries and rows: equal for stores with the same content."""
    store = FeatureStore(store_folder)
    digest = hashlib.blake2b(digest_size=16)
    for entry in store.all_entries:
        content = (entry.ordinal, entry.id, entry.status, entry.reason, entry.checksum)
        digest.update(repr(content).encode())
    for kind in KINDS:
        for column_name in store.manifest.columns():
            digest.update((store.folder / kind / f"{column_name}.npy").read_bytes())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCheck:
    """The ids of the videos that a store has yet to process.

    `pending` were never processed, `changed` were read from another file, and `transient` failed
    for a reason that may be gone.
    """

    pending: frozenset[str]
    changed: frozenset[str]
    transient: frozenset[str]

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to extract."""
        return not (self.pending or self.changed or self.transient)


def check_store(store_folder: Path, manifest: Manifest, catalog: Catalog) -> StoreCheck:
    """What `extract` would do to a store, with the errors that it would raise. Writes nothing."""
    check_manifest(store_folder, manifest)
    entries: Sequence[LedgerEntry] = ()
    if (store_folder / "ledger.sqlite").is_file():
        with closing(Ledger(store_folder / "ledger.sqlite")) as ledger:
            entries = ledger.entries()
    _, changed = compare_files(store_folder, entries, catalog)
    processed = {entry.id for entry in entries if entry.status != "pending"}
    video_ids = frozenset(video.id for video in catalog)
    return StoreCheck(
        pending=video_ids - processed,
        changed=frozenset(entry.id for entry in changed),
        transient=video_ids & {e.id for e in entries if e.status == "failed" and e.transient},
    )


def compare_files(
    store_folder: Path, entries: Sequence[LedgerEntry], sources: Iterable[Video]
) -> tuple[list[LedgerEntry], list[LedgerEntry]]:
    """Compare the files that were read with those that would be read now.

    Returns new entries: of files with the same content in another place or state, and pending ones
    of files (or ends of videos) that have changed. Rows of a deleted file are kept as long as the
    catalog lists the same path.
    """
    videos = {video.id: video for video in sources}
    processed_entries = [e for e in entries if e.id in videos and e.status != "pending"]
    moved: list[LedgerEntry] = []
    changed: list[LedgerEntry] = []
    unverifiable: list[str] = []
    num_files = len(processed_entries) if len(processed_entries) >= SHOW_PROGRESS_FROM else 0
    with bar("comparing files", num_files, "files") as advance:
        for entry in processed_entries:
            advance()
            video, old_state = videos[entry.id], entry.file
            if entry.video_end != video.end:
                changed.append(entry.reset())
            elif old_state is not None and not old_state.is_current(video.path):
                new_state = read_file_state(video.path)
                if new_state is not None and new_state.has_same_content(old_state):
                    moved.append(replace(entry, file=new_state))
                elif new_state is not None:
                    changed.append(entry.reset())
                elif entry.status == "done" and old_state.path != resolve_path(video.path):
                    unverifiable.append(f"{entry.id}: was {old_state.path}, is {video.path}")
    if unverifiable:
        raise StoreError(
            f"{store_folder} has features of {len(unverifiable)} videos that were read from other "
            f"files than the catalog lists, and those cannot be read to compare them "
            f"({unverifiable[0]}); restore the files, or use another folder"
        )
    return moved, changed
