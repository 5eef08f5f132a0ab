"""How far scores move by chance: by which videos are judged, and by the seed of the training.

A trial is trained once for each fold and seed. Seeds of one fold judge the same videos, so how far
they lie apart is the chance of training alone. It is about the same for all trials, so it is
estimated from all of them together; a trial with a single seed then gets an honest interval, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import TypeAlias

import numpy as np
from jaxtyping import Float
from scipy import stats

LEVEL = 0.95
Scores: TypeAlias = list[Float[np.ndarray, "S N"]]  # for each fold: seeds by videos


@dataclass(frozen=True, slots=True)
class Spread:
    """The deviation of a fold's score from seed to seed, and how well it is known."""

    deviation: float
    freedom: int


@dataclass(frozen=True, slots=True)
class Gap:
    """How much higher a trial scores than another; no interval if no trial has two seeds."""

    value: float
    interval: tuple[float, float] | None = None
    p: float | None = None


def spread_of(trials: Sequence[Scores]) -> Spread:
    """Estimated from all folds and trials that have several seeds."""
    squares, freedom = 0.0, 0
    for scores in trials:
        for fold in scores:
            means = fold.mean(axis=1)
            squares += float(((means - means.mean()) ** 2).sum())
            freedom += len(means) - 1
    return Spread(sqrt(squares / freedom) if freedom else float("nan"), freedom)


def mean_score(scores: Scores) -> float:
    """The mean over all videos and seeds."""
    return float(_over_seeds(scores).mean())


def score_interval(scores: Scores, spread: Spread) -> tuple[float, float] | None:
    """Where the score lies; None if no trial has two seeds."""
    if not spread.freedom:
        return None
    value = mean_score(scores)
    _, reach, _ = _chance(_over_seeds(scores), [(_trainings(scores), spread)])
    return value - reach, value + reach


def compare_scores(
    ours: Scores, theirs: Scores, spread: Spread, other: Spread | None = None
) -> Gap:
    """How much higher ours is, on the same videos; theirs may have a spread of its own."""
    each = _over_seeds(ours) - _over_seeds(theirs)
    value = float(each.mean())
    if not each.any():
        return Gap(0.0, (0.0, 0.0), 1.0)  # the same model and probe
    spreads = (
        [(_trainings(ours), spread), (_trainings(theirs), other)]
        if other
        else [(_trainings(ours) + _trainings(theirs), spread)]
    )
    if not all(spread.freedom for _, spread in spreads):
        return Gap(value)
    error, reach, freedom = _chance(each, spreads)
    p = 2 * float(stats.t.sf(abs(value) / error, freedom)) if error else 0.0
    return Gap(value, (value - reach, value + reach), p)


def _over_seeds(scores: Scores) -> Float[np.ndarray, " N"]:
    return np.concatenate([fold.mean(axis=0) for fold in scores])


def _trainings(scores: Scores) -> float:
    """The variance of a trial's score by its trainings, as a multiple of that of one fold."""
    videos = sum(fold.shape[1] for fold in scores)
    return float(sum((fold.shape[1] / videos) ** 2 / len(fold) for fold in scores))


def _chance(
    values: Float[np.ndarray, " N"], spreads: Sequence[tuple[float, Spread]]
) -> tuple[float, float, float]:
    """The standard error of the values' mean, half its interval, and how well the error is known.

    Variances of videos and trainings add up; each is estimated, so that the interval is that of
    a t distribution (Welch and Satterthwaite).
    """
    parts = [(float(values.var()) / len(values), len(values) - 1)]
    parts += [(share * spread.deviation**2, spread.freedom) for share, spread in spreads]
    total = sum(variance for variance, _ in parts)
    if not total:
        return 0.0, 0.0, 1.0
    freedom = total**2 / sum(variance**2 / known for variance, known in parts)
    error = sqrt(total)
    return error, float(stats.t.ppf((1 + LEVEL) / 2, freedom)) * error, freedom
