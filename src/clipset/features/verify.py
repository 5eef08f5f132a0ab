"""Whether a store is as it was written, and its files agree with each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clipset.data.file_state import resolve_path
from clipset.features.arrays import HEADER_BYTES, has_header, open_found_rows
from clipset.features.file_changes import find_changed_files
from clipset.features.ledger import KINDS, Entry, Kind
from clipset.features.store import IMPORTED, FeatureStore, checksum_of, count_rows

Problem = tuple[str, str]
"""The id of a video or the name of a file, and what is wrong with it."""


def verify_store(folder: Path, *, videos: bool = False) -> list[Problem]:
    """What is not as it was written; with `videos`, also which videos' files have changed.

    The lengths of files are compared only once no video is pending.
    """
    store = FeatureStore(folder)
    done = [entry for entry in store.everything if entry.status == "done"]
    problems = [*_compare_parts(store), *find_overlaps(done), *find_damage(store, done)]
    if videos:
        problems += find_changed_files(store.entries, store.catalog)
    return problems


def _compare_parts(store: FeatureStore) -> Iterator[Problem]:
    """Manifest, ledger and catalog against each other."""
    if store.lost:
        yield "ledger.sqlite", f"{store.lost} videos were deleted from it"
    if store.manifest.fingerprint != store.manifest_fingerprint:
        yield "manifest.json", "is not the one that the rows were made with"
    entries = {entry.id: entry for entry in store.everything}
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


def find_overlaps(done: Sequence[Entry]) -> Iterator[Problem]:
    """Rows that two videos claim, or that cannot be."""
    for kind in KINDS:
        claims = [
            (first, count, entry.id)
            for entry in done
            for each, first, count in entry.rows()
            if each == kind
        ]
        end, owner = 0, ""
        for first, count, id in sorted(claims):
            if first < 0 or count < 0:
                yield id, f"its {kind} rows cannot be: {count} from {first} on"
            elif first < end and count:
                yield id, f"its {kind} rows are also those of {owner}"
            if first + count > end:
                end, owner = first + count, id


def find_damage(store: FeatureStore, done: Sequence[Entry]) -> list[Problem]:
    """Rows and headers that are not the ones that were written."""
    columns = store.manifest.columns()
    paths = {
        (kind, name): store.folder / kind / f"{name}.npy" for kind in KINDS for name in columns
    }
    arrays = {key: open_found_rows(path, *columns[key[1]]) for key, path in paths.items()}
    problems = [(entry.id, damage) for entry in done if (damage := _damage(entry, arrays))]
    if any(entry.status == "pending" for entry in store.everything):
        return problems
    for (kind, name), path in paths.items():
        rows, (shape, dtype) = count_rows(done, kind), columns[name]
        size = HEADER_BYTES + rows * int(np.prod(shape)) * np.dtype(dtype).itemsize
        if not has_header(path, rows, shape, dtype):
            problems.append((f"{kind}/{name}.npy", f"does not say that it has {rows} rows"))
        elif path.stat().st_size > size:
            problems.append((f"{kind}/{name}.npy", "is longer than its rows"))
    return problems


def _damage(entry: Entry, arrays: Mapping[tuple[Kind, str], NDArray[np.generic]]) -> str | None:
    parts = []
    for kind, first, count in entry.rows():
        for name in (name for each, name in arrays if each == kind):
            part = arrays[kind, name][first : first + count]
            if len(part) < count:
                return f"{count - len(part)} of its {count} rows in {kind}/{name}.npy are missing"
            parts.append(part)
    if checksum_of(parts) != entry.checksum:
        return "its rows are not the ones that were written"
    return None
