"""How the model is trained."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from clipset.errors import TrainingError
from clipset.model.config import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainConfig:
    """How the model is trained."""

    model: ModelConfig = field(default_factory=ModelConfig)
    """the shape of the model"""
    ssl_split: Literal["train", "all"] = "train"
    """videos to learn from, without labels (the published code takes all, test ones too)"""
    epochs: int = 500
    """times that every video is seen"""
    min_steps: int = 300
    """at least so many steps, by more epochs: small collections have few batches in an epoch"""
    batch: int = 512
    """videos in a batch"""
    clips_per_set: int = 8
    """clips in each of the two sets (K)"""
    mask_ratio: float = 0.25
    """share of the clips of a set that is hidden"""
    learning_rate: float = 3e-4
    """peak of the learning rate"""
    warmup: float = 0.05
    """share of the steps in which the rate rises"""
    weight_decay: float = 1e-4
    """decay of the matrices"""
    clip_gradient: float = 1.0
    """largest norm of a gradient"""
    standardise: bool = True
    """centre and scale the features by the training videos' statistics"""

    def __post_init__(self) -> None:
        for name in ("epochs", "batch"):
            if getattr(self, name) < 1:
                raise TrainingError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.clips_per_set < 2:
            raise TrainingError(f"a set needs at least 2 clips, got {self.clips_per_set}")
        if not 0 < self.mask_ratio < 1:
            raise TrainingError(f"mask_ratio must lie between 0 and 1, got {self.mask_ratio}")
