"""Confusion matrices for the page's script, and an order that puts confused classes together."""

from __future__ import annotations

from collections.abc import Sequence
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
    confusion_results = [(r, r.confusion) for panel in panels for r in panel.results if r.confusion]
    if not confusion_results:
        return []
    best_result, _ = max(confusion_results, key=lambda pair: (pair[0].is_scale, pair[0].value))
    confusion_results.sort(key=lambda pair: pair[0] is not best_result)
    count_sums: dict[tuple[str, ...], Float[np.ndarray, "C C"]] = {}
    for _, confusion in confusion_results:
        counts = np.array(confusion.counts, dtype=np.float64)
        count_sums[confusion.classes] = count_sums.get(confusion.classes, 0.0) + counts
    class_orders = {classes: order_classes(counts) for classes, counts in count_sums.items()}
    matrix_data = []
    for result, confusion in confusion_results:
        panel_detail = f", {result.metric} on {result.split}" if len(panels) > 1 else ""
        class_order, class_groups = class_orders[confusion.classes]
        counts = np.array(confusion.counts, dtype=np.float64)
        filled_cells = zip(*np.nonzero(counts), strict=True)
        matrix_data.append(
            {
                "name": f"{row_name(*result.key)}{panel_detail} ({percent_sign(result.value)})",
                "classes": confusion.classes,
                "cells": [
                    x for i, j in filled_cells for x in (int(i), int(j), confusion.counts[i][j])
                ],
                "similar": class_order,
                "groups": most_confused(counts, class_order, class_groups),
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

    selected_groups: list[dict[str, Number]] = []
    used_classes: set[int] = set()
    for group in sorted(class_groups, key=lambda group: -mistakes(group) / len(group)):
        if (
            used_classes.isdisjoint(group)
            and mistakes(group) >= 2
            and len(selected_groups) < MAX_GROUPS
        ):
            used_classes.update(group)
            selected_groups.append(
                {
                    "first": min(class_order.index(class_index) for class_index in group),
                    "size": len(group),
                    "mistakes": mistakes(group),
                    "videos": float(counts[group].sum()),
                }
            )
    return selected_groups
