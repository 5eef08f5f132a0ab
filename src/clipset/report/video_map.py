"""The map of the videos: positions by t-SNE, the legend of the colours, data for the script."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from clipset.errors import ReportError
from clipset.report.content import MapPoint
from clipset.report.wording import Number, format_number

DUPLICATE_TOLERANCE = 1e-6  # vectors that differ by less, relative to their size, are duplicates
DUPLICATE_SPACING = 0.002  # relative to the extent of the map
GOLDEN_ANGLE = 2.399963229728653  # radians; points that turn by it never line up
MIN_FITTED = 12  # with fewer distinct vectors, principal components
MAX_FITTED = 3000  # with more vectors, t-SNE of this many; the others go beside their nearest
NUM_NEAREST = 5
CHUNK_SIZE = 4096  # vectors that are placed at a time
NUM_RANGES = 5  # of the targets, each with about as many videos; report.css has a colour for each


def map_layout(vectors: Float[np.ndarray, "N R"]) -> tuple[Float[np.ndarray, "N 2"], str]:
    """Positions for a page (float32, the longest side of 1, shifted to 0) and the method's name."""
    positions = map_positions(vectors)
    if len(positions):
        positions = positions - positions.min(axis=0)
        positions /= float(positions.max()) or 1.0
    return positions.astype(np.float32), "t-SNE" if len(vectors) >= MIN_FITTED else "PCA"


def map_positions(vectors: Float[np.ndarray, "N R"]) -> Float[np.ndarray, "N 2"]:
    """Positions on a plane by t-SNE, finite for any finite vectors.

    Only distinct vectors are laid out; duplicates lie on a small spiral around the first of them.
    """
    if not np.isfinite(vectors).all():
        raise ReportError("the vectors have values that are not finite; run `clipset run` again")
    if len(vectors) > MAX_FITTED:
        return _place_beside_sample(vectors)
    distinct, group_index = _distinct_rows(vectors.astype(np.float64))
    centers = _embed_distinct(distinct)
    map_extent = float(np.ptp(centers, axis=0).max()) or 1.0
    group_order = np.argsort(group_index, kind="stable")
    _, starts, counts = np.unique(group_index[group_order], return_index=True, return_counts=True)
    rank_in_group = np.empty(len(group_index), dtype=np.int64)  # of each row within its group
    rank_in_group[group_order] = np.arange(len(group_index)) - np.repeat(starts, counts)
    radius = map_extent * DUPLICATE_SPACING * np.sqrt(rank_in_group)
    positions: Float[np.ndarray, "N 2"] = centers[group_index] + _on_spiral(rank_in_group, radius)
    return positions


def _place_beside_sample(vectors: Float[np.ndarray, "N R"]) -> Float[np.ndarray, "N 2"]:
    """t-SNE of evenly spaced vectors; each other one between the nearest of them.

    Distances are those of principal components of the sample.
    """
    from sklearn.decomposition import PCA

    sample_index = np.linspace(0, len(vectors) - 1, MAX_FITTED).round().astype(np.int64)
    sample = vectors[sample_index].astype(np.float64)
    sample_positions = map_positions(sample)
    vector_scale = float(np.abs(sample).max()) or 1.0
    components = PCA(min(50, sample.shape[1]), random_state=0).fit(sample / vector_scale)
    bank = components.transform(sample / vector_scale).astype(np.float32)
    bank_norms = (bank**2).sum(axis=1)
    spread = DUPLICATE_SPACING * float(np.ptp(sample_positions, axis=0).max())
    positions = np.empty((len(vectors), 2))
    for first_row in range(0, len(vectors), CHUNK_SIZE):
        chunk = vectors[first_row : first_row + CHUNK_SIZE].astype(np.float64) / vector_scale
        reduced = components.transform(chunk).astype(np.float32)
        distances = bank_norms - 2 * reduced @ bank.T + (reduced**2).sum(axis=1, keepdims=True)
        nearest = np.argpartition(distances, NUM_NEAREST, axis=1)[:, :NUM_NEAREST]
        near_distances = np.maximum(np.take_along_axis(distances, nearest, axis=1), 1e-12)
        near_weights = (near_distances.min(axis=1, keepdims=True) / near_distances)[..., None]
        means = (near_weights * sample_positions[nearest]).sum(axis=1) / near_weights.sum(axis=1)
        rows = np.arange(first_row, first_row + len(chunk))
        positions[rows] = means + _on_spiral(rows, spread)  # no two on one spot
    positions[sample_index] = sample_positions
    return positions


def _on_spiral(
    turns: Int[np.ndarray, " N"], radius: Float[np.ndarray, " N"] | float
) -> Float[np.ndarray, "N 2"]:
    """Points at a radius, each turned on by the golden angle."""
    angle = turns * GOLDEN_ANGLE
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)


