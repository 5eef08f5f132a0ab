"""How good predictions are, and how sure we are of that."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

RESAMPLES = 5000
AT_ONCE = 500  # resamples in memory


def resample(
    values: Float[np.ndarray, "K M"], generator: np.random.Generator
) -> Float[np.ndarray, "R K"]:
    """The mean of each row over videos drawn with replacement; the same draws for all rows."""
    videos = values.shape[1]
    columns = np.ascontiguousarray(values.T, dtype=np.float64)  # (M, K)
    means = []
    for _ in range(RESAMPLES // AT_ONCE):
        drawn = generator.integers(videos, size=(AT_ONCE, videos))
        drawn += videos * np.arange(AT_ONCE)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=AT_ONCE * videos)
        means.append(counts.reshape(AT_ONCE, videos).astype(np.float64) @ columns / videos)
    return np.concatenate(means)


def over_seeds(
    means: Float[np.ndarray, "R S"], generator: np.random.Generator
) -> Float[np.ndarray, " R"]:
    """The mean over seeds drawn with replacement, in each resample anew."""
    drawn = generator.integers(means.shape[1], size=means.shape)
    found: Float[np.ndarray, " R"] = np.take_along_axis(means, drawn, axis=1).mean(axis=1)
    return found


def interval(
    values: Bool[np.ndarray, "S M"] | Float[np.ndarray, "S M"], generator: np.random.Generator
) -> tuple[float, float]:
    """95 % interval of the mean (accuracy, error), by bootstrap over test videos and seeds."""
    means = over_seeds(resample(values.astype(np.float64), generator), generator)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How far two rows are apart on the same videos, and whether chance could have done it."""

    value: float
    interval: tuple[float, float]
    p: float
    mcnemar: float | None


def compare_values(
    one: Float[np.ndarray, "S M"], other: Float[np.ndarray, "Z M"], generator: np.random.Generator
) -> Difference:
    """Paired bootstrap: the same videos are drawn for both rows, seeds for each on its own."""
    means = resample(np.concatenate([one, other]), generator)
    ours = over_seeds(means[:, : len(one)], generator)
    gaps = ours - over_seeds(means[:, len(one) :], generator)  # (R,)
    exact = mcnemar(one[0], other[0]) if len(one) == len(other) == 1 and _is_binary(one) else None
    return judge_gaps(gaps, float(one.mean() - other.mean()), exact)


def judge_gaps(
    gaps: Float[np.ndarray, " R"], value: float, exact: float | None = None
) -> Difference:
    """A difference with its interval and p from what it was in each resample."""
    low, high = np.quantile(gaps, [0.025, 0.975])
    tail = min((gaps <= 0).sum(), (gaps >= 0).sum())
    return Difference(
        value=value,
        interval=(float(low), float(high)),
        p=min(1.0, 2.0 * float(tail + 1) / (RESAMPLES + 1)),
        mcnemar=exact,
    )


def mcnemar(one: Float[np.ndarray, " M"], other: Float[np.ndarray, " M"]) -> float:
    """The exact two-sided p of McNemar's test: are the videos that only one got right even?"""
    gained, lost = int(((one > 0) & (other <= 0)).sum()), int(((one <= 0) & (other > 0)).sum())
    trials, few = gained + lost, min(gained, lost)
    ways = sum(math.comb(trials, count) for count in range(few + 1))
    return min(1.0, float(2 * ways / 2**trials))


def _is_binary(values: Float[np.ndarray, "S M"]) -> bool:
    return bool(np.isin(values, (0.0, 1.0)).all())


def top_k(
    probabilities: Float[np.ndarray, "M C"], classes: Int[np.ndarray, " M"], k: int
) -> Bool[np.ndarray, " M"]:
    """Whether the true class is among the k most probable ones."""
    own = np.take_along_axis(probabilities, classes[:, None], axis=1)
    place = (probabilities > own).sum(axis=1)
    ties = (probabilities == own).sum(axis=1) - 1
    found: Bool[np.ndarray, " M"] = place + ties < k  # of equal ones, the true class counts last
    return found


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


def mean_class(counts: Int[np.ndarray, "C C"]) -> float:
    """The mean of the classes' accuracies."""
    known = [value for value in per_class(counts) if value is not None]
    return float(np.mean(known))


def explained(judged: Float[np.ndarray, "M 2"]) -> float | None:
    """R²: the share of the numbers' variance that is predicted; None if they are all the same."""
    truth, found = judged.T
    spread = float(((truth - truth.mean()) ** 2).sum())
    return 1.0 - float(((truth - found) ** 2).sum()) / spread if spread > 0 else None
