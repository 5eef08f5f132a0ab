"""The vectors that are learned from: the principal components of a run's video vectors."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from clipset.representation.derived import read_derived, vectors_checksum, write_derived

NUM_COMPONENTS = 512
SAMPLE_SIZE = 2048  # videos that the components are computed from
BLOCK_SIZE = 1024  # videos that are read at once
MIN_VARIANCE = 1e-7  # of a component, relative to the largest
CACHE_NAME = "components.safetensors"


@dataclass(frozen=True, kw_only=True)
class CompactVectors:
    """`values` are `(vectors - mean) @ basis`, with a length of about 1."""

    values: Float[np.ndarray, "N K"]
    mean: Float[np.ndarray, " R"]
    basis: Float[np.ndarray, "R K"]

    def __len__(self) -> int:
        return len(self.values)


def compute_components(vectors: Float[np.ndarray, "N R"]) -> CompactVectors:
    """The principal components of a sample, and the coordinates of all videos in them."""
    rng = np.random.default_rng(0)
    size = min(len(vectors), SAMPLE_SIZE)
    sample = vectors[np.sort(rng.choice(len(vectors), size, replace=False))]
    mean = sample.mean(axis=0)
    sample = sample - mean
    variances, directions = np.linalg.eigh((sample @ sample.T).astype(np.float64))
    used = np.flatnonzero(variances > MIN_VARIANCE * max(variances[-1], 1e-12))
    used = used[::-1][:NUM_COMPONENTS]
    basis = sample.T @ (directions[:, used] / np.sqrt(variances[used])).astype(np.float32)
    basis /= max(np.sqrt(variances[used].sum() / size), 1e-12)
    values = np.empty((len(vectors), basis.shape[1]), np.float32)
    for low in range(0, len(vectors), BLOCK_SIZE):
        values[low : low + BLOCK_SIZE] = (vectors[low : low + BLOCK_SIZE] - mean) @ basis
    return CompactVectors(values=values, mean=mean, basis=basis)


def open_components(
    vectors: Float[np.ndarray, "N R"], vectors_folder: Path, folder: Path
) -> CompactVectors:
    """The components of the vectors in a folder, computed once and kept in another one."""
    path, source = folder / CACHE_NAME, vectors_checksum(vectors_folder)
    kept = read_derived(path)
    if kept is not None and kept[1].get("source") == source:
        with suppress(TypeError):  # other arrays than ours
            return CompactVectors(**kept[0])
    components = compute_components(vectors)
    write_derived(path, vars(components), {"source": source})
    return components
