"""The protocol of probes: what they are trained from, how their settings are selected."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from clipset.errors import ProbeError
from clipset.model.config import ModelConfig
from clipset.model.encoder import SetEncoder
from clipset.probes.config import EvaluateConfig, Features
from clipset.probes.inputs import CHUNK_SIZE
from clipset.probes.search import (
    HALVINGS,
    Axes,
    Trainings,
    ValidationCurves,
    ValidationSplit,
    count_epochs,
    grid_points,
    make_validation_split,
    middle_point,
    split_by_memory,
    train_by_halving,
)
from clipset.probes.task import EvaluationTask
from clipset.sets.stored_clips import Clips, equal_chunks
from clipset.training.checkpoint import ScaleModel

Tensors = dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSetup:
    """What a probe is trained from. Targets, if there are some, are standardised."""

    task: EvaluationTask
    model: ScaleModel | None
    config: EvaluateConfig
    seed: int
    """of the search"""
    labels_seed: int | None = None
    """that the training labels were drawn with; None if all seeds have the same labels"""
    ordered_weights: dict[int | None, float] = field(default_factory=dict)
    """of the clips in order, by `labels_seed`, as transformers from a random start selected them"""

    @property
    def architecture(self) -> ModelConfig:
        """The architecture of transformers: the model's, or the default one for the boxes."""
        if self.model is not None:
            return self.model.config
        box_dim = self.task.train.random.read(slice(0, 1)).boxes.shape[-1]
        return ModelConfig(box_coordinates="official" if box_dim == 7 else "paper")

    def encoder(self) -> SetEncoder:
        """The pre-trained encoder."""
        if self.model is None:
            raise ProbeError("probes on SCALE features need a trained model; give one")
        return self.model.encoder

    def split_validation(self) -> ValidationSplit:
        """The validation videos of the search."""
        return make_validation_split(self.task.train, self.seed, self.task.validation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The settings that did best on validation videos; `selected_on` is None without any."""

    settings: Any
    """a dataclass of the probe"""
    epochs: int | None = None
    num_candidates: int = 1
    selected_on: str | None = None

    @property
    def learning_rate(self) -> float | None:
        """The learning rate, if the probe has one."""
        return getattr(self.settings, "learning_rate", None)


class Probe(ABC):
    """A kind of probe on one task, on the backbone's features or on those of the set encoder.

    `search` compares the points of `search_space` on validation videos; `fit` then trains a
    classifier with the selected settings.
    """

    kind: ClassVar[str]
    is_seeded: ClassVar[bool] = True
    """whether another seed gives another classifier"""
    has_course: ClassVar[bool] = False
    """whether it sees the clips of a video in order, which only the regular ones have"""

    def __init__(self, setup: ProbeSetup, features: Features) -> None:
        self.setup, self.features = setup, features
        self.encoder = setup.encoder() if features == "scale" else None

    @abstractmethod
    def search_space(self) -> Sequence[Any]:
        """The settings to compare."""

    @abstractmethod
    def search(self) -> Selection:
        """The best settings on the validation videos."""

    @abstractmethod
    def fit(self, selection: Selection, video_index: Int[Tensor, " B"], seed: int) -> nn.Module:
        """A classifier trained on some of the training videos, which maps clips to logits."""

    @classmethod
    @abstractmethod
    def rebuild(
        cls, state: Tensors, config: EvaluateConfig, num_outputs: int, encoder: SetEncoder | None
    ) -> nn.Module:
        """A fitted classifier from its `state_dict`; the encoder is of the right shape."""


class TrainedProbe(Probe):
    """A probe whose candidates are trained epoch by epoch and compared by successive halving."""

    num_halvings: ClassVar[int] = HALVINGS
    min_steps: ClassVar[int] = 0
    """`max_steps` below this does not shorten the training"""
    settings_type: ClassVar[type[Any]]
    can_stop_early: ClassVar[bool] = True

    @property
    def stops_early(self) -> bool:
        """Whether the number of epochs of the final training is chosen on validation videos."""
        return self.can_stop_early and self.setup.config.training.early_stopping

    @property
    def num_epochs(self) -> int:
        """Epochs of the search, for which the learning rate is scheduled there."""
        config = self.setup.config.training
        max_steps = max(config.max_steps, self.min_steps)
        return count_epochs(len(self.setup.task.train), config, max_steps)

    @abstractmethod
    def axes(self) -> Axes:
        """The values of each setting to search, the slowest one first."""

    @abstractmethod
    def training_bytes(self, settings: Any) -> int:
        """The memory that the training of a candidate needs, roughly."""

    @abstractmethod
    def start(self, candidates: dict[int, Any], split: ValidationSplit) -> Trainings:
        """Candidates at the start of their training."""

    def search_space(self) -> list[Any]:
        return grid_points(self.settings_type, self.axes())

    def search(self) -> Selection:
        """Candidates that need too much memory together are trained in groups."""
        candidates, split = self.search_space(), self.setup.split_validation()
        if split.validation is None or (len(candidates) == 1 and not self.stops_early):
            default_settings = middle_point(self.settings_type, self.axes())
            return Selection(settings=default_settings, epochs=self.num_epochs)
        curves = ValidationCurves(len(candidates), self.num_epochs, self.num_halvings)
        for group in split_by_memory([self.training_bytes(point) for point in candidates]):
            train_by_halving(self.start({n: candidates[n] for n in group}, split), curves)
        best, best_epoch = curves.best(early_stopping=self.stops_early)
        return Selection(
            settings=candidates[best],
            epochs=equal_epochs(best_epoch, self.num_epochs),
            num_candidates=len(candidates),
            selected_on=split.description,
        )


def equal_epochs(best_epoch: int, num_epochs: int) -> int:
    """Epochs of a training whose learning rates add up to those before the best epoch of a search.

    In the search, the rate falls over `num_epochs` and may still be high at the best one; in the
    final training, it falls to 0 (both as half a cosine).
    """
    part = best_epoch / num_epochs
    return round(num_epochs * (part + math.sin(math.pi * part) / math.pi))


class TensorClassifier(nn.Module):
    """A classifier of given tensors, which are saved with it, on the inputs of clips or videos."""

    def __init__(self, tensors: Tensors, inputs: nn.Module) -> None:
        super().__init__()
        self.inputs = inputs
        for name, value in tensors.items():
            self.register_buffer(name, value)


def own_tensors(state: Tensors) -> Tensors:
    """The tensors of a classifier itself, without those of its parts."""
    return {name: value for name, value in state.items() if "." not in name}


def average_clips(
    logits: Float[Tensor, "*E B L C"], is_regression: bool
) -> Float[Tensor, "*E B C"]:
    """The mean over a video's clips of their class probabilities, or of their targets."""
    return (logits if is_regression else logits.softmax(dim=-1)).mean(dim=-2)


@torch.inference_mode()
def predict_videos(
    classifier: nn.Module, clips: Clips, *, is_regression: bool = False
) -> Float[Tensor, "M C"]:
    """Class probabilities (or targets) of videos, averaged over their clips."""
    index_chunks, outputs = [], []
    for video_index, chunk in equal_chunks(clips, CHUNK_SIZE):
        index_chunks.append(video_index)
        outputs.append(average_clips(classifier(chunk), is_regression))
    return torch.cat(outputs)[torch.cat(index_chunks).argsort()]
