"""How good predictions are, and how sure we are of that."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Int

RESAMPLES = 5000


def interval(right: Bool[np.ndarray, "S M"], generator: np.random.Generator) -> tuple[float, float]:
    """95 % interval of the accuracy, by bootstrap over the test videos and the seeds."""
    seeds, videos = right.shape
    drawn_videos = generator.integers(videos, size=(RESAMPLES, videos))
    drawn_seeds = generator.integers(seeds, size=(RESAMPLES, seeds))
    by_draw = np.stack(
        [row.astype(np.float64)[drawn_videos].mean(axis=1) for row in right]
    )  # (S, R)
    means = by_draw[drawn_seeds.T, np.arange(RESAMPLES)].mean(axis=0)  # (R,)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def confusion(judged: Int[np.ndarray, "M 2"], classes: int) -> Int[np.ndarray, "C C"]:
    """How often a video of class row was taken for class column."""
    counts = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(counts, (judged[:, 0], judged[:, 1]), 1)
    return counts


def per_class(counts: Int[np.ndarray, "C C"]) -> list[float | None]:
    """The accuracy of each class; None where the test split has no video of it."""
    totals = counts.sum(axis=1)
    return [
        float(right / total) if total else None
        for right, total in zip(np.diagonal(counts), totals, strict=True)
    ]
