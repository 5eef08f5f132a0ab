"""Hyper-parameter search: validation videos, scores on them, successive halving.

Nothing here sees a test video.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from sklearn.model_selection import GroupShuffleSplit, StratifiedShuffleSplit
from torch import Tensor

from clipset.probes.config import ProbeTraining
from clipset.probes.task import LabelledVideos, Labels

VALIDATION_FRACTION = 0.25  # of the training videos, without a split `val`
MAX_DRAWS = 100  # of validation groups, until they are a good part of the videos
MAX_COUNTS = 8  # numbers of validation groups that are tried
MAX_MISFIT = 0.2  # of a good part: by how much it may differ from the fraction that is wanted
HALVINGS = 3  # how often the weaker half of the candidates is dropped
TRAINING_MEMORY = 3 * 2**29  # bytes of the candidates that are trained at the same time
T = TypeVar("T")
Axes = dict[str, tuple[Any, ...]]  # values of each setting to search, the slowest one first
UNORDERED = ("batch_norm", "optimizer")  # settings without a middle value
Score = tuple[float, float]  # higher is better: accuracy, log-likelihood; or minus the MSE
IndexPair = tuple[Int[Tensor, " A"], Int[Tensor, " B"]]


@dataclass(frozen=True, slots=True)
class ValidationSplit:
    """Training videos to learn from during the search, and videos to compare candidates on.

    There are no validation videos if there are too few training videos to divide.
    """

    train: Int[Tensor, " A"]
    validation: LabelledVideos | None = None
    description: str | None = None


def make_validation_split(
    train: LabelledVideos, seed: int, validation: LabelledVideos | None = None
) -> ValidationSplit:
    """The catalog's split `val`, or a subset of the training videos, or none."""
    all_videos = torch.arange(len(train))
    if validation is not None:
        description = f"the {len(validation)} videos of the split 'val'"
        return ValidationSplit(all_videos, validation, description)
    index_pair = split_training_videos(train, VALIDATION_FRACTION, seed)
    if index_pair is None:
        return ValidationSplit(all_videos)
    split_kind = "stratified" if train.targets is None else "at random"
    split_kind = "whole groups" if _are_groups_apart(train, index_pair) else split_kind
    train_index, validation_index = index_pair
    description = f"{len(validation_index)} of {len(train)} training videos ({split_kind})"
    return ValidationSplit(train_index, train.select(validation_index), description)


def split_training_videos(train: LabelledVideos, fraction: float, seed: int) -> IndexPair | None:
    """Indices of training and validation videos; None if there are too few.

    By whole groups where the catalog has groups, else stratified by class, and also where groups
    cannot be divided (each has a class of its own). A class with a single video is only trained on.
    Copies of one file stay together, and no validation video is of a class that is not learned.
    """
    if (groups := connected_groups(train)) and (
        pair := _split_groups(train, groups, fraction, seed)
    ):
        return pair
    first_index, file_index = _distinct_files(train)
    if train.targets is None:
        index_pair = _split_by_class(train.classes[first_index], fraction, seed)
    else:
        index_pair = _split_at_random(len(first_index), fraction, seed)
    if index_pair is None or len(first_index) == len(train):
        return index_pair
    learn, check = (torch.isin(file_index, part).nonzero().squeeze(1) for part in index_pair)
    return _keep_learned(train, learn, check)


def connected_groups(train: LabelledVideos) -> tuple[int, ...]:
    """The group of each video, those with copies of one file as one.

    A video without a group is one of its own. Empty if no video has a group, or all the same.
    """
    if not any(train.groups):
        return ()
    keys = [f"video {i}" if g is None else f"group {g}" for i, g in enumerate(train.groups)]
    names, group_index = np.unique(keys, return_inverse=True)
    first_index, file_index = _distinct_files(train)
    links = coo_array(
        (np.ones(len(train)), (group_index, group_index[first_index[file_index]])),
        shape=(len(names), len(names)),
    )
    num_components, component = connected_components(links, directed=False)
    return tuple(component[group_index].tolist()) if num_components > 1 else ()


def _are_groups_apart(train: LabelledVideos, index_pair: IndexPair) -> bool:
    """Whether there are groups, and none has videos in both parts."""
    if not (groups := connected_groups(train)):
        return False
    learned, validated = ({groups[video] for video in part.tolist()} for part in index_pair)
    return not learned & validated


