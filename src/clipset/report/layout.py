"""The layout of the video map: vectors to positions on a plane."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from clipset.errors import ReportError

ROUNDING = 1e-6  # vectors that differ by less, relative to their size, are duplicates
DUPLICATE_SPACING = 0.002  # relative to the extent of the map
GOLDEN_ANGLE = 2.399963229728653  # radians; points that turn by it never line up


def map_positions(vectors: Float[np.ndarray, "N R"]) -> Float[np.ndarray, "N 2"]:
    """Positions on a plane by t-SNE, finite for any finite vectors.

    Only distinct vectors are laid out; duplicates lie on a small spiral around the first of them.
    """
    if not np.isfinite(vectors).all():
        raise ReportError("the vectors have values that are not finite; run `clipset embed` again")
    distinct, group = _distinct_rows(vectors.astype(np.float64))
    centers = _embed_distinct(distinct)
    extent = float(np.ptp(centers, axis=0).max()) or 1.0
    positions: Float[np.ndarray, "N 2"] = centers[group] + extent * _duplicate_offsets(group)
    return positions


def _distinct_rows(
    vectors: Float[np.ndarray, "N R"],
) -> tuple[Float[np.ndarray, "D R"], Int[np.ndarray, " N"]]:
    """The rows that differ by more than rounding, in order, and the index of each row's group."""
    tolerance = ROUNDING * float(np.median(np.abs(vectors).max(axis=1)))
    rounded = np.round(vectors / tolerance) if tolerance > 0 else vectors
    _, first, inverse = np.unique(rounded, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return vectors[first[order]], np.argsort(order)[inverse.reshape(-1)]


def _embed_distinct(vectors: Float[np.ndarray, "D R"]) -> Float[np.ndarray, "D 2"]:
    """t-SNE, or the first two principal components of fewer than 12 vectors."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    count, dim = vectors.shape
    if count < 3:
        return np.stack([np.arange(count), np.zeros(count)], axis=1)
    scaled = vectors / np.abs(vectors).max()  # no square overflows
    centred = scaled - scaled.mean(axis=0)
    centred /= np.abs(centred).max()  # or underflows
    reduced = PCA(min(50, count, dim), random_state=0).fit_transform(centred)
    if reduced.shape[1] < 2:
        reduced = np.pad(reduced, ((0, 0), (0, 1)))
    if count < 12:
        axes: Float[np.ndarray, "D 2"] = reduced[:, :2]
        return axes
    positions: Float[np.ndarray, "D 2"] = TSNE(
        perplexity=min(30.0, (count - 1) / 3), init="pca", random_state=0
    ).fit_transform(reduced)
    return positions.astype(np.float64)


def _duplicate_offsets(group: Int[np.ndarray, " N"]) -> Float[np.ndarray, "N 2"]:
    """Offset of each row from the first of its group: a spiral around it."""
    order = np.argsort(group, kind="stable")
    _, starts, counts = np.unique(group[order], return_index=True, return_counts=True)
    rank = np.empty(len(group), dtype=np.int64)
    rank[order] = np.arange(len(group)) - np.repeat(starts, counts)
    angle, radius = rank * GOLDEN_ANGLE, DUPLICATE_SPACING * np.sqrt(rank)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
