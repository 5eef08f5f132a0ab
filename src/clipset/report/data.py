"""What the page's scripts read: plain values that become JSON inside the page."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from jaxtyping import Float

from clipset.report.content import MapPoint
from clipset.report.legend import Legend
from clipset.report.records import Confusion, Panel, ProbeRecord
from clipset.report.similarity import ClassOrder, most_mixed, order_classes
from clipset.report.wording import Number, figure, percent_sign


def map_splits(points: Sequence[MapPoint]) -> list[str]:
    """The splits on the map, sorted."""
    return sorted({point.split for point in points if point.split is not None})


def map_data(points: Sequence[MapPoint], legend: Legend) -> dict[str, Any]:
    """The map in columns; a label or split is its number; `numbers` are those to predict."""
    splits = {split: place for place, split in enumerate(map_splits(points))}
    places = _fit_square([(point.x, point.y) for point in points])
    return {
        "ids": [point.video_id for point in points],
        "x": [x for x, _ in places],
        "y": [y for _, y in places],
        "label": legend.places,
        "split": [-1 if p.split is None else splits[p.split] for p in points],
        "labels": legend.names,
        "numbers": [None if p.target is None else figure(p.target) for p in points]
        if legend.ordered
        else None,
        "bare": legend.bare,
        "splits": list(splits),
        "thumbnails": [base64.b64encode(p.thumbnail or b"").decode("ascii") for p in points],
    }


def confusion_data(panels: Sequence[Panel]) -> list[dict[str, Any]]:
    """Each confusion matrix that was recorded, its filled cells only, the best of SCALE first."""
    records = [record for panel in panels for record in panel.records if record.confusion]
    first = max(records, key=lambda r: (r.is_scale, r.value), default=None)
    ordered = [r for r in records if r is first] + [r for r in records if r is not first]
    orders = _orders([record.confusion for record in ordered if record.confusion])
    return [
        {"name": _matrix_name(record, panels)}
        | _sparse(record.confusion, orders[record.confusion.classes])
        for record in ordered
        if record.confusion
    ]


def _orders(matrices: Sequence[Confusion]) -> dict[tuple[str, ...], ClassOrder]:
    """One order for all matrices of the same classes, so that they can be compared."""
    sums: dict[tuple[str, ...], Float[np.ndarray, "C C"]] = {}
    for matrix in matrices:
        counts = np.array(matrix.counts, dtype=np.float64)
        sums[matrix.classes] = sums.get(matrix.classes, 0.0) + counts
    return {classes: order_classes(counts) for classes, counts in sums.items()}


def _matrix_name(record: ProbeRecord, panels: Sequence[Panel]) -> str:
    where = f", {record.metric} on {record.split}" if len(panels) > 1 else ""
    return f"{record.name}{where} ({percent_sign(record.value)})"


def _sparse(confusion: Confusion, order: ClassOrder) -> dict[str, Any]:
    cells: list[Number] = []
    for row, counts in enumerate(confusion.counts):
        for column, count in enumerate(counts):
            if count:
                cells.extend((row, column, count))
    mixed = most_mixed(np.array(confusion.counts, dtype=np.float64), order)
    groups = [asdict(group) for group in mixed]
    return {"classes": confusion.classes, "cells": cells, "similar": order.order, "groups": groups}


def _fit_square(places: Sequence[tuple[Number, Number]]) -> list[tuple[float, float]]:
    """The places moved to the corner (0, 0) and scaled, both ways alike, to a longest side of 1."""
    if not places:
        return []
    xs, ys = zip(*places, strict=True)
    left, bottom = min(xs), min(ys)
    side = max(max(xs) - left, max(ys) - bottom) or 1
    return [(round((x - left) / side, 5), round((y - bottom) / side, 5)) for x, y in places]
