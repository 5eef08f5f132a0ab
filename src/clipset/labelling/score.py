"""The score on held-out labels: accuracy with its interval, and its course."""

from __future__ import annotations

import math
from dataclasses import dataclass

QUANTILE = 1.959964  # of the normal distribution, for 95 %


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutScore:
    """The accuracy on held-out labels after `num_labels` labels, and its 95 % interval."""

    num_labels: int
    score: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerState:
    """How far the labelling is; the score is None without two classes and a held-out label.

    `curve` are the scores on the same held-out labels after fewer labels. `seconds` is the time of
    the last training.
    """

    num_labels: int
    num_held_out: int
    num_trained: int
    score: float | None
    low: float | None
    high: float | None
    curve: tuple[HeldOutScore, ...]
    seconds: float


def score_correct(num_labels: int, num_correct: int, count: int) -> HeldOutScore:
    """The fraction of correct ones with Wilson's interval."""
    low, high = wilson_interval(num_correct, count)
    return HeldOutScore(num_labels=num_labels, score=num_correct / count, low=low, high=high)


def wilson_interval(num_correct: int, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a fraction."""
    square = QUANTILE**2
    middle = (num_correct + square / 2) / (count + square)
    fraction = num_correct / count
    spread = math.sqrt(fraction * (1 - fraction) / count + square / (4 * count**2))
    half = QUANTILE * spread / (1 + square / count)
    low = middle - half if num_correct > 0 else 0.0
    high = middle + half if num_correct < count else 1.0
    return low, high
