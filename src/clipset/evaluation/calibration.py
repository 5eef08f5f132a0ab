"""Calibration of probabilities: temperature scaling, reliability bins, calibration error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.02, 50.0
NUM_BINS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliabilityBin:
    """Predictions of similar confidence: their mean confidence and their accuracy."""

    low: float
    high: float
    count: int
    confidence: float
    accuracy: float


def apply_temperature(
    probabilities: Float[Tensor, "M C"], temperature: float
) -> Float[Tensor, "M C"]:
    """Sharper probabilities below 1, flatter ones above; the order of the classes stays."""
    log_probabilities = probabilities.double().clamp_min(1e-12).log()  # (M, C)
    return (log_probabilities / temperature).softmax(dim=1).to(probabilities.dtype)


def fit_temperature(probabilities: Float[Tensor, "M C"], classes: Int[Tensor, " M"]) -> float:
    """The temperature with the highest likelihood of the true classes.

    Labels are smoothed by 1 / (M + 2): a few videos without a mistake do not mean certainty.
    """
    num_videos, num_classes = probabilities.shape
    logs = probabilities.double().clamp_min(1e-12).log()  # (M, C)
    smoothing = 1.0 / (num_videos + 2)
    truth = (1 - smoothing) * F.one_hot(classes, num_classes) + smoothing / num_classes  # (M, C)
    observed_mean = (truth * logs).sum(dim=1).mean()

    def slope(sharpness: float) -> float:
        """The derivative of the loss by 1 / temperature; it only grows: the loss is convex."""
        expected_mean = ((sharpness * logs).softmax(dim=1) * logs).sum(dim=1).mean()
        return float(expected_mean - observed_mean)

    low, high = 1 / MAX_TEMPERATURE, 1 / MIN_TEMPERATURE
    for _ in range(60):
        middle_value = math.sqrt(low * high)
        low, high = (middle_value, high) if slope(middle_value) < 0 else (low, middle_value)
    return 1 / math.sqrt(low * high)


def reliability(
    confidence: Float[np.ndarray, " M"],
    correct: Float[np.ndarray, " M"],
    num_bins: int = NUM_BINS,
) -> list[ReliabilityBin]:
    """Predictions in bins of equal width by their confidence, without empty bins."""
    bin_index = np.clip((confidence * num_bins).astype(np.int64), 0, num_bins - 1)
    return [
        ReliabilityBin(
            low=number / num_bins,
            high=(number + 1) / num_bins,
            count=int((bin_index == number).sum()),
            confidence=float(confidence[bin_index == number].mean()),
            accuracy=float(correct[bin_index == number].mean()),
        )
        for number in np.unique(bin_index).tolist()
    ]


def calibration_error(bins: Sequence[ReliabilityBin]) -> float:
    """The expected calibration error (ECE): the mean gap between confidence and accuracy."""
    total = sum(bin.count for bin in bins)
    gaps = sum(bin.count * abs(bin.confidence - bin.accuracy) for bin in bins)
    return gaps / total if total else 0.0


def prediction_calibration_error(
    probabilities: Float[Tensor, "M C"], classes: Int[Tensor, " M"]
) -> float:
    """The calibration error of predictions."""
    confidence, predicted_classes = probabilities.double().max(dim=1)
    is_correct = (predicted_classes == classes).double()
    return calibration_error(reliability(confidence.numpy(), is_correct.numpy()))
