"""Means over several splits: how sure they are, and whether rows really differ in them.

A video that several splits test is one unit: it is drawn for all of them, or for none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from clipset.evaluation.metrics import AT_ONCE, RESAMPLES, Difference, judge_gaps, over_seeds
from clipset.evaluation.results import Comparison, Predictions, Row, list_pairs

Means = Float[np.ndarray, "R _"]


def pool_intervals(
    parts: Sequence[Predictions], *, seed: int = 0
) -> dict[Row, tuple[float, float]]:
    """The 95 % interval of each row's mean over the parts that all have it."""
    found = {}
    for row in rows_of_all(parts):
        generator = np.random.default_rng(seed)
        drawn = _mean_of_parts(_resample(parts, [row], generator), 0, generator)
        low, high = np.quantile(drawn, [0.025, 0.975])
        found[row] = float(low), float(high)
    return found


def compare_parts(parts: Sequence[Predictions], *, seed: int = 0) -> list[Comparison]:
    """The comparisons of a table whose scores are means over the parts."""
    return [_comparison(parts, row, other, seed) for row, other in list_pairs(rows_of_all(parts))]


def rows_of_all(parts: Sequence[Predictions]) -> list[Row]:
    """The rows that every part has."""
    return [row for row in parts[0].outputs if all(row in part.outputs for part in parts)]


def count_videos(parts: Sequence[Predictions]) -> int:
    """The videos that at least one part tests."""
    return len({id for part in parts for id in part.ids})


def _comparison(parts: Sequence[Predictions], row: Row, other: Row, seed: int) -> Comparison:
    generator = np.random.default_rng(seed)
    drawn = _resample(parts, [row, other], generator)
    gaps = _mean_of_parts(drawn, 0, generator) - _mean_of_parts(drawn, 1, generator)
    value = np.mean([part.values(row).mean() - part.values(other).mean() for part in parts])
    found: Difference = judge_gaps(gaps, float(value))
    return Comparison(
        features=row[0],
        probe=row[1],
        against_features=other[0],
        against_probe=other[1],
        metric="top1" if parts[0].classes else "mse",
        difference=found.value,
        interval=found.interval,
        p=found.p,
        mcnemar=None,
        n=count_videos(parts),
    )


def _resample(
    parts: Sequence[Predictions], rows: Sequence[Row], generator: np.random.Generator
) -> list[list[Means]]:
    """For each part and row, the mean of each seed over videos drawn with replacement."""
    every = {id: place for place, id in enumerate(dict.fromkeys(i for p in parts for i in p.ids))}
    places: list[Int[np.ndarray, " M"]] = [np.array([every[i] for i in p.ids]) for p in parts]
    values = [[part.values(row).T for row in rows] for part in parts]  # each (M, S)
    found: list[list[list[Means]]] = [[[] for _ in rows] for _ in parts]
    for _ in range(RESAMPLES // AT_ONCE):
        drawn = generator.integers(len(every), size=(AT_ONCE, len(every)))
        drawn += len(every) * np.arange(AT_ONCE)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=drawn.size).reshape(drawn.shape)
        for number, place in enumerate(places):
            weights = counts[:, place].astype(np.float64)  # (R, M)
            total = weights.sum(axis=1, keepdims=True).clip(1.0)
            for each, said in enumerate(values[number]):
                found[number][each].append(weights @ said / total)
    return [[np.concatenate(chunks) for chunks in part] for part in found]


def _mean_of_parts(
    drawn: list[list[Means]], row: int, generator: np.random.Generator
) -> Float[np.ndarray, " R"]:
    found: Float[np.ndarray, " R"] = np.mean(
        [over_seeds(part[row], generator) for part in drawn], axis=0
    )
    return found
