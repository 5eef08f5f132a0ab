"""The one place that asks what the test videos really show, after all choices are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from clipset.errors import ProbeError
from clipset.evaluation.metrics import confusion, explained, mean_class, per_class, top_k
from clipset.evaluation.task import EvaluationTask

Truth = Int[np.ndarray, " M"] | Float[np.ndarray, " M"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A finished row's predictions next to the truth.

    `values` holds, for each seed and video, whether it was recognised, or the squared error.
    """

    metric: str
    values: Float[np.ndarray, "S M"]
    truth: Truth
    chance: float
    metrics: dict[str, float | None]
    per_class: dict[str, float | None]
    confusion: dict[str, Any] | None


def judge_classes(task: EvaluationTask, predictions: list[Float[Tensor, "M C"]]) -> Judged:
    """Top-1, top-5 (of more than five classes), mean class accuracy, per class, confusion."""
    judged = np.stack([task.test.judge(each) for each in predictions])  # (S, M, 2)
    truth = judged[0, :, 0]
    right = (judged[..., 0] == judged[..., 1]).astype(np.float64)  # (S, M)
    counts = np.sum([confusion(each, len(task.classes)) for each in judged], axis=0)
    largest = torch.bincount(task.train.classes).argmax().item()
    metrics: dict[str, float | None] = {
        "top1": float(right.mean()),
        "mean_class": mean_class(counts),
    }
    if len(task.classes) > 5:
        among = [top_k(each.numpy(), truth, 5).mean() for each in predictions]
        metrics["top5"] = float(np.mean(among))
    return Judged(
        metric="top1",
        values=right,
        truth=truth,
        chance=float((truth == largest).mean()),
        metrics=metrics,
        per_class=dict(zip(task.classes, per_class(counts), strict=True)),
        confusion={"classes": list(task.classes), "counts": counts.tolist()},
    )


def judge_numbers(task: EvaluationTask, predictions: list[Float[Tensor, "M 1"]]) -> Judged:
    """Mean squared error on the targets' own scale, mean absolute error, R²."""
    if task.train.targets is None:
        raise ProbeError("the training videos have classes, not numbers")
    judged = np.stack([task.test.judge_numbers(each) for each in predictions])  # (S, M, 2)
    gaps = judged[..., 1] - judged[..., 0]  # (S, M)
    truth = judged[0, :, 0]
    shares = [share for each in judged if (share := explained(each)) is not None]
    guess = float(task.train.targets.mean())
    return Judged(
        metric="mse",
        values=gaps**2,
        truth=truth,
        chance=float(((truth - guess) ** 2).mean()),
        metrics={
            "mse": float((gaps**2).mean()),
            "mae": float(np.abs(gaps).mean()),
            "r2": float(np.mean(shares)) if shares else None,
        },
        per_class={},
        confusion=None,
    )
