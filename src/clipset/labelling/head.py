"""The classifier of the label loop: ridge regression in closed form, checked by leave-one-out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy.special import softmax

PENALTIES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
SHARPNESS = (1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 18.0, 30.0)  # factors of the scores before the softmax
DEFAULT_PENALTY, DEFAULT_SHARPNESS = 0.03, 8.0  # while no class has two labels


@dataclass(frozen=True, kw_only=True)
class RidgeHead:
    """A linear classifier: the softmax of `values @ weight + bias` are its probabilities.

    `left_out` are the probabilities of each training video by the head without it.
    """

    classes: tuple[str, ...]
    weight: Float[np.ndarray, "K C"]
    bias: Float[np.ndarray, " C"]
    left_out: Float[np.ndarray, "M C"]

    def predict(self, values: Float[np.ndarray, "N K"]) -> Float[np.ndarray, "N C"]:
        """The probability of every class."""
        return np.asarray(softmax(values @ self.weight + self.bias, axis=1))


def fit_ridge(values: Float[np.ndarray, "M K"], labels: tuple[str, ...]) -> RidgeHead:
    """The head with the penalty and sharpness of the highest leave-one-out likelihood.

    The only video of a class says nothing there: without it, its class is unknown.
    """
    classes, targets = np.unique(np.array(labels, dtype=object), return_inverse=True)
    one_hot = np.eye(len(classes))[targets]
    inputs = np.concatenate([values, np.ones((len(values), 1))], axis=1)
    left, singular, right = np.linalg.svd(inputs, full_matrices=False)
    projected = left.T @ one_hot
    repeated = np.bincount(targets)[targets] > 1
    best = (-np.inf, DEFAULT_PENALTY, DEFAULT_SHARPNESS)
    if repeated.any():
        best = max(
            (_mean_log_likelihood(sharpness * scores[repeated], targets[repeated]), p, sharpness)
            for p in PENALTIES
            for scores in [_leave_one_out(left, singular, one_hot, p)]
            for sharpness in SHARPNESS
        )
    _, penalty, sharpness = best
    weight = sharpness * right.T @ (projected * (singular / (singular**2 + penalty))[:, None])
    left_out = softmax(sharpness * _leave_one_out(left, singular, one_hot, penalty), axis=1)
    return RidgeHead(
        classes=tuple(classes.tolist()),
        weight=weight[:-1].astype(np.float32),
        bias=weight[-1].astype(np.float32),
        left_out=left_out,
    )


def _leave_one_out(
    left: Float[np.ndarray, "M S"],
    singular: Float[np.ndarray, " S"],
    one_hot: Float[np.ndarray, "M C"],
    penalty: float,
) -> Float[np.ndarray, "M C"]:
    """The scores of each video by the regression on all others."""
    shrunk = left * (singular**2 / (singular**2 + penalty))  # (M, S)
    leverage = (shrunk * left).sum(axis=1, keepdims=True)  # (M, 1)
    residuals: Float[np.ndarray, "M C"] = one_hot - shrunk @ (left.T @ one_hot)
    return np.asarray(one_hot - residuals / (1 - leverage))


def _mean_log_likelihood(scores: Float[np.ndarray, "M C"], targets: Int[np.ndarray, " M"]) -> float:
    """Of the true classes, with labels smoothed by 1 / (M + 2): a few correct ones prove little."""
    logs = np.log(softmax(scores, axis=1).clip(1e-12))
    smoothing = 1.0 / (len(targets) + 2)
    own = logs[np.arange(len(targets)), targets]
    return float(((1 - smoothing) * own + smoothing * logs.mean(axis=1)).mean())
