"""The file of an approximate index, beside the vectors: opened, updated or built.

It names the vectors that it was made of by their checksum. If they have changed since, the codes
of videos whose vectors are the same stay, and the others are encoded.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int, UInt8

from clipset.progress import log
from clipset.representation.derived import read_derived, write_derived
from clipset.retrieval.approximate import (
    ApproximateIndex,
    IndexArrays,
    SearchSettings,
    build_index,
    encode_rows,
)
from clipset.retrieval.rows import VectorRows

FORMAT = "1"
KEY_BYTES = 16
MAX_NEW_FRACTION = 0.3  # of vectors that are added to an index; with more it is built anew
ARRAYS = ("components", "offset", "centroids", "ranges", "codes")


@dataclass(frozen=True, eq=False, kw_only=True)
class IndexedVideos:
    """The vectors of videos: `valid` says which rows of each video are not padding."""

    rows: VectorRows
    valid: Bool[np.ndarray, "N V"]
    source: str
    """the checksum of the file of vectors"""

    @property
    def row_indices(self) -> Int[np.ndarray, " M"]:
        """The rows that are indexed."""
        return np.flatnonzero(self.valid)

    @cached_property
    def keys(self) -> UInt8[np.ndarray, "N B"]:
        """The hash of the vectors of each video."""
        num_videos, num_rows = self.valid.shape
        table, keys = self.rows.rows, np.zeros((num_videos, KEY_BYTES), np.uint8)
        for index, count in enumerate(self.valid.sum(axis=1).tolist()):
            own = np.ascontiguousarray(table[index * num_rows : index * num_rows + count])
            digest = hashlib.blake2b(own.data, digest_size=KEY_BYTES).digest()
            keys[index] = np.frombuffer(digest, np.uint8)
        return keys


@dataclass(frozen=True, eq=False, kw_only=True)
class StoredIndex:
    """The content of a file: the keys of its videos, and how many vectors each has."""

    arrays: IndexArrays
    keys: UInt8[np.ndarray, "N B"]
    counts: Int[np.ndarray, " N"]
    settings: SearchSettings
    source: str


def open_approximate(path: Path, videos: IndexedVideos) -> ApproximateIndex | None:
    """The index in a file, brought up to date; None if its recall is too low to be used.

    An index that is new or has changed is written to the file.
    """
    stored = read_index(path)
    if stored is not None and stored.source == videos.source:
        with suppress(ValueError, RuntimeError):  # codes of other vectors
            current = ApproximateIndex(stored.arrays, videos.row_indices, stored.settings)
            return current if current.is_usable else None
    index = None if stored is None else update_index(stored, videos)
    if index is None:
        log(f"indexing {len(videos.row_indices):,} vectors for search; this is done once")
        index = build_index(videos.rows, videos.row_indices)
    write_index(path, index, videos)
    return index if index.is_usable else None


def update_index(stored: StoredIndex, videos: IndexedVideos) -> ApproximateIndex | None:
    """The index with the videos as they are now; None if it has to be built anew.

    Its recall is measured again.
    """
    if stored.arrays.components.shape[1] != videos.rows.rows.shape[1]:
        return None
    counts = videos.valid.sum(axis=1)
    ends = np.cumsum(stored.counts)
    first_codes = {
        key.tobytes(): (int(end - count), int(count))
        for key, count, end in zip(stored.keys, stored.counts, ends, strict=True)
    }
    known = [first_codes.get(key.tobytes(), (0, 0)) for key in videos.keys]
    is_known = np.array([own == count for (_, own), count in zip(known, counts, strict=True)])
    row_is_known = np.repeat(is_known, counts)
    if (~row_is_known).sum() > MAX_NEW_FRACTION * len(row_is_known):
        return None
    log(f"adding {(~row_is_known).sum():,} vectors to the index of search")
    codes = np.zeros((len(row_is_known), stored.arrays.codes.shape[1]), np.uint8)
    spans = [np.arange(first, first + own) for first, own in known]
    kept = [span for span, is_kept in zip(spans, is_known, strict=True) if is_kept]
    codes[row_is_known] = stored.arrays.codes[np.concatenate(kept)]
    new_rows = videos.row_indices[~row_is_known]
    try:
        codes[~row_is_known] = encode_rows(stored.arrays, videos.rows, new_rows)
        index = ApproximateIndex(replace(stored.arrays, codes=codes), videos.row_indices)
    except (ValueError, RuntimeError):  # a file of other parts than ours
        return None
    index.select_settings(videos.rows)
    return index if index.is_usable else None


def read_index(path: Path) -> StoredIndex | None:
    """The content of an intact file of this format; None if there is no such file."""
    kept = read_derived(path)
    if kept is None or kept[1].get("format") != FORMAT:
        return None
    arrays, facts = kept
    try:
        stored = StoredIndex(
            arrays=IndexArrays(**{name: arrays[name] for name in ARRAYS}),
            keys=arrays["keys"],
            counts=arrays["counts"],
            settings=SearchSettings(
                num_probes=max(int(facts["num_probes"]), 1),
                candidate_factor=max(int(facts["candidate_factor"]), 1),
                recall=float(facts["recall"]),
            ),
            source=facts["source"],
        )
        if stored.counts.min(initial=0) < 0 or stored.counts.sum() != len(stored.arrays.codes):
            raise ValueError(f"{len(stored.arrays.codes)} codes for {stored.counts.sum()} vectors")
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        log(f"{path.name} does not fit ({error}); the index is built again")
        return None
    return stored


def write_index(path: Path, index: ApproximateIndex, videos: IndexedVideos) -> None:
    """Write an index; a folder that cannot be written is no error."""
    arrays = {name: getattr(index.arrays, name) for name in ARRAYS}
    arrays |= {"keys": videos.keys, "counts": videos.valid.sum(axis=1).astype(np.int64)}
    facts = {name: repr(value) for name, value in asdict(index.settings).items()}
    write_derived(path, arrays, {"format": FORMAT, "source": videos.source, **facts})
