"""The video map for the page's script: positions, thumbnails, and the legend of the colours."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from clipset.report.content import MapPoint
from clipset.report.wording import Number, format_number

NO_LABEL = "no label"
NO_NUMBER = "no number"
NUM_RANGES = 5  # of the targets, each with about as many videos; report.css has a colour for each


@dataclass(frozen=True, slots=True, kw_only=True)
class Legend:
    """Names of the colours, their counts, and the name's index of every point.

    `unlabelled` is the index of the points without a name, -1 if all have one. `ordered`: the names
    are ranges of numbers from small to large, not labels.
    """

    names: tuple[str, ...]
    counts: tuple[int, ...]
    indices: tuple[int, ...]
    unlabelled: int
    ordered: bool = False

    @property
    def rows(self) -> list[tuple[str, int]]:
        """Names with counts."""
        return list(zip(self.names, self.counts, strict=True))


def make_legend(points: Sequence[MapPoint]) -> Legend:
    """Sorted labels, or ranges of the targets if no video has a label."""
    labels = sorted({point.label for point in points if point.label is not None})
    targets = [point.target for point in points if point.target is not None]
    if labels or not targets:
        label_index = {label: index for index, label in enumerate(labels)}
        indices = [None if p.label is None else label_index[p.label] for p in points]
        return _count_names(labels, indices, NO_LABEL)
    edges = range_edges(targets)
    indices = [None if p.target is None else _range_index(p.target, edges) for p in points]
    names = [
        _range_name([t for t in targets if _range_index(t, edges) == i]) for i in range(len(edges))
    ]
    return _count_names(names, indices, NO_NUMBER, ordered=True)


def range_edges(targets: Sequence[Number]) -> list[float]:
    """The lower edge of each range; no range is empty."""
    values = np.unique(np.array(targets, dtype=np.float64))
    if len(values) <= NUM_RANGES:
        return [float(value) for value in values]
    quantiles = np.arange(NUM_RANGES) / NUM_RANGES
    return [float(edge) for edge in np.unique(np.quantile(targets, quantiles, method="higher"))]


def _range_index(target: Number, edges: Sequence[float]) -> int:
    return int(np.searchsorted(edges, target, side="right")) - 1


def _range_name(targets: Sequence[Number]) -> str:
    low, high = format_number(min(targets)), format_number(max(targets))
    return low if low == high else f"{low} to {high}"


def _count_names(
    names: Sequence[str], indices: Sequence[int | None], missing: str, *, ordered: bool = False
) -> Legend:
    unlabelled = len(names) if None in indices else -1
    name_indices = tuple(unlabelled if index is None else index for index in indices)
    counter = Counter(name_indices)
    return Legend(
        names=(*names, missing) if unlabelled >= 0 else tuple(names),
        counts=tuple(counter[index] for index in range(len(names) + (unlabelled >= 0))),
        indices=name_indices,
        unlabelled=unlabelled,
        ordered=ordered,
    )


def list_splits(points: Sequence[MapPoint]) -> list[str]:
    """The splits on the map, sorted."""
    return sorted({point.split for point in points if point.split is not None})


def map_data(points: Sequence[MapPoint], legend: Legend) -> dict[str, Any]:
    """The points in columns; labels and splits are indices."""
    splits = {split: index for index, split in enumerate(list_splits(points))}
    positions = _fit_square([(point.x, point.y) for point in points])
    return {
        "ids": [point.video_id for point in points],
        "x": [x for x, _ in positions],
        "y": [y for _, y in positions],
        "label": legend.indices,
        "split": [-1 if p.split is None else splits[p.split] for p in points],
        "labels": legend.names,
        "targets": [None if p.target is None else format_number(p.target) for p in points]
        if legend.ordered
        else None,
        "unlabelled": legend.unlabelled,
        "splits": list(splits),
        "thumbnails": [base64.b64encode(p.thumbnail or b"").decode("ascii") for p in points],
    }


def _fit_square(positions: Sequence[tuple[Number, Number]]) -> list[tuple[float, float]]:
    """Positions shifted to (0, 0) and scaled uniformly to a longest side of 1."""
    if not positions:
        return []
    xs, ys = zip(*positions, strict=True)
    left, bottom = min(xs), min(ys)
    side = max(max(xs) - left, max(ys) - bottom) or 1
    return [(round((x - left) / side, 5), round((y - bottom) / side, 5)) for x, y in positions]
