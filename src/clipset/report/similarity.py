"""Classes that are mixed up stand side by side, and the groups of them that are mixed up most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

LARGEST_GROUP = 8
SHOWN_GROUPS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixed:
    """A group of classes that stand together: how many of its videos were taken for one another."""

    first: int  # place of its first class in the order
    size: int
    mistakes: float
    videos: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassOrder:
    """An order in which classes taken for each other are near, and small groups of neighbours."""

    order: list[int]
    groups: list[list[int]]


def order_classes(counts: Float[np.ndarray, "C C"]) -> ClassOrder:
    """The order that a confusion matrix (or the sum of several) asks for."""
    size = len(counts)
    if size < 3:
        return ClassOrder(order=list(range(size)), groups=[])
    leaves = _leaves(_cluster(counts), size)
    largest = min(LARGEST_GROUP, size - 1)
    groups = [group for group in leaves[size:] if len(group) <= largest]
    return ClassOrder(order=leaves[-1], groups=groups)


def _cluster(counts: Float[np.ndarray, "C C"]) -> Any:
    """A tree of classes by how alike their mistakes are, with like leaves beside each other."""
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1e-12)
    profiles = shares + shares.T
    np.fill_diagonal(profiles, 1.0)
    unit = profiles / np.linalg.norm(profiles, axis=1, keepdims=True)
    distances = np.clip(1.0 - unit @ unit.T, 0.0, None)
    np.fill_diagonal(distances, 0.0)
    return linkage(squareform(distances, checks=False), "average", optimal_ordering=True)


def _leaves(tree: Int[np.ndarray, "G 4"] | Float[np.ndarray, "G 4"], size: int) -> list[list[int]]:
    """The classes under every node, in the order of the tree; the last node holds all."""
    found = [[number] for number in range(size)]
    for left, right, *_ in tree.tolist():
        found.append(found[int(left)] + found[int(right)])
    return found


def most_mixed(counts: Float[np.ndarray, "C C"], classes: ClassOrder) -> list[Mixed]:
    """Groups without a class in common, by the mistakes within them for each class."""
    places = {number: place for place, number in enumerate(classes.order)}

    def mistakes(group: list[int]) -> float:
        inner = counts[np.ix_(group, group)]
        return float(inner.sum() - np.trace(inner))

    chosen: list[Mixed] = []
    taken: set[int] = set()
    for group in sorted(classes.groups, key=lambda each: -mistakes(each) / len(each)):
        if taken.intersection(group) or mistakes(group) < 2 or len(chosen) == SHOWN_GROUPS:
            continue
        taken.update(group)
        chosen.append(
            Mixed(
                first=min(places[number] for number in group),
                size=len(group),
                mistakes=mistakes(group),
                videos=float(counts[group].sum()),
            )
        )
    return chosen