def _distinct_files(train: LabelledVideos) -> tuple[Int[Tensor, " F"], Int[Tensor, " N"]]:
    """The first video of each file, and the file of each video, in the order of the videos."""
    if not train.files:
        return torch.arange(len(train)), torch.arange(len(train))
    first_of_file: dict[str, int] = {}
    firsts = [first_of_file.setdefault(file, video) for video, file in enumerate(train.files)]
    first_index, file_index = torch.tensor(firsts).unique(return_inverse=True)
    return first_index, file_index


def _split_groups(
    train: LabelledVideos, groups: tuple[int, ...], fraction: float, seed: int
) -> IndexPair | None:
    """Whole groups, drawn again until they are a good part of the videos, of learned classes.

    If they never are, the draw that comes closest. None if no two classes can be in both parts.
    """
    class_groups = set(zip(train.classes.tolist(), groups, strict=True))
    num_groups_of = Counter(label for label, _ in class_groups)
    if train.targets is None and sum(n > 1 for n in num_groups_of.values()) < 2:
        return None
    usual_count = math.ceil(fraction * len(set(groups)))
    counts = sorted(range(1, len(set(groups))), key=lambda count: abs(count - usual_count))
    best, least_misfit = None, math.inf
    for count in counts[:MAX_COUNTS]:
        splitter = GroupShuffleSplit(MAX_DRAWS, test_size=count, random_state=seed)
        for drawn in splitter.split(train.classes, train.classes, list(groups)):
            learn, check = map(torch.as_tensor, drawn)
            index_pair = _keep_learned(train, learn, check)
            if index_pair is None:
                continue
            num_kept = len(index_pair[1])
            misfit = abs(len(check) / len(train) - fraction)
            if num_kept == len(check) and misfit < MAX_MISFIT:
                return index_pair
            misfit += 1 - num_kept / len(check)
            if misfit < least_misfit:
                best, least_misfit = index_pair, misfit
        if best is not None:
            return best
    return None


def _keep_learned(
    train: LabelledVideos, learn: Int[Tensor, " A"], check: Int[Tensor, " B"]
) -> IndexPair | None:
    """Both parts without validation videos of classes not learned; None if one class is left.

    With targets, None if fewer than two videos are learned.
    """
    if train.targets is not None:
        return None if len(learn) < 2 else (learn, check)
    check = check[torch.isin(train.classes[check], train.classes[learn])]
    return None if len(train.classes[check].unique()) < 2 else (learn, check)


def _split_at_random(num_videos: int, fraction: float, seed: int) -> IndexPair | None:
    num_validation = max(round(fraction * num_videos), 1)
    if num_videos - num_validation < 2:
        return None
    order = torch.randperm(num_videos, generator=torch.Generator().manual_seed(seed))
    return order[num_validation:].sort().values, order[:num_validation].sort().values


def _split_by_class(classes: Int[Tensor, " N"], fraction: float, seed: int) -> IndexPair | None:
    class_counts = torch.bincount(classes)
    several = (class_counts[classes] > 1).nonzero().squeeze(1)
    single = (class_counts[classes] == 1).nonzero().squeeze(1)
    num_classes = int((class_counts > 1).sum())
    num_validation = max(round(fraction * len(several)), num_classes)
    if num_classes < 2 or len(several) - num_validation < num_classes:
        return None
    splitter = StratifiedShuffleSplit(1, test_size=num_validation, random_state=seed)
    learn, check = next(splitter.split(several, classes[several]))
    return torch.cat([several[torch.as_tensor(learn)], single]), several[torch.as_tensor(check)]


def grid_points(settings_type: Callable[..., T], axes: Axes) -> list[T]:
    """All combinations of values."""
    points = itertools.product(*axes.values())
    return [settings_type(**dict(zip(axes, point_values, strict=True))) for point_values in points]


