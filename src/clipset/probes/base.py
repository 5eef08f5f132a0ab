"""What all probes share: their protocol, their inputs, and predictions of a fitted classifier."""

from __future__ import annotations

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
from clipset.probes.search import (
    HALVINGS,
    Trainings,
    ValidationCurves,
    ValidationSplit,
    make_validation_split,
    split_by_memory,
    train_by_halving,
)
from clipset.probes.task import EvaluationTask
from clipset.representation import VectorPart, course_widths, encode_clips, video_vectors
from clipset.sets.batch import ClipBatch, mean_over_clips
from clipset.sets.stored_clips import Clips, allocate_vectors, equal_chunks
from clipset.training.checkpoint import ScaleModel

CHUNK_SIZE = 256  # videos that are predicted at once
Tensors = dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSetup:
    """What a probe is trained from. Targets, if there are some, are standardised."""

    task: EvaluationTask
    model: ScaleModel | None
    config: EvaluateConfig
    seed: int
    """of the search"""
    ordered_weights: dict[int, float] = field(default_factory=dict)
    """of the clips in order, as selected by transformers from a random start, by seed"""

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
    def fit(self, selection: Selection, videos: Int[Tensor, " B"], seed: int) -> nn.Module:
        """A classifier trained on some of the training videos, which maps clips to logits."""

    @classmethod
    @abstractmethod
    def rebuild(cls, state: Tensors, shape: ClassifierShape) -> nn.Module:
        """A fitted classifier from its `state_dict`."""


class TrainedProbe(Probe):
    """A probe whose candidates are trained epoch by epoch and compared by successive halving."""

    num_halvings: ClassVar[int] = HALVINGS

    @property
    @abstractmethod
    def num_epochs(self) -> int:
        """Epochs that the learning rate is scheduled for."""

    @abstractmethod
    def default_settings(self) -> Any:
        """The settings without a search."""

    @abstractmethod
    def training_bytes(self, settings: Any) -> int:
        """The memory that the training of a candidate needs, roughly."""

    @abstractmethod
    def start(self, candidates: dict[int, Any], split: ValidationSplit) -> Trainings:
        """Candidates at the start of their training."""

    def search(self) -> Selection:
        """Candidates that need too much memory together are trained in groups."""
        candidates, split = self.search_space(), self.setup.split_validation()
        early_stopping = self.setup.config.training.early_stopping
        if not split.exists or (len(candidates) == 1 and not early_stopping):
            return Selection(settings=self.default_settings(), epochs=self.num_epochs)
        curves = ValidationCurves(len(candidates), self.num_epochs, self.num_halvings)
        for group in split_by_memory([self.training_bytes(point) for point in candidates]):
            train_by_halving(self.start({n: candidates[n] for n in group}, split), curves)
        best, epochs = curves.best(early_stopping=early_stopping)
        return Selection(
            settings=candidates[best],
            epochs=epochs,
            num_candidates=len(candidates),
            selected_on=split.description,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifierShape:
    """What is needed beside the weights to rebuild a classifier."""

    config: EvaluateConfig
    num_outputs: int
    encoder: SetEncoder | None
    """of the right shape; None for heads on the backbone's features"""


class ClipInputs(nn.Module):
    """The vectors that a head sees of each clip.

    The backbone's feature as it is, alone (or with the box behind it, if `with_boxes`) or, with an
    encoder, next to the set token (or to its own refined token).
    """

    def __init__(
        self,
        encoder: SetEncoder | None,
        *,
        token: VectorPart = "set",
        with_boxes: bool = False,
    ) -> None:
        super().__init__()
        self.encoder, self.with_boxes = encoder, with_boxes
        self.token: VectorPart = token

    def forward(self, clips: ClipBatch) -> Float[Tensor, "N V R"]:
        if self.encoder is None:
            return self.without_tokens(clips)
        tokens = encode_clips(self.encoder, clips, (self.token,))
        return torch.cat([clips.features, tokens], dim=-1)

    def without_tokens(self, clips: ClipBatch) -> Float[Tensor, "N V R"]:
        """The same without the encoder's tokens, which come last."""
        if self.with_boxes and self.encoder is None:
            return torch.cat([clips.features, clips.boxes], dim=-1)
        return clips.features


class VideoInputs(nn.Module):
    """One vector of each video: the mean over its clips' inputs, or their time course.

    With an encoder, the mean has the set token next to the features; the time course has the
    refined token of each clip.
    """

    def __init__(self, encoder: SetEncoder | None, *, has_course: bool = False) -> None:
        super().__init__()
        self.clip_inputs = ClipInputs(encoder, token="token" if has_course else "set")
        self.has_course = has_course

    def forward(self, clips: ClipBatch) -> Float[Tensor, "N R"]:
        vectors = self.clip_inputs(clips)
        if not self.has_course:
            return mean_over_clips(vectors, clips.valid)
        return video_vectors(vectors, clips.valid, self._clip_widths(clips.features.shape[-1]))

    def part_widths(self, feature_dim: int) -> tuple[int, ...]:
        """The widths of the parts of a time course: means and deviations."""
        return course_widths(self._clip_widths(feature_dim))

    def _clip_widths(self, feature_dim: int) -> tuple[int, ...]:
        encoder = self.clip_inputs.encoder
        return (feature_dim,) if encoder is None else (feature_dim, encoder.project.out_features)

    def all_vectors(self, clips: Clips) -> Float[Tensor, "N R"]:
        """The vectors of many videos."""
        vectors = allocate_vectors(len(clips), self(clips.read(slice(0, 1))).shape[1])
        for videos, chunk in equal_chunks(clips, CHUNK_SIZE):
            vectors[videos] = self(chunk).to(vectors.dtype)
        return vectors


def own_tensors(state: Tensors) -> Tensors:
    """The tensors of a classifier itself, without those of its parts."""
    return {name: value for name, value in state.items() if "." not in name}


def register_tensors(module: nn.Module, tensors: Tensors) -> None:
    """Make tensors buffers of a module, so that they are saved with it."""
    for name, value in tensors.items():
        module.register_buffer(name, value)


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
    index, outputs = [], []
    for videos, chunk in equal_chunks(clips, CHUNK_SIZE):
        index.append(videos)
        outputs.append(average_clips(classifier(chunk), is_regression))
    return torch.cat(outputs)[torch.cat(index).argsort()]
