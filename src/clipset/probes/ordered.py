"""Ridge regression on all regular clips of a video in their order, solved in closed form."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from clipset.errors import ProbeError
from clipset.probes.base import (
    ClassifierShape,
    Probe,
    Selection,
    Tensors,
    own_tensors,
    register_tensors,
)
from clipset.probes.search import Score, score_outputs
from clipset.sets.batch import ClipBatch
from clipset.sets.statistics import feature_statistics

PENALTIES = (1e-2, 1e-1, 1.0, 10.0, 100.0)  # to search
SHARPNESS = (1.0, 3.0, 10.0, 30.0)  # factors of the scores before the softmax, to search
Labels = Int[Tensor, " N"] | Float[Tensor, " N"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RidgeSettings:
    """A point of the search space."""

    penalty: float
    sharpness: float


class Ridge:
    """Ridge regression of one-hot classes or targets, for several penalties.

    The solved matrix has as many rows as there are videos or channels, whichever is less. A
    penalty of 1 is the mean of that matrix's eigenvalues.
    """

    def __init__(self, train: Float[Tensor, "N R"], labels: Labels, num_outputs: int) -> None:
        self.is_regression = labels.is_floating_point()
        targets = labels[:, None] if self.is_regression else F.one_hot(labels, num_outputs)
        self.offset = targets.double().mean(dim=0)
        self.targets = targets.double() - self.offset  # (N, C)
        self.train, self.is_dual = train, train.shape[1] > train.shape[0]
        self.gram = (train @ train.T if self.is_dual else train.T @ train).double()

    def solve(self, penalty: float) -> Float[Tensor, "R C"]:
        """The weights of one penalty."""
        system = self.gram.clone()
        system.diagonal().add_(penalty * self.gram.diagonal().mean().clamp_min(1e-12))
        factor = torch.linalg.cholesky(system)
        if self.is_dual:
            return self.train.T @ torch.cholesky_solve(self.targets, factor).float()
        return torch.cholesky_solve((self.train.T @ self.targets.float()).double(), factor).float()

    def predict(
        self, weight: Float[Tensor, "R C"], queries: Float[Tensor, "M R"], sharpness: float
    ) -> Float[Tensor, "M C"]:
        """Targets, or class probabilities."""
        scores = queries @ weight + self.offset.float()
        return scores if self.is_regression else (sharpness * scores).softmax(dim=1)


def channel_scale(
    train: Float[Tensor, "N R"],
) -> tuple[Float[Tensor, " R"], Float[Tensor, " R"]]:
    """Mean and divisor of each channel (infinite for a constant one): vectors of length about 1."""
    mean, std = feature_statistics(train, constant_std=torch.inf)
    return mean, std * train.shape[1] ** 0.5


def search_ridge(
    train: Float[Tensor, "A R"],
    labels: Int[Tensor, " A"] | Float[Tensor, " A"],
    validation: Float[Tensor, "B R"],
    validation_labels: Int[Tensor, " B"] | Float[Tensor, " B"],
    num_outputs: int,
) -> RidgeSettings:
    """The penalty and sharpness with the best score on the validation videos."""
    mean, scale = channel_scale(train)
    train, validation = (train - mean) / scale, (validation - mean) / scale
    ridge = Ridge(train, labels, num_outputs)
    ranked: list[tuple[Score, float, float]] = []
    for penalty in PENALTIES:
        weight = ridge.solve(penalty)
        for sharpness in SHARPNESS:
            outputs = ridge.predict(weight, validation, sharpness)
            ranked.append((score_outputs(outputs, validation_labels), penalty, sharpness))
    _, penalty, sharpness = max(ranked)
    return RidgeSettings(penalty=penalty, sharpness=sharpness)


def fit_ridge(
    train: Float[Tensor, "N R"], labels: Labels, num_outputs: int, settings: RidgeSettings
) -> Tensors:
    """Mean and scale of the channels, and the linear layer behind them."""
    mean, scale = channel_scale(train)
    ridge = Ridge((train - mean) / scale, labels, num_outputs)
    weight, bias = ridge.solve(settings.penalty), ridge.offset.float()
    if not ridge.is_regression:
        weight, bias = settings.sharpness * weight, settings.sharpness * bias
    return {"mean": mean, "scale": scale, "weight": weight, "bias": bias}


class RidgeClassifier(nn.Module):
    """A linear layer on all clips of a video side by side."""

    def __init__(self, tensors: Tensors) -> None:
        super().__init__()
        register_tensors(self, tensors)

    def forward(self, clips: ClipBatch) -> Float[Tensor, "B 1 C"]:
        vectors, mean = clips.features.flatten(1), self.get_buffer("mean")
        missing = len(mean) - vectors.shape[1]
        if missing < 0:
            raise ProbeError("a video has more clips than the training videos of the probe")
        inputs = (F.pad(vectors, (0, missing)) - mean) / self.get_buffer("scale")
        return torch.addmm(self.get_buffer("bias"), inputs, self.get_buffer("weight"))[:, None]


class OrderedProbe(Probe):
    """A linear classifier of the clips in order, on the backbone's features."""

    kind = "ordered"
    is_seeded = False

    def search_space(self) -> list[RidgeSettings]:
        return [RidgeSettings(penalty=p, sharpness=s) for p in PENALTIES for s in SHARPNESS]

    def search(self) -> Selection:
        task, split = self.setup.task, self.setup.split_validation()
        if not split.exists:
            default = RidgeSettings(penalty=PENALTIES[len(PENALTIES) // 2], sharpness=10.0)
            return Selection(settings=default)
        validation = split.videos(task.train, task.validation)
        settings = search_ridge(
            task.train.regular.features.flatten(1)[split.train],
            task.train.labels[split.train],
            validation.regular.features.flatten(1),
            validation.labels,
            task.num_outputs,
        )
        return Selection(
            settings=settings, num_candidates=len(PENALTIES), selected_on=split.description
        )

    def fit(self, selection: Selection, videos: Int[Tensor, " B"], seed: int) -> RidgeClassifier:  # noqa: ARG002
        task = self.setup.task
        vectors = task.train.regular.features.flatten(1)[videos]
        settings: RidgeSettings = selection.settings
        tensors = fit_ridge(vectors, task.train.labels[videos], task.num_outputs, settings)
        return RidgeClassifier(tensors).eval()

    @classmethod
    def rebuild(cls, state: Tensors, shape: ClassifierShape) -> RidgeClassifier:  # noqa: ARG003
        return RidgeClassifier(own_tensors(state))
