"""Confusion matrices for the page's script, and an order that puts confused classes together."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
from jaxtyping import Float

from clipset.report.content import Panel
from clipset.report.wording import Number, percent_sign, row_name

MAX_GROUP_SIZE = 8
MAX_GROUPS = 6


def confusion_data(panels: Sequence[Panel]) -> list[dict[str, Any]]:
    """Each confusion matrix as its non-zero cells; the best result of SCALE comes first.

    All matrices of the same classes have one order, so that they can be compared.
    """
    results = [result for panel in panels for result in panel.results]
    matrices = [(result, result.confusion) for result in results if result.confusion]
    if not matrices:
        return []
    best_result, _ = max(matrices, key=lambda pair: (pair[0].is_scale, pair[0].value))
    matrices.sort(key=lambda pair: pair[0] is not best_result)
    count_sums: dict[tuple[str, ...], Float[np.ndarray, "C C"]] = {}
    for _, confusion in matrices:
        counts = np.array(confusion.counts, dtype=np.float64)
        count_sums[confusion.classes] = count_sums.get(confusion.classes, 0.0) + counts
    class_orders = {classes: order_classes(counts) for classes, counts in count_sums.items()}
    matrix_data = []
    for result, confusion in matrices:
        detail = f", {result.metric} on {result.split}" if len(panels) > 1 else ""
        order, groups = class_orders[confusion.classes]
        counts = np.array(confusion.counts, dtype=np.float64)
        cells = ((i, j, confusion.counts[i][j]) for i, j in np.argwhere(counts).tolist())
        matrix_data.append(
            {
                "name": f"{row_name(*result.key)}{detail} ({percent_sign(result.value)})",
                "classes": confusion.classes,
                "cells": list(chain.from_iterable(cells)),
                "similar": order,
                "groups": most_confused(counts, order, groups),
            }
        )
    return matrix_data


def order_classes(counts: Float[np.ndarray, "C C"]) -> tuple[list[int], list[list[int]]]:
    """An order with confused classes side by side, and small groups of neighbours in it."""
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    num_classes = len(counts)
    if num_classes < 3:
        return list(range(num_classes)), []
    confusion_rates = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1e-12)
    profiles = confusion_rates + confusion_rates.T
    np.fill_diagonal(profiles, 1.0)
    unit_profiles = profiles / np.linalg.norm(profiles, axis=1, keepdims=True)
    distances = np.clip(1.0 - unit_profiles @ unit_profiles.T, 0.0, None)
    np.fill_diagonal(distances, 0.0)
    linkage_tree = linkage(squareform(distances, checks=False), "average", optimal_ordering=True)
    tree_nodes = [[index] for index in range(num_classes)]  # classes under each node, the root last
    for left, right, *_ in linkage_tree.tolist():
        tree_nodes.append(tree_nodes[int(left)] + tree_nodes[int(right)])
    max_size = min(MAX_GROUP_SIZE, num_classes - 1)
    return tree_nodes[-1], [group for group in tree_nodes[num_classes:] if len(group) <= max_size]


def most_confused(
    counts: Float[np.ndarray, "C C"], class_order: list[int], class_groups: list[list[int]]
) -> list[dict[str, Number]]:
    """Disjoint groups, sorted by mistakes within them per class; `first` is an index of `order`."""

    def mistakes(group: list[int]) -> float:
        inner_counts = counts[np.ix_(group, group)]
        return float(inner_counts.sum() - np.trace(inner_counts))

    selected: list[dict[str, Number]] = []
    used_classes: set[int] = set()
    for group in sorted(class_groups, key=lambda group: -mistakes(group) / len(group)):
        if used_classes.isdisjoint(group) and mistakes(group) >= 2:
            used_classes.update(group)
            first = min(map(class_order.index, group))
            videos = float(counts[group].sum())
            selected.append(
                {"first": first, "size": len(group), "mistakes": mistakes(group), "videos": videos}
            )
    return selected[:MAX_GROUPS]
