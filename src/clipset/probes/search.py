"""Hyper-parameter search: validation videos, scores on them, successive halving.

Nothing here sees a test video.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from sklearn.model_selection import GroupShuffleSplit, StratifiedShuffleSplit
from torch import Tensor

from clipset.probes.config import ProbeTraining
from clipset.probes.task import LabelledVideos

VALIDATION_FRACTION = 0.25  # of the training videos, without a split `val`
HALVINGS = 2  # how often the weaker half of the candidates is dropped
Score = tuple[float, float]  # higher is better: accuracy, log-likelihood; or minus the MSE
IndexPair = tuple[Int[Tensor, " A"], Int[Tensor, " B"]]


@dataclass(frozen=True, slots=True)
class ValidationSplit:
    """Training videos to learn from during the search, and videos to compare candidates on.

    `source`: the catalog's split `val`, a subset of the training videos, or none (too few videos).
    """

    source: Literal["val", "train", "none"]
    train: Int[Tensor, " A"]
    validation: Int[Tensor, " B"] | None = (
        None  # indices of training videos, if they are the source
    )
    description: str | None = None

    @property
    def exists(self) -> bool:
        """Whether there are validation videos."""
        return self.source != "none"

    def videos(self, train: LabelledVideos, val: LabelledVideos | None) -> LabelledVideos:
        """The validation videos, from the training videos and the split `val`."""
        if self.validation is not None:
            return train.select(self.validation)
        assert val is not None  # only called if there are validation videos
        return val


def make_validation_split(
    train: LabelledVideos, seed: int, validation: LabelledVideos | None = None
) -> ValidationSplit:
    """The catalog's split `val`, or a subset of the training videos, or none."""
    every = torch.arange(len(train))
    if validation is not None:
        description = f"the {len(validation)} videos of the split 'val'"
        return ValidationSplit("val", every, description=description)
    pair = split_training_videos(train, VALIDATION_FRACTION, seed)
    if pair is None:
        return ValidationSplit("none", every)
    kind = "stratified" if train.targets is None else "at random"
    kind = "whole groups" if has_groups(train) else kind
    description = f"{len(pair[1])} of {len(train)} training videos ({kind})"
    return ValidationSplit("train", *pair, description)


def split_training_videos(train: LabelledVideos, fraction: float, seed: int) -> IndexPair | None:
    """Indices of training and validation videos; None if there are too few.

    By whole groups where the catalog has groups, else stratified by class. A class with a single
    video is only trained on.
    """
    if has_groups(train):
        splitter = GroupShuffleSplit(1, test_size=fraction, random_state=seed)
        learn, check = next(splitter.split(train.classes, train.classes, list(train.groups)))
        return torch.as_tensor(learn), torch.as_tensor(check)
    if train.targets is not None:
        return _random_split(len(train), fraction, seed)
    counts = torch.bincount(train.classes)
    several = (counts[train.classes] > 1).nonzero().squeeze(1)
    single = (counts[train.classes] == 1).nonzero().squeeze(1)
    num_classes = int((counts > 1).sum())
    size = max(round(fraction * len(several)), num_classes)
    if num_classes < 2 or len(several) - size < num_classes:
        return None
    splitter = StratifiedShuffleSplit(1, test_size=size, random_state=seed)
    learn, check = next(splitter.split(several, train.classes[several]))
    return torch.cat([several[torch.as_tensor(learn)], single]), several[torch.as_tensor(check)]


def _random_split(num_videos: int, fraction: float, seed: int) -> IndexPair | None:
    size = max(round(fraction * num_videos), 1)
    if num_videos - size < 2:
        return None
    order = torch.randperm(num_videos, generator=torch.Generator().manual_seed(seed))
    return order[size:].sort().values, order[:size].sort().values


def has_groups(train: LabelledVideos) -> bool:
    """Whether every training video names its group, and there are at least two."""
    return None not in train.groups and len(set(train.groups)) > 1


def score_outputs(
    outputs: Float[Tensor, "M C"], labels: Int[Tensor, " M"] | Float[Tensor, " M"]
) -> Score:
    """The score of predictions on validation videos; the lowest one if they diverged."""
    if not bool(torch.isfinite(outputs).all()):
        return -math.inf, -math.inf
    if labels.is_floating_point():
        return -float(((outputs[:, 0] - labels) ** 2).mean()), 0.0
    accuracy = (outputs.argmax(dim=1) == labels).float().mean().item()
    likelihood = outputs[torch.arange(len(labels)), labels].clamp_min(1e-9).log().mean().item()
    return accuracy, likelihood


class ValidationCurves:
    """The scores of each candidate after each epoch, and successive halving by them."""

    def __init__(self, num_candidates: int, num_epochs: int, num_halvings: int) -> None:
        self.scores: list[list[Score]] = [[] for _ in range(num_candidates)]
        self.num_epochs = num_epochs
        self.halving_epochs = {
            max(num_epochs >> back, 1) for back in range(1, num_halvings + 1) if num_epochs > 1
        }  # ..., a quarter, a half of the epochs

    def add(self, candidate: int, score: Score) -> None:
        """The score of a candidate after its next epoch."""
        self.scores[candidate].append(score)

    def better_half(self, candidates: Iterable[int]) -> set[int]:
        """The better half of some candidates, by the best epoch of each."""
        ranked = sorted(candidates, key=lambda c: (max(self.scores[c]), -c), reverse=True)
        return set(ranked[: -(-len(ranked) // 2)])

    def best(self, *, early_stopping: bool) -> tuple[int, int]:
        """The best candidate and its number of epochs (all, without early stopping).

        Of equal scores, the first candidate and the first epoch.
        """
        first = 1 if early_stopping else self.num_epochs
        ranked = [
            (score, -candidate, -epoch)
            for candidate, scores in enumerate(self.scores)
            for epoch, score in enumerate(scores, start=1)
            if epoch >= first
        ]
        _, candidate, epoch = max(ranked)
        return -candidate, -epoch


def count_epochs(num_videos: int, config: ProbeTraining, max_steps: int) -> int:
    """Epochs of a training of at most `config.epochs` epochs and about `max_steps` batches.

    All candidates have as many epochs: those of the smallest batch size.
    """
    return min(config.epochs, -(-max_steps // -(-num_videos // min(config.batch_sizes))))