def middle_point(settings_type: Callable[..., T], axes: Axes) -> T:
    """What is trained without validation videos: the middle values, or the first without order."""
    middle = {n: values[0 if n in UNORDERED else len(values) // 2] for n, values in axes.items()}
    return settings_type(**middle)


def video_scores(outputs: Float[Tensor, "M C"], labels: Labels) -> Float[Tensor, "2 M"]:
    """Whether each video is right and the log-likelihood of its class, or minus its squared error.

    NaN where a prediction diverged.
    """
    if labels.is_floating_point():
        squared_errors = -((outputs[:, 0] - labels) ** 2)
        scores = torch.stack([squared_errors, torch.zeros_like(squared_errors)])
    else:
        is_correct = (outputs.argmax(dim=1) == labels).float()
        own_class = outputs[torch.arange(len(labels)), labels]
        scores = torch.stack([is_correct, own_class.clamp_min(1e-9).log()])
    return torch.where(outputs.isfinite().all(dim=1), scores, torch.nan)


def mean_score(scores: Float[Tensor, "2 M"]) -> Score:
    """The score of predictions on validation videos; the lowest one if they diverged."""
    if not bool(scores.isfinite().all()):
        return -math.inf, -math.inf
    return scores[0].mean().item(), scores[1].mean().item()


def score_outputs(outputs: Float[Tensor, "M C"], labels: Labels) -> Score:
    """The score of predictions for all validation videos."""
    return mean_score(video_scores(outputs, labels))


class ValidationCurves:
    """The scores of each candidate after each epoch, and successive halving by them."""

    def __init__(self, num_candidates: int, num_epochs: int, num_halvings: int) -> None:
        self.scores: list[list[Score]] = [[] for _ in range(num_candidates)]
        self.num_epochs = num_epochs
        self.halving_epochs = {
            max(num_epochs >> back, 1) for back in range(1, num_halvings + 1) if num_epochs > 1
        }  # ..., a quarter, a half of the epochs

    def better_half(self, candidates: Iterable[int]) -> set[int]:
        """The better half of some candidates, by the best epoch of each."""
        ranked = sorted(candidates, key=lambda c: (max(self.scores[c]), -c), reverse=True)
        return set(ranked[: -(-len(ranked) // 2)])

    def best(self, *, early_stopping: bool) -> tuple[int, int]:
        """The best candidate and its number of epochs (all, without early stopping).

        Of equal scores, the first candidate and the first epoch.
        """
        first_epoch = 1 if early_stopping else self.num_epochs
        ranked_scores = [
            (score, -candidate, -epoch)
            for candidate, scores in enumerate(self.scores)
            for epoch, score in enumerate(scores, start=1)
            if epoch >= first_epoch
        ]
        _, candidate, epoch = max(ranked_scores)
        return -candidate, -epoch


class Trainings(ABC):
    """Candidates in training, by their numbers."""

    @abstractmethod
    def run_epoch(self) -> None:
        """Train every candidate on every video once."""

    @abstractmethod
    def score(self) -> dict[int, Score]:
        """The present score of each candidate on the validation videos."""

    @abstractmethod
    def keep(self, candidates: set[int]) -> None:
        """Drop all but some candidates."""


def train_by_halving(trainings: Trainings, curves: ValidationCurves) -> None:
    """Train candidates for all epochs; the weaker half is dropped now and then."""
    for epoch in range(1, curves.num_epochs + 1):
        trainings.run_epoch()
        scores = trainings.score()
        for candidate, score in scores.items():
            curves.scores[candidate].append(score)
        if epoch in curves.halving_epochs:
            trainings.keep(curves.better_half(scores))


def split_by_memory(num_bytes: Sequence[int], limit: int = TRAINING_MEMORY) -> list[list[int]]:
    """Candidates in groups whose trainings fit a limit together; at least one in each group."""
    groups: list[list[int]] = []
    total_bytes = math.inf
    for candidate, candidate_bytes in enumerate(num_bytes):
        total_bytes += candidate_bytes
        if total_bytes > limit:
            groups.append([])
            total_bytes = candidate_bytes
        groups[-1].append(candidate)
    return groups


def count_epochs(num_videos: int, config: ProbeTraining, max_steps: int) -> int:
    """Epochs of a training of at most `config.epochs` epochs and about `max_steps` batches.

    All candidates have as many epochs: those of the smallest batch size.
    """
    return min(config.epochs, -(-max_steps // -(-num_videos // min(config.batch_sizes))))
