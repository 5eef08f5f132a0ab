"""Ridge regression on all regular clips of a video in their order, solved in closed form."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from clipset.errors import ProbeError
from clipset.probes.base import (
    CHUNK_SIZE,
    ClassifierShape,
    Probe,
    Selection,
    Tensors,
    own_tensors,
    register_tensors,
)
from clipset.probes.clips import Clips
from clipset.probes.search import mean_score, video_scores
from clipset.probes.task import LabelledVideos
from clipset.sets.batch import MIN_STD, ClipBatch, RunningStatistics

PENALTIES = (1e-2, 1e-1, 1.0, 10.0, 100.0)  # to search
SHARPNESS = (1.0, 3.0, 10.0, 30.0)  # factors of the scores before the softmax, to search
BLOCK_SIZE = 2048  # videos read at once
GRAM_ROWS = 2048  # channels whose products are computed at once, each with those before them
Labels = Int[Tensor, " N"] | Float[Tensor, " N"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RidgeSettings:
    """A point of the search space."""

    penalty: float
    sharpness: float


class Ridge:
    """Ridge regression of one-hot classes or targets on standardised clips, for several penalties.

    The solved matrix has as many rows as there are videos or channels, whichever is less. A
    penalty of 1 is the mean of that matrix's eigenvalues.
    """

    def __init__(self, clips: Clips, labels: Labels, num_outputs: int) -> None:
        self.num_outputs, self.is_regression = num_outputs, labels.is_floating_point()
        self.is_dual = clips.num_clips * clips.dim > len(clips)
        block_size = len(clips) if self.is_dual else BLOCK_SIZE
        self.mean, self.scale = channel_scale(clips)
        if self.is_regression:
            self.offset = labels.double().mean(dim=0, keepdim=True)
        else:
            self.offset = labels.bincount(minlength=num_outputs).double() / len(labels)
        blocks = zip(_blocks(clips, block_size), torch.split(labels, block_size), strict=True)
        if self.is_dual:
            [(block, own)] = blocks
            self.train, self.right_side = self.standardise(block), self._targets(own)
            self.gram = (self.train @ self.train.T).double()
            return
        gram = torch.zeros(len(self.mean), len(self.mean))
        self.right_side = torch.zeros(len(self.mean), num_outputs, dtype=torch.float64)
        for block, own in blocks:
            inputs = self.standardise(block)
            for low in range(0, len(gram), GRAM_ROWS):  # the lower triangle is all that is read
                rows = slice(low, low + GRAM_ROWS)
                gram[rows, : rows.stop].addmm_(inputs[:, rows].T, inputs[:, : rows.stop])
            self.right_side += inputs.T @ self._targets(own).float()
        self.gram = gram.double()

    def standardise(self, vectors: Float[Tensor, "B R"]) -> Float[Tensor, "B R"]:
        """Vectors of length about 1."""
        return torch.sub(vectors, self.mean).div_(self.scale)

    def solve(self, penalty: float) -> Float[Tensor, "R C"]:
        """The weights of one penalty."""
        diagonal = self.gram.diagonal()
        before = diagonal.clone()
        diagonal.add_(penalty * before.mean().clamp_min(1e-12))
        solution = torch.cholesky_solve(self.right_side, torch.linalg.cholesky(self.gram)).float()
        diagonal.copy_(before)
        return self.train.T @ solution if self.is_dual else solution

    def predict(
        self, weight: Float[Tensor, "R C"], inputs: Float[Tensor, "M R"], sharpness: float
    ) -> Float[Tensor, "M C"]:
        """Targets, or class probabilities."""
        scores = inputs @ weight + self.offset.float()
        return scores if self.is_regression else (sharpness * scores).softmax(dim=1)

    def _targets(self, labels: Labels) -> Float[Tensor, "B C"]:
        targets = labels[:, None] if self.is_regression else F.one_hot(labels, self.num_outputs)
        return targets.double() - self.offset


def _blocks(clips: Clips, block_size: int) -> Iterator[Float[Tensor, "B R"]]:
    """All clips of each video side by side, padding included."""
    for low in range(0, len(clips), block_size):
        yield clips.read(slice(low, low + block_size)).features.flatten(1)


def channel_scale(clips: Clips) -> tuple[Float[Tensor, " R"], Float[Tensor, " R"]]:
    """Mean and divisor of each channel (infinite for a constant one): vectors of length about 1."""
    statistics = RunningStatistics()
    for block in _blocks(clips, BLOCK_SIZE):
        statistics.update(block)
    is_constant = statistics.sum_of_squares <= MIN_STD**2 * statistics.count
    std = statistics.std.masked_fill(is_constant, torch.inf)
    return statistics.mean, std * len(std) ** 0.5


def search_ridge(ridge: Ridge, validation: LabelledVideos) -> RidgeSettings:
    """The penalty and sharpness with the best score on the validation videos."""
    weights = {penalty: ridge.solve(penalty) for penalty in PENALTIES}
    scores: dict[tuple[float, float], list[Tensor]] = {}
    blocks = _blocks(validation.regular, CHUNK_SIZE)
    for block, labels in zip(blocks, torch.split(validation.labels, CHUNK_SIZE), strict=True):
        inputs = ridge.standardise(block)
        for penalty, weight in weights.items():
            for sharpness in SHARPNESS:
                outputs = ridge.predict(weight, inputs, sharpness)
                scores.setdefault((penalty, sharpness), []).append(video_scores(outputs, labels))
    ranked = [(mean_score(torch.cat(own, dim=1)), *point) for point, own in scores.items()]
    _, penalty, sharpness = max(ranked)
    return RidgeSettings(penalty=penalty, sharpness=sharpness)


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
    _last: tuple[Tensor, Ridge] | None = None

    def search_space(self) -> list[RidgeSettings]:
        return [RidgeSettings(penalty=p, sharpness=s) for p in PENALTIES for s in SHARPNESS]

    def search(self) -> Selection:
        task, split = self.setup.task, self.setup.split_validation()
        if not split.exists:
            default = RidgeSettings(penalty=PENALTIES[len(PENALTIES) // 2], sharpness=10.0)
            return Selection(settings=default)
        validation = split.videos(task.train, task.validation)
        settings = search_ridge(self._ridge(split.train), validation)
        return Selection(
            settings=settings, num_candidates=len(PENALTIES), selected_on=split.description
        )

    def fit(self, selection: Selection, videos: Int[Tensor, " B"], seed: int) -> RidgeClassifier:  # noqa: ARG002
        settings: RidgeSettings = selection.settings
        ridge = self._ridge(videos)
        factor = 1.0 if ridge.is_regression else settings.sharpness
        tensors = {
            "mean": ridge.mean,
            "scale": ridge.scale,
            "weight": factor * ridge.solve(settings.penalty),
            "bias": factor * ridge.offset.float(),
        }
        return RidgeClassifier(tensors).eval()

    def _ridge(self, videos: Int[Tensor, " B"]) -> Ridge:
        """The regression on some training videos; the last one is reused for the same videos."""
        if self._last is None or not torch.equal(self._last[0], videos):
            self._last = None  # frees the memory of the one before
            train = self.setup.task.train.select(videos)
            self._last = videos, Ridge(train.regular, train.labels, self.setup.task.num_outputs)
        return self._last[1]

    @classmethod
    def rebuild(cls, state: Tensors, shape: ClassifierShape) -> RidgeClassifier:  # noqa: ARG003
        return RidgeClassifier(own_tensors(state))
