"""The legend of the map: what the colour of a dot stands for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from clipset.report.content import MapPoint
from clipset.report.wording import Number, figure

NO_LABEL = "no label"
NO_NUMBER = "no number"
RANGES = 5  # that numbers are divided into, each with about as many videos; report.css has --r0 on


@dataclass(frozen=True, slots=True, kw_only=True)
class Legend:
    """The names that dots go by, how many have each, and the place of every dot's name.

    `bare` is the place of those that have none, -1 if all have one. `ordered`: names are ranges of
    numbers from small to large, not labels.
    """

    names: tuple[str, ...]
    counts: tuple[int, ...]
    places: tuple[int, ...]
    bare: int
    ordered: bool = False

    @property
    def rows(self) -> list[tuple[str, int]]:
        """Names with counts."""
        return list(zip(self.names, self.counts, strict=True))


def read_legend(points: Sequence[MapPoint]) -> Legend:
    """Labels, sorted; ranges of the numbers to predict where no video has a label."""
    labels = sorted({point.label for point in points if point.label is not None})
    numbers = [point.target for point in points if point.target is not None]
    if labels or not numbers:
        found = {label: place for place, label in enumerate(labels)}
        where = [None if point.label is None else found[point.label] for point in points]
        return _legend(labels, where, NO_LABEL)
    edges = divide_numbers(numbers)
    where = [None if p.target is None else _range_of(p.target, edges) for p in points]
    names = [
        _range_name([n for n in numbers if _range_of(n, edges) == i]) for i in range(len(edges))
    ]
    return _legend(names, where, NO_NUMBER, ordered=True)


def divide_numbers(numbers: Sequence[Number]) -> list[float]:
    """Where each range begins; a range has at least one of the numbers."""
    values = np.unique(np.array(numbers, dtype=np.float64))
    if len(values) <= RANGES:
        return [float(value) for value in values]
    shares = np.arange(RANGES) / RANGES
    return [float(edge) for edge in np.unique(np.quantile(numbers, shares, method="higher"))]


def _range_of(number: Number, edges: Sequence[float]) -> int:
    return int(np.searchsorted(edges, number, side="right")) - 1


def _range_name(numbers: Sequence[Number]) -> str:
    least, most = figure(min(numbers)), figure(max(numbers))
    return least if least == most else f"{least} to {most}"


def _legend(
    names: Sequence[str], where: Sequence[int | None], nameless: str, *, ordered: bool = False
) -> Legend:
    bare = len(names) if None in where else -1
    places = tuple(bare if place is None else place for place in where)
    count = Counter(places)
    return Legend(
        names=(*names, nameless) if bare >= 0 else tuple(names),
        counts=tuple(count[place] for place in range(len(names) + (bare >= 0))),
        places=places,
        bare=bare,
        ordered=ordered,
    )
