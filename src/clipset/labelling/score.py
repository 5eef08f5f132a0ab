"""The score on held-out labels: accuracy with its interval, and its course."""

from __future__ import annotations

from dataclasses import dataclass

from scipy.stats import binomtest


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
    """The fraction of correct ones with Wilson's 95 % interval."""
    interval = binomtest(num_correct, count).proportion_ci(0.95, "wilson")
    return HeldOutScore(
        num_labels=num_labels,
        score=num_correct / count,
        low=float(interval.low),
        high=float(interval.high),
    )
