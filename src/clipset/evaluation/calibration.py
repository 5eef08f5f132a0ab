"""Probabilities that mean what they say: temperature scaling, and how far off they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

LEAST, MOST = 0.02, 50.0  # temperatures that are looked at
BINS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """Predictions of nearly the same confidence: how sure they were, how often they were right."""

    low: float
    high: float
    count: int
    confidence: float
    right: float


def temper(probabilities: Float[Tensor, "M C"], temperature: float) -> Float[Tensor, "M C"]:
    """Sharper below 1, flatter above; the order of the classes stays."""
    logs = probabilities.double().clamp_min(1e-12).log()  # (M, C)
    return (logs / temperature).softmax(dim=1).to(probabilities.dtype)


def fit_temperature(probabilities: Float[Tensor, "M C"], classes: Int[Tensor, " M"]) -> float:
    """The temperature under which the true classes are likeliest.

    M videos cannot show that one is surer than (M + 1) of (M + 2): a share of 1 / (M + 2) of the
    truth is spread over all classes, so that a few videos without a mistake do not mean certainty.
    """
    count, width = probabilities.shape
    logs = probabilities.double().clamp_min(1e-12).log()  # (M, C)
    doubt = 1.0 / (count + 2)
    truth = (1 - doubt) * F.one_hot(classes, width) + doubt / width  # (M, C)
    observed = (truth * logs).sum(dim=1).mean()

    def slope(sharpness: float) -> float:
        """How the loss changes with 1 / temperature; it only grows, because the loss is convex."""
        expected = ((sharpness * logs).softmax(dim=1) * logs).sum(dim=1).mean()
        return float(expected - observed)

    low, high = 1 / MOST, 1 / LEAST
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return 1 / math.sqrt(low * high)


def reliability(
    confidence: Float[np.ndarray, " M"], right: Float[np.ndarray, " M"], bins: int = BINS
) -> list[Bin]:
    """Predictions by how sure they were, in bins of equal width; empty ones are left out."""
    places = np.clip((confidence * bins).astype(np.int64), 0, bins - 1)
    return [
        Bin(
            low=place / bins,
            high=(place + 1) / bins,
            count=int((places == place).sum()),
            confidence=float(confidence[places == place].mean()),
            right=float(right[places == place].mean()),
        )
        for place in np.unique(places).tolist()
    ]


def calibration_error(bins: Sequence[Bin]) -> float:
    """ECE: how far confidence and accuracy are apart, on average over the predictions."""
    total = sum(each.count for each in bins)
    gaps = sum(each.count * abs(each.confidence - each.right) for each in bins)
    return gaps / total if total else 0.0


def error_of(probabilities: Float[Tensor, "M C"], classes: Int[Tensor, " M"]) -> float:
    """The calibration error of predictions of known classes."""
    confidence, guess = probabilities.double().max(dim=1)
    right = (guess == classes).double()
    return calibration_error(reliability(confidence.numpy(), right.numpy()))