def _distinct_rows(
    vectors: Float[np.ndarray, "N R"],
) -> tuple[Float[np.ndarray, "D R"], Int[np.ndarray, " N"]]:
    """The rows that differ by more than rounding, in order, and the index of each row's group."""
    tolerance = DUPLICATE_TOLERANCE * float(np.median(np.abs(vectors).max(axis=1)))
    rounded_rows = np.round(vectors / tolerance) if tolerance > 0 else vectors
    _, first_rows, inverse_index = np.unique(
        rounded_rows, axis=0, return_index=True, return_inverse=True
    )
    first_order = np.argsort(first_rows)
    return vectors[first_rows[first_order]], np.argsort(first_order)[inverse_index.reshape(-1)]


def _embed_distinct(vectors: Float[np.ndarray, "D R"]) -> Float[np.ndarray, "D 2"]:
    """t-SNE, or the first two principal components of very few vectors."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    num_vectors, dim = vectors.shape
    if num_vectors < 3:
        return np.stack([np.arange(num_vectors), np.zeros(num_vectors)], axis=1)
    scaled = vectors / np.abs(vectors).max()  # no square overflows
    centred = scaled - scaled.mean(axis=0)
    centred /= np.abs(centred).max()  # or underflows
    positions: Float[np.ndarray, "D _"] = PCA(
        min(50, num_vectors, dim), random_state=0
    ).fit_transform(centred)
    if positions.shape[1] < 2:
        positions = np.pad(positions, ((0, 0), (0, 1)))
    if num_vectors >= MIN_FITTED:
        perplexity = min(30.0, (num_vectors - 1) / 3)
        positions = TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(positions)
    return positions[:, :2].astype(np.float64)


def map_data(points: Sequence[MapPoint]) -> dict[str, Any]:
    """The points in columns for the page's script, with the names of their colours.

    Colours are sorted labels, or (`ordered`) ranges of the targets if no video has a label.
    `label` and `split` are indices; `unlabelled` is that of points without a name, -1 if all have
    one. Positions are shifted to (0, 0) and scaled uniformly to a longest side of 1.
    """
    targets = [point.target for point in points]
    labels = sorted({point.label for point in points if point.label is not None})
    splits = sorted({point.split for point in points if point.split is not None})
    ordered = not labels and any(target is not None for target in targets)
    if ordered:
        names, indices = _target_ranges(targets)
    else:
        index_of: dict[str | None, int] = {label: index for index, label in enumerate(labels)}
        names, indices = labels, [index_of.get(point.label, -1) for point in points]
    unlabelled = -1
    if -1 in indices:
        unlabelled = len(names)
        names = [*names, "no number" if ordered else "no label"]
        indices = [unlabelled if index == -1 else index for index in indices]
    positions = np.array([(p.x, p.y) for p in points], dtype=np.float64).reshape(-1, 2)
    positions -= positions.min(axis=0, initial=np.inf)
    positions /= float(positions.max(initial=0)) or 1.0
    x, y = positions.round(5).T.tolist()
    target_texts = [None if target is None else format_number(target) for target in targets]
    return {
        "ids": [point.video_id for point in points],
        "x": x,
        "y": y,
        "label": indices,
        "labels": names,
        "counts": np.bincount(np.array(indices, dtype=np.int64), minlength=len(names)).tolist(),
        "ordered": ordered,
        "unlabelled": unlabelled,
        "targets": target_texts if ordered else None,
        "split": [-1 if point.split is None else splits.index(point.split) for point in points],
        "splits": splits,
        "thumbnails": [base64.b64encode(p.thumbnail or b"").decode("ascii") for p in points],
    }


def _target_ranges(targets: Sequence[Number | None]) -> tuple[list[str], list[int]]:
    """Names of ranges with about as many targets each, and the range of each target (-1: none)."""
    numbers = np.array(targets, dtype=np.float64)  # NaN: none
    known = numbers[~np.isnan(numbers)]
    lower_edges = np.unique(known)
    if len(lower_edges) > NUM_RANGES:
        quantiles = np.arange(NUM_RANGES) / NUM_RANGES
        lower_edges = np.unique(np.quantile(known, quantiles, method="higher"))
    indices = np.searchsorted(lower_edges, numbers, side="right") - 1
    indices[np.isnan(numbers)] = -1
    range_names = []
    for index in range(len(lower_edges)):
        own = numbers[indices == index]
        low, high = format_number(float(own.min())), format_number(float(own.max()))
        range_names.append(low if low == high else f"{low} to {high}")
    return range_names, indices.tolist()
