"""Intervals and tests that include the variance of evaluated videos and of training seeds.

A trial is trained once for each fold and seed. Seeds of one fold are evaluated on the same videos,
so their variance is that of training alone. It is about the same for all trials and is estimated
from all of them together; so a trial with a single seed has a valid interval, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import TypeAlias

import numpy as np
from jaxtyping import Float
from scipy import stats

CONFIDENCE = 0.95
Scores: TypeAlias = list[Float[np.ndarray, "S N"]]  # for each fold: seeds by videos


@dataclass(frozen=True, slots=True)
class SeedVariance:
    """Standard deviation of a fold's score over training seeds, and its degrees of freedom."""

    std: float
    dof: int


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference of scores; without an interval if no trial has two seeds."""

    value: float
    interval: tuple[float, float] | None = None
    p: float | None = None


def estimate_seed_variance(trials: Sequence[Scores]) -> SeedVariance:
    """Pooled over all folds and trials with several seeds."""
    squares, dof = 0.0, 0
    for scores in trials:
        for fold in scores:
            means = fold.mean(axis=1)
            squares += float(((means - means.mean()) ** 2).sum())
            dof += len(means) - 1
    return SeedVariance(sqrt(squares / dof) if dof else float("nan"), dof)


def mean_score(scores: Scores) -> float:
    """The mean over all videos and seeds."""
    return float(_mean_over_seeds(scores).mean())


def score_interval(scores: Scores, variance: SeedVariance) -> tuple[float, float] | None:
    """The interval of a score; None if no trial has two seeds."""
    if not variance.dof:
        return None
    value = mean_score(scores)
    _, half_width, _ = _standard_error(
        _mean_over_seeds(scores), [(_variance_factor(scores), variance)]
    )
    return value - half_width, value + half_width


def compare_scores(
    scores: Scores,
    baseline: Scores,
    variance: SeedVariance,
    baseline_variance: SeedVariance | None = None,
) -> Difference:
    """The paired difference on the same videos; the baseline may have a variance of its own."""
    differences = _mean_over_seeds(scores) - _mean_over_seeds(baseline)
    value = float(differences.mean())
    if not differences.any():
        return Difference(0.0, (0.0, 0.0), 1.0)  # the same model and probe
    factors = _variance_factor(scores), _variance_factor(baseline)
    variances = (
        [(factors[0], variance), (factors[1], baseline_variance)]
        if baseline_variance
        else [(sum(factors), variance)]
    )
    if not all(each.dof for _, each in variances):
        return Difference(value)
    error, half_width, dof = _standard_error(differences, variances)
    p = 2 * float(stats.t.sf(abs(value) / error, dof)) if error else 0.0
    return Difference(value, (value - half_width, value + half_width), p)


def _mean_over_seeds(scores: Scores) -> Float[np.ndarray, " N"]:
    return np.concatenate([fold.mean(axis=0) for fold in scores])


def _variance_factor(scores: Scores) -> float:
    """The variance of a trial's score over trainings, as a multiple of that of one fold."""
    videos = sum(fold.shape[1] for fold in scores)
    return float(sum((fold.shape[1] / videos) ** 2 / len(fold) for fold in scores))


def _standard_error(
    values: Float[np.ndarray, " N"], variances: Sequence[tuple[float, SeedVariance]]
) -> tuple[float, float, float]:
    """The standard error of the mean, half the width of its interval, and degrees of freedom.

    Variances of videos and trainings add up; both are estimates, so that the interval is that of
    a t distribution (Welch and Satterthwaite).
    """
    parts = [(float(values.var()) / len(values), len(values) - 1)]
    parts += [(factor * variance.std**2, variance.dof) for factor, variance in variances]
    total = sum(variance for variance, _ in parts)
    if not total:
        return 0.0, 0.0, 1.0
    dof = total**2 / sum(variance**2 / dof for variance, dof in parts)
    error = sqrt(total)
    return error, float(stats.t.ppf((1 + CONFIDENCE) / 2, dof)) * error, dof
