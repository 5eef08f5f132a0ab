"""Settings of pre-training."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from clipset.config import to_mapping
from clipset.errors import TrainingError
from clipset.model.config import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainConfig:
    """Settings of pre-training."""

    preset: str = "recommended"
    """named settings (recommended, paper, official) for all that is not set by hand"""
    model: ModelConfig = field(default_factory=ModelConfig)
    """the architecture of the model and its losses"""
    ssl_split: Literal["train", "all"] = "train"
    """videos to learn from, without labels (the published code takes all, test videos too)"""
    seeds: int = 1
    """pre-trainings of a run, with consecutive seeds; SCALE rows are means over their models"""
    epochs: int | None = None
    """passes over the videos (default: as many as pay, by the number of videos and the loss of
    training videos that are held out)"""
    batch_size: int = 128
    """videos in a batch"""
    batch_from: Literal["auto", "all", "group", "similar"] = "auto"
    """videos of a batch: any, of one group of the catalog (one person, one place), or similar ones,
    so that the group or the look does not tell a video from its negatives; auto: of one group if
    groups are named, large and mixed; without groups, similar ones if their labels differ"""
    clips_per_set: int = 8
    """clips in each of the two sets (K)"""
    mask_ratio: float = 0.25
    """fraction of the clips that is masked, on average"""
    mask_rule: Literal["count", "bernoulli"] = "count"
    """mask the same number of clips in every set (rounded at random where it is not whole), or
    each clip with the same probability"""
    learning_rate: float = 3e-4
    """peak of the learning rate"""
    backbone_lr_scale: float = 0.1
    """end to end: the backbone's learning rate, relative to learning_rate (0: it stays frozen)"""
    weight_decay: float = 1e-4
    """weight decay of matrices"""
    max_grad_norm: float = 1.0
    """largest norm of the gradient (0: no clipping)"""
    standardise: bool = True
    """centre and scale the features by the training videos' statistics"""
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """dtype of the forward pass; auto is mixed precision on devices that gain from it"""
    validate_every: int = 0
    """epochs between k-NN on validation videos (0: never); the best model is saved in best/"""

    def __post_init__(self) -> None:
        for name in ("seeds", "epochs", "batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise TrainingError(f"{name} must be at least 1, got {value}")
        if self.clips_per_set < 2:
            raise TrainingError(f"clips_per_set must be at least 2, got {self.clips_per_set}")
        if not 0 < self.mask_ratio < 1:
            raise TrainingError(f"mask_ratio must lie between 0 and 1, got {self.mask_ratio}")
        for name in ("learning_rate", "backbone_lr_scale", "weight_decay", "max_grad_norm"):
            if not 0 <= getattr(self, name) < math.inf:
                raise TrainingError(f"{name} must be at least 0, got {getattr(self, name)}")
        if self.validate_every < 0:
            raise TrainingError(f"validate_every must be at least 0, got {self.validate_every}")


WITHOUT_EFFECT = ("preset", "seeds", "validate_every", "backbone_lr_scale")  # on the weights


def weight_settings(config: PretrainConfig) -> dict[str, Any]:
    """The settings that decide the weights: only a run with equal ones can be resumed."""
    return {k: v for k, v in to_mapping(config).items() if k not in WITHOUT_EFFECT}
