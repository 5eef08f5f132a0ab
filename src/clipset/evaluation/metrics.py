"""Scores of predictions on the test videos, computed once for each finished probe."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from sklearn.metrics import confusion_matrix
from torch import Tensor

from clipset.errors import ProbeError
from clipset.evaluation.results import Confusion
from clipset.probes.task import EvaluationTask


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredPredictions:
    """Predictions beside the ground truth.

    `values` says for each seed and video whether it was classified correctly, or the squared error.
    """

    metric: str
    values: Float[np.ndarray, "S M"]
    truth: Int[np.ndarray, " M"] | Float[np.ndarray, " M"]
    chance_level: float
    metrics: dict[str, float | None]
    per_class: dict[str, float | None]
    confusion: Confusion | None


def score_predictions(
    task: EvaluationTask, predictions: list[Float[Tensor, "M C"]]
) -> ScoredPredictions:
    """The scores of the predictions of each seed."""
    return (_score_classes if task.classes else _score_targets)(task, predictions)


def _score_classes(
    task: EvaluationTask, predictions: list[Float[Tensor, "M C"]]
) -> ScoredPredictions:
    """Top-1, top-5 (of more than five classes), mean class accuracy, per class, confusion."""
    class_pairs = np.stack([task.test.evaluate(outputs) for outputs in predictions])  # (S, M, 2)
    truth = class_pairs[0, :, 0]
    is_correct = (class_pairs[..., 0] == class_pairs[..., 1]).astype(np.float64)  # (S, M)
    confusion = count_confusion(class_pairs.reshape(-1, 2), task.classes)
    largest_class = torch.bincount(task.train.classes).argmax().item()
    metrics: dict[str, float | None] = {
        "top1": float(is_correct.mean()),
        "mean_class": confusion.mean_class_accuracy(),
    }
    if len(task.classes) > 5:
        metrics["top5"] = float(np.mean([top_k(p.numpy(), truth, 5).mean() for p in predictions]))
    return ScoredPredictions(
        metric="top1",
        values=is_correct,
        truth=truth,
        chance_level=float((truth == largest_class).mean()),
        metrics=metrics,
        per_class=confusion.class_accuracy(),
        confusion=confusion,
    )


def _score_targets(
    task: EvaluationTask, predictions: list[Float[Tensor, "M 1"]]
) -> ScoredPredictions:
    """Mean squared error in the unit of the targets, mean absolute error, R²."""
    if task.train.targets is None:
        raise ProbeError("the training videos have classes, not targets")
    target_pairs = np.stack([task.test.evaluate(outputs) for outputs in predictions])  # (S, M, 2)
    errors = target_pairs[..., 1] - target_pairs[..., 0]  # (S, M)
    true_targets = target_pairs[0, :, 0]
    explained = [value for of_seed in target_pairs if (value := r_squared(of_seed)) is not None]
    mean_target = float(task.train.targets.mean())
    return ScoredPredictions(
        metric="mse",
        values=errors**2,
        truth=true_targets,
        chance_level=float(((true_targets - mean_target) ** 2).mean()),
        metrics={
            "mse": float((errors**2).mean()),
            "mae": float(np.abs(errors).mean()),
            "r2": float(np.mean(explained)) if explained else None,
        },
        per_class={},
        confusion=None,
    )


def top_k(
    probabilities: Float[np.ndarray, "M C"], classes: Int[np.ndarray, " M"], k: int
) -> Bool[np.ndarray, " M"]:
    """Whether the true class is among the k most probable ones; of equal ones it counts last."""
    true_probability = np.take_along_axis(probabilities, classes[:, None], axis=1)
    class_rank = (probabilities > true_probability).sum(axis=1)
    num_ties = (probabilities == true_probability).sum(axis=1) - 1
    is_correct: Bool[np.ndarray, " M"] = class_rank + num_ties < k
    return is_correct


def count_confusion(pairs: Int[np.ndarray, "M 2"], classes: tuple[str, ...]) -> Confusion:
    """How often a video of class row was predicted as class column, from (true, predicted)."""
    pair_counts = confusion_matrix(*pairs.T, labels=range(len(classes)))
    return Confusion(classes=classes, counts=tuple(map(tuple, pair_counts.tolist())))


def r_squared(pairs: Float[np.ndarray, "M 2"]) -> float | None:
    """The explained fraction of the targets' variance; None if all targets are equal."""
    true_targets, predicted = pairs.T
    variance = float(((true_targets - true_targets.mean()) ** 2).sum())
    return 1.0 - float(((true_targets - predicted) ** 2).sum()) / variance if variance > 0 else None
