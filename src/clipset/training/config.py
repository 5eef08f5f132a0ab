"""How the model is trained."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from clipset.config import to_mapping
from clipset.errors import TrainingError
from clipset.model.config import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainConfig:
    """How the model is trained."""

    preset: str = "recommended"
    """named settings (recommended, paper, official) for all that is not set by hand"""
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
    batch_from: Literal["all", "group"] = "all"
    """videos of a batch: any; or of one group of the catalog each time (one person, one place), so
    that what they are told apart by is not the group"""
    mix_means: bool = False
    """whether each set's mean feature is moved a random part of the way to another video's, so that
    sets are not told apart by what never changes in a video, such as the person"""
    clips_per_set: int = 8
    """clips in each of the two sets (K)"""
    mask_ratio: float = 0.25
    """share of the clips of a set that is hidden"""
    mask_rule: Literal["count", "coin"] = "count"
    """hide the same number in every set, or toss a coin for each clip"""
    learning_rate: float = 3e-4
    """peak of the learning rate"""
    warmup: float = 0.05
    """share of the steps in which the rate rises"""
    weight_decay: float = 1e-4
    """decay of the matrices"""
    clip_gradient: float = 1.0
    """largest norm of a gradient (0: any)"""
    standardise: bool = True
    """centre and scale the features by the training videos' statistics"""
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """numbers of the forward pass; auto is mixed on CUDA cards that gain from it, else float32"""
    compile: bool = False
    """compile the losses with torch.compile"""
    validate_every: int = 0
    """k-NN on validation videos every so many epochs (0: never); the best model is kept in best/"""
    keep: int = 2
    """how many of the last checkpoints stay while training"""
    in_memory: bool | None = None
    """features in memory, or streamed from the store; decided by their size if not given"""

    def __post_init__(self) -> None:
        for name in ("epochs", "batch"):
            if getattr(self, name) < 1:
                raise TrainingError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.clips_per_set < 2:
            raise TrainingError(f"a set needs at least 2 clips, got {self.clips_per_set}")
        if not 0 < self.mask_ratio < 1:
            raise TrainingError(f"mask_ratio must lie between 0 and 1, got {self.mask_ratio}")
        for name in ("learning_rate", "weight_decay", "clip_gradient"):
            if not 0 <= getattr(self, name) < math.inf:
                raise TrainingError(f"{name} must be at least 0, got {getattr(self, name)}")
        if not 0 <= self.warmup <= 1:
            raise TrainingError(f"warmup must lie between 0 and 1, got {self.warmup}")
        if self.keep < 1:
            raise TrainingError(f"keep must be at least 1, got {self.keep}")
        if self.validate_every < 0:
            raise TrainingError(f"validate_every must be at least 0, got {self.validate_every}")


WITHOUT_EFFECT = ("preset", "validate_every", "keep", "in_memory")  # on the weights


def held(config: PretrainConfig) -> dict[str, Any]:
    """The settings that decide the weights: a run goes on only if these are the same."""
    return {k: v for k, v in to_mapping(config).items() if k not in WITHOUT_EFFECT}
