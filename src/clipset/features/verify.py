"""Checks a store against its checksums, and its files against each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clipset.data.file_state import read_file_state, resolve_path
from clipset.errors import StoreError
from clipset.features.ledger import KINDS, Kind, LedgerEntry
from clipset.features.store import (
    IMPORTED,
    FeatureStore,
    count_rows,
    repair_hint,
    row_checksum,
)
from clipset.progress import bar
from clipset.row_files import HEADER_BYTES, has_header, open_all_rows
from clipset.text import counted

StoreProblem = tuple[str, str]
"""The id of a video or the name of a file, and what is wrong with it."""
StoreArrays = dict[tuple[Kind, str], NDArray[np.generic]]
"""Rows by the kind of clips and the name of the column."""


def verify_store(folder: str | Path, *, videos: bool = False) -> list[StoreProblem]:
    """All problems of a store; with `videos`, also the videos whose files have changed.

    File lengths are compared only if no video is pending.
    """
    store = FeatureStore(folder)
    done = [entry for entry in store.all_entries if entry.status == "done"]
    problems = [*_compare_parts(store), *find_overlaps(done), *find_damaged_rows(store, done)]
    if all(entry.status != "pending" for entry in store.all_entries):
        problems += _find_damaged_files(store, done)
    if videos:
        problems += _find_changed_videos(store)
    return problems


def _compare_parts(store: FeatureStore) -> Iterator[StoreProblem]:
    """Compare manifest, ledger and catalog."""
    if store.num_lost:
        num_lost = counted(store.num_lost, "video was", "videos were")
        yield "ledger.sqlite", f"{num_lost} deleted from it"
    if store.manifest.fingerprint != store.manifest_fingerprint:
        yield "manifest.json", "is not the one that the rows were made with"
    entries = {entry.id: entry for entry in store.all_entries}
    is_imported = store.manifest.backbone.name == IMPORTED  # its files are not the catalog's
    for video in store.catalog:
        entry = entries.get(video.id)
        if entry is None:
            yield video.id, "is in catalog.csv, but not in the ledger"
        elif entry.file is not None and not is_imported:
            if entry.file.path != resolve_path(video.path):
                yield video.id, f"was read from {entry.file.path}, catalog.csv says {video.path}"
            elif entry.video_end != video.end:
                yield video.id, f"was read up to {entry.video_end} s, catalog.csv says {video.end}"


def find_overlaps(done: Sequence[LedgerEntry]) -> Iterator[StoreProblem]:
    """Rows that belong to two videos, or have impossible indices."""
    for kind in KINDS:
        end, owner = 0, ""
        for first_row, num_rows, video_id in sorted((*e.rows()[kind], e.id) for e in done):
            if first_row < 0 or num_rows < 0:
                yield video_id, f"its {kind} rows are impossible: {num_rows} from {first_row} on"
            elif first_row < end and num_rows:
                yield video_id, f"its {kind} rows are also those of {owner}"
            if first_row + num_rows > end:
                end, owner = first_row + num_rows, video_id


def find_damaged_rows(store: FeatureStore, done: Sequence[LedgerEntry]) -> Iterator[StoreProblem]:
    """Videos whose rows are missing or not the ones that were written."""
    arrays = open_arrays(store)
    for entry in done:
        video_rows = rows_of(entry, arrays)
        for (kind, column_name), column_rows in video_rows.items():
            _, num_rows = entry.rows()[kind]
            if len(column_rows) < num_rows:
                missing_rows = f"{num_rows - len(column_rows)} of its {num_rows} rows"
                yield entry.id, f"{missing_rows} in {kind}/{column_name}.npy are missing"
                break
        else:
            if row_checksum(video_rows.values()) != entry.checksum:
                yield entry.id, "its rows are not the ones that were written"


def check_rows(store: FeatureStore) -> None:
    """Refuse damaged rows, before anything is computed from them; a store is checked once."""
    if store.has_checked_rows:
        return
    if damaged := list(find_damaged_rows(store, store.entries)):
        [(video_id, problem), *_] = damaged
        raise StoreError(
            f"{counted(len(damaged), 'video')} of {store.folder} cannot be used ({video_id}: "
            f"{problem}); {repair_hint(store.folder)}"
        )
    store.has_checked_rows = True


def _find_damaged_files(store: FeatureStore, done: Sequence[LedgerEntry]) -> Iterator[StoreProblem]:
    """Files whose header or length is not that of their rows."""
    for kind in KINDS:
        num_rows = count_rows(done, kind)
        for column_name, (shape, dtype) in store.manifest.columns().items():
            column_path = store.folder / kind / f"{column_name}.npy"
            num_bytes = HEADER_BYTES + num_rows * int(np.prod(shape)) * np.dtype(dtype).itemsize
            if not has_header(column_path, num_rows, shape, dtype):
                yield f"{kind}/{column_name}.npy", f"its header does not state {num_rows} rows"
            elif column_path.stat().st_size > num_bytes:
                yield f"{kind}/{column_name}.npy", "is longer than its rows"


def _find_changed_videos(store: FeatureStore) -> Iterator[StoreProblem]:
    video_paths = {video.id: video.path for video in store.catalog}
    with bar("comparing files", len(store), "files") as advance:
        for entry in store.entries:
            file_state = read_file_state(video_paths[entry.id])
            if file_state is None:
                yield entry.id, "its file cannot be read"
            elif entry.file is not None and not file_state.has_same_content(entry.file):
                yield entry.id, "its file has changed since it was read"
            advance()


def open_arrays(store: FeatureStore) -> StoreArrays:
    """All whole rows of a store's files, damaged or not."""
    return {
        (kind, column_name): open_all_rows(store.folder / kind / f"{column_name}.npy", shape, dtype)
        for kind in KINDS
        for column_name, (shape, dtype) in store.manifest.columns().items()
    }


def rows_of(entry: LedgerEntry, arrays: StoreArrays) -> StoreArrays:
    """The rows of one video."""
    video_rows: StoreArrays = {}
    for (kind, column_name), array in arrays.items():
        first_row, num_rows = entry.rows()[kind]
        video_rows[kind, column_name] = array[first_row : first_row + num_rows]
    return video_rows
