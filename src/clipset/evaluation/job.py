"""What every row of the table is made from, and what comes out of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from clipset.errors import ProbeError
from clipset.evaluation.config import EvaluateConfig
from clipset.evaluation.results import ProbeKey
from clipset.evaluation.selection import Parts, divide
from clipset.evaluation.task import EvaluationTask
from clipset.model.config import ModelConfig
from clipset.model.encoder import SetEncoder
from clipset.sets.batch import ClipBatch
from clipset.training.checkpoint import ScaleModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What every row is made from. Targets, where there are some, are standardised."""

    task: EvaluationTask
    trained: ScaleModel | None
    model: ModelConfig
    config: EvaluateConfig
    seeds: tuple[int, ...]

    @property
    def numbers(self) -> bool:
        """Whether numbers are predicted."""
        return not self.task.classes

    def divide(self) -> Parts:
        """The videos to choose by."""
        task = self.task
        return divide(task.train, self.seeds[0], task.validation)

    def encoder_for(self, row: ProbeKey) -> SetEncoder | None:
        """The encoder, without which there is no row on clipset's features."""
        if row.features == "backbone":
            return None
        if self.trained is None:
            raise ProbeError("rows on clipset's features need a trained model; give one")
        return self.trained.encoder


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a row is trained, after all choices: `fit` takes places of training videos and a seed."""

    fit: Callable[[Int[Tensor, " B"], int], nn.Module]
    parts: Parts
    selected_on: str  # the videos that choices were made on, or why there was nothing to choose
    repeats: bool = True  # whether another seed gives another classifier
    rate: float | None = None
    epochs: int | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    tried: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a row predicts for the test videos, once for each seed, and how it was chosen."""

    predictions: list[Float[Tensor, "M C"]]
    seeds: tuple[int, ...]
    selected_on: str
    rate: float | None = None
    epochs: int | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    tried: int = 1


def every_video(job: Job) -> Int[Tensor, " N"]:
    """The places of all training videos."""
    return torch.arange(len(job.task.train))


def default_shape(clips: ClipBatch) -> ModelConfig:
    """The default architecture for clips of this form."""
    kind: Literal["paper", "official"] = "official" if clips.boxes.shape[-1] == 7 else "paper"
    return ModelConfig(box_coordinates=kind)
