"""Confusion matrices for the page's script, and an order that puts confused classes together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from clipset.evaluation.results import Confusion, ProbeResult
from clipset.report.records import Panel
from clipset.report.wording import Number, percent_sign, row_name

MAX_GROUP_SIZE = 8
MAX_GROUPS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfusedGroup:
    """Adjacent classes in the order, and the mistakes within the group."""

    first: int
    size: int
    mistakes: float
    videos: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassOrder:
    """An order with confused classes side by side, and small groups of neighbours in it."""

    order: list[int]
    groups: list[list[int]]


def confusion_data(panels: Sequence[Panel]) -> list[dict[str, Any]]:
    """Each confusion matrix as its non-zero cells; the best result of SCALE comes first."""
    results = [result for panel in panels for result in panel.results if result.confusion]
    best = max(results, key=lambda r: (r.features == "scale", r.value), default=None)
    results.sort(key=lambda result: result is not best)
    orders = _shared_orders([result.confusion for result in results if result.confusion])
    return [
        {"name": _matrix_title(result, panels)}
        | _sparse_matrix(result.confusion, orders[result.confusion.classes])
        for result in results
        if result.confusion
    ]


def order_classes(counts: Float[np.ndarray, "C C"]) -> ClassOrder:
    """Cluster the classes of a confusion matrix, or of the sum of several."""
    size = len(counts)
    if size < 3:
        return ClassOrder(order=list(range(size)), groups=[])
    nodes = _tree_nodes(_cluster(counts), size)
    largest = min(MAX_GROUP_SIZE, size - 1)
    groups = [group for group in nodes[size:] if len(group) <= largest]
    return ClassOrder(order=nodes[-1], groups=groups)


def most_confused(counts: Float[np.ndarray, "C C"], classes: ClassOrder) -> list[ConfusedGroup]:
    """Disjoint groups, sorted by mistakes within them per class."""
    positions = {index: position for position, index in enumerate(classes.order)}

    def mistakes(group: list[int]) -> float:
        inner = counts[np.ix_(group, group)]
        return float(inner.sum() - np.trace(inner))

    selected: list[ConfusedGroup] = []
    used: set[int] = set()
    for group in sorted(classes.groups, key=lambda group: -mistakes(group) / len(group)):
        if used.intersection(group) or mistakes(group) < 2 or len(selected) == MAX_GROUPS:
            continue
        used.update(group)
        selected.append(
            ConfusedGroup(
                first=min(positions[index] for index in group),
                size=len(group),
                mistakes=mistakes(group),
                videos=float(counts[group].sum()),
            )
        )
    return selected


def _cluster(counts: Float[np.ndarray, "C C"]) -> Any:
    """A tree of classes by the similarity of their mistakes, with similar leaves side by side."""
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    rates = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1e-12)
    profiles = rates + rates.T
    np.fill_diagonal(profiles, 1.0)
    unit = profiles / np.linalg.norm(profiles, axis=1, keepdims=True)
    distances = np.clip(1.0 - unit @ unit.T, 0.0, None)
    np.fill_diagonal(distances, 0.0)
    return linkage(squareform(distances, checks=False), "average", optimal_ordering=True)


def _tree_nodes(
    tree: Int[np.ndarray, "G 4"] | Float[np.ndarray, "G 4"], size: int
) -> list[list[int]]:
    """The classes under each node, in the order of the tree; the last node is the root."""
    nodes = [[index] for index in range(size)]
    for left, right, *_ in tree.tolist():
        nodes.append(nodes[int(left)] + nodes[int(right)])
    return nodes


def _shared_orders(matrices: Sequence[Confusion]) -> dict[tuple[str, ...], ClassOrder]:
    """One order for all matrices of the same classes, so that they can be compared."""
    sums: dict[tuple[str, ...], Float[np.ndarray, "C C"]] = {}
    for matrix in matrices:
        counts = np.array(matrix.counts, dtype=np.float64)
        sums[matrix.classes] = sums.get(matrix.classes, 0.0) + counts
    return {classes: order_classes(counts) for classes, counts in sums.items()}


def _matrix_title(result: ProbeResult, panels: Sequence[Panel]) -> str:
    detail = f", {result.metric} on {result.split}" if len(panels) > 1 else ""
    return f"{row_name(*result.key)}{detail} ({percent_sign(result.value)})"


def _sparse_matrix(confusion: Confusion, order: ClassOrder) -> dict[str, Any]:
    cells: list[Number] = []
    for row, counts in enumerate(confusion.counts):
        for column, count in enumerate(counts):
            if count:
                cells.extend((row, column, count))
    groups = most_confused(np.array(confusion.counts, dtype=np.float64), order)
    return {
        "classes": confusion.classes,
        "cells": cells,
        "similar": order.order,
        "groups": [asdict(group) for group in groups],
    }
