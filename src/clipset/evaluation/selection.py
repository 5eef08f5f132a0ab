"""Which videos choices are made on, how good a candidate is there, and when weak ones are dropped.

Nothing here has ever seen a test video.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from sklearn.model_selection import GroupShuffleSplit, StratifiedShuffleSplit
from torch import Tensor

from clipset.evaluation.config import ProbeTraining
from clipset.evaluation.task import LabelledVideos

VALIDATION_FRACTION = 0.25  # of the training videos, where there is no split `val`
HALVINGS = 2  # how often the weaker half of the candidates is dropped
Score = tuple[float, float]  # larger is better: accuracy and certainty, or minus the squared error


@dataclass(frozen=True, slots=True)
class Parts:
    """Training videos to learn from while choosing, and the videos to choose by."""

    learn: Int[Tensor, " A"]
    check: Int[Tensor, " B"] | None  # places among the training videos; None: a split of its own
    selected_on: str

    @property
    def can_choose(self) -> bool:
        """Whether there is anything to choose by."""
        return not self.selected_on.startswith("nothing")


def divide(train: LabelledVideos, seed: int, validation: LabelledVideos | None = None) -> Parts:
    """The catalog's own split `val`, or a part of the training videos, or nothing."""
    every = torch.arange(len(train))
    if validation is not None:
        return Parts(every, None, f"the {len(validation)} videos of the split 'val'")
    parts = validation_split(train, VALIDATION_FRACTION, seed)
    if parts is None:
        return Parts(every, None, "nothing: too few training videos to set some aside")
    kind = "stratified" if train.targets is None else "at random"
    kind = "whole groups" if has_groups(train) else kind
    on = f"{len(parts[1])} of {len(train)} training videos ({kind})"
    return Parts(parts[0], parts[1], on)


def validation_split(
    train: LabelledVideos, share: float, seed: int
) -> tuple[Int[Tensor, " A"], Int[Tensor, " B"]] | None:
    """Training videos to learn from and to choose by; None if there are too few.

    By whole groups where the catalog has groups, else stratified by class. A class with a single
    video is only learned from.
    """
    if has_groups(train):
        splitter = GroupShuffleSplit(1, test_size=share, random_state=seed)
        learn, check = next(splitter.split(train.classes, train.classes, list(train.groups)))
        return torch.as_tensor(learn), torch.as_tensor(check)
    if train.targets is not None:
        return _any_split(len(train), share, seed)
    counts = torch.bincount(train.classes)
    many = (counts[train.classes] > 1).nonzero().squeeze(1)
    alone = (counts[train.classes] == 1).nonzero().squeeze(1)
    classes = int((counts > 1).sum())
    size = max(round(share * len(many)), classes)
    if classes < 2 or len(many) - size < classes:
        return None
    splitter = StratifiedShuffleSplit(1, test_size=size, random_state=seed)
    learn, check = next(splitter.split(many, train.classes[many]))
    return torch.cat([many[torch.as_tensor(learn)], alone]), many[torch.as_tensor(check)]


def _any_split(
    videos: int, share: float, seed: int
) -> tuple[Int[Tensor, " A"], Int[Tensor, " B"]] | None:
    size = max(round(share * videos), 1)
    if videos - size < 2:
        return None
    order = torch.randperm(videos, generator=torch.Generator().manual_seed(seed))
    return order[size:].sort().values, order[:size].sort().values


def has_groups(train: LabelledVideos) -> bool:
    """Whether every training video names its group, and there are at least two."""
    return None not in train.groups and len(set(train.groups)) > 1


def score(
    predicted: Float[Tensor, "M C"], wanted: Int[Tensor, " M"] | Float[Tensor, " M"]
) -> Score:
    """How good predictions are on the videos that choices are made on; what diverged is worst."""
    if not bool(torch.isfinite(predicted).all()):
        return -math.inf, -math.inf
    if wanted.is_floating_point():
        return -float(((predicted[:, 0] - wanted) ** 2).mean()), 0.0
    right = (predicted.argmax(dim=1) == wanted).float().mean().item()
    certain = predicted[torch.arange(len(wanted)), wanted].clamp_min(1e-9).log().mean().item()
    return right, certain


def best_of(curves: dict[int, list[Score]], *, first: int = 1) -> tuple[int, int]:
    """The candidate and the number of epochs with the best score; of equal ones the first.

    Epochs before the `first` do not count.
    """
    ranked = [
        (score, -number, -epoch)
        for number, curve in curves.items()
        for epoch, score in enumerate(curve, start=1)
        if epoch >= first
    ]
    _, number, epoch = max(ranked)
    return -number, -epoch


def survivors(curves: dict[int, list[Score]], alive: Iterable[int]) -> set[int]:
    """The better half of the candidates that are left, by the best epoch of each."""
    ranked = sorted(alive, key=lambda number: (max(curves[number]), -number), reverse=True)
    return set(ranked[: -(-len(ranked) // 2)])


def rungs(epochs: int, halvings: int) -> set[int]:
    """The epochs after which the weaker half is dropped: ..., a quarter, a half of them."""
    return {max(epochs >> back, 1) for back in range(1, halvings + 1) if epochs > 1}


def count_epochs(videos: int, config: ProbeTraining, steps: int) -> int:
    """Epochs of a training that ends after `steps` batches, or after `config.epochs`."""
    return min(config.epochs, -(-steps // -(-videos // config.batch_size)))
