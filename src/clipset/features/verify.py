"""Checks a store against its checksums, and its files against each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clipset.data.catalog import Video
from clipset.data.file_state import read_file_state, resolve_path
from clipset.features.ledger import KINDS, Kind, LedgerEntry
from clipset.features.store import IMPORTED, FeatureStore, count_rows, row_checksum
from clipset.progress import bar
from clipset.row_files import HEADER_BYTES, has_header, open_all_rows

StoreProblem = tuple[str, str]
"""The id of a video or the name of a file, and what is wrong with it."""


def verify_store(folder: str | Path, *, videos: bool = False) -> list[StoreProblem]:
    """All problems of a store; with `videos`, also the videos whose files have changed.

    File lengths are compared only if no video is pending.
    """
    store = FeatureStore(folder)
    done = [entry for entry in store.all_entries if entry.status == "done"]
    problems = [*_compare_parts(store), *find_overlaps(done), *find_damage(store, done)]
    if videos:
        problems += _find_changed_files(store.entries, store.catalog)
    return problems


def _compare_parts(store: FeatureStore) -> Iterator[StoreProblem]:
    """Compare manifest, ledger and catalog."""
    if store.num_lost:
        yield "ledger.sqlite", f"{store.num_lost} videos were deleted from it"
    if store.manifest.fingerprint != store.manifest_fingerprint:
        yield "manifest.json", "is not the one that the rows were made with"
    entries = {entry.id: entry for entry in store.all_entries}
    imported = store.manifest.backbone.name == IMPORTED  # its files are not the catalog's
    for video in store.catalog:
        entry = entries.get(video.id)
        if entry is None:
            yield video.id, "is in catalog.csv, but not in the ledger"
        elif entry.file is not None and not imported:
            if entry.file.path != resolve_path(video.path):
                yield video.id, f"was read from {entry.file.path}, catalog.csv says {video.path}"
            elif entry.video_end != video.end:
                yield video.id, f"was read up to {entry.video_end} s, catalog.csv says {video.end}"


def find_overlaps(done: Sequence[LedgerEntry]) -> Iterator[StoreProblem]:
    """Rows that belong to two videos, or have impossible indices."""
    for kind in KINDS:
        spans = [(first, n, e.id) for e in done for k, first, n in e.rows() if k == kind]
        end, owner = 0, ""
        for first, count, id in sorted(spans):
            if first < 0 or count < 0:
                yield id, f"its {kind} rows are impossible: {count} from {first} on"
            elif first < end and count:
                yield id, f"its {kind} rows are also those of {owner}"
            if first + count > end:
                end, owner = first + count, id


def find_damage(store: FeatureStore, done: Sequence[LedgerEntry]) -> list[StoreProblem]:
    """Rows and headers that are not the ones that were written."""
    columns = store.manifest.columns()
    paths = {
        (kind, name): store.folder / kind / f"{name}.npy" for kind in KINDS for name in columns
    }
    arrays = {key: open_all_rows(path, *columns[key[1]]) for key, path in paths.items()}
    problems = [(entry.id, damage) for entry in done if (damage := _damage(entry, arrays))]
    if any(entry.status == "pending" for entry in store.all_entries):
        return problems
    for (kind, name), path in paths.items():
        rows, (shape, dtype) = count_rows(done, kind), columns[name]
        size = HEADER_BYTES + rows * int(np.prod(shape)) * np.dtype(dtype).itemsize
        if not has_header(path, rows, shape, dtype):
            problems.append((f"{kind}/{name}.npy", f"its header does not state {rows} rows"))
        elif path.stat().st_size > size:
            problems.append((f"{kind}/{name}.npy", "is longer than its rows"))
    return problems


def _damage(
    entry: LedgerEntry, arrays: Mapping[tuple[Kind, str], NDArray[np.generic]]
) -> str | None:
    parts = []
    for kind, first, count in entry.rows():
        for name in (name for k, name in arrays if k == kind):
            part = arrays[kind, name][first : first + count]
            if len(part) < count:
                return f"{count - len(part)} of its {count} rows in {kind}/{name}.npy are missing"
            parts.append(part)
    if row_checksum(parts) != entry.checksum:
        return "its rows are not the ones that were written"
    return None


def _find_changed_files(
    entries: Sequence[LedgerEntry], videos: Iterable[Video]
) -> list[StoreProblem]:
    paths = {video.id: video.path for video in videos}
    problems = []
    with bar("comparing files", len(entries), "files") as advance:
        for entry in entries:
            now = read_file_state(paths[entry.id]) if entry.id in paths else None
            if now is None:
                problems.append((entry.id, "its file cannot be read"))
            elif entry.file is not None and not now.has_same_content(entry.file):
                problems.append((entry.id, "its file has changed since it was read"))
            advance()
    return problems
