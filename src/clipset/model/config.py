"""The shape of the model and what it learns from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from clipset.errors import ModelError

BoxKind = Literal["paper", "official"]
WIDEST: Final = 2**20  # channels, and whatever else is counted in a layer
DEEPEST: Final = 1000  # layers


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The shape of the model and what it learns from."""

    width: int = 256
    """hidden width of the transformer"""
    layers: int = 2
    """transformer layers"""
    head_channels: int = 32
    """channels of one attention head"""
    expansion: int = 2
    """how many times wider the layers' MLPs are"""
    dropout: float = 0.1
    """dropout in attention and MLPs"""
    head_width: int = 256
    """hidden width of the projection heads of predictions and sets"""
    head_layers: int = 3
    """layers of the projection heads of predictions and sets"""
    target_width: int | None = None
    """hidden width of the projection head of clip features (as head_width if not given)"""
    target_layers: int | None = None
    """layers of the projection head of clip features (as head_layers if not given)"""
    projected: int = 128
    """width of the space in which clips and sets are compared"""
    temperature: float = 0.2
    """temperature of the contrast"""
    boxes: BoxKind = "paper"
    """what says where a clip is: paper (relative to the video) or official (to its clips)"""
    losses: Literal["both", "masked", "set"] = "both"
    """what is learned from: masked clips, pairs of sets, or both"""
    set_loss: Literal["contrast", "clustering", "regression"] = "contrast"
    """two sets of a video find each other, share clusters (DINO), or predict each other (BYOL)"""
    symmetric: bool = True
    """features also find their predictions, not only predictions their features"""
    rivals: Literal["masked", "all"] = "masked"
    """predictions among which a feature finds its own: those of hidden clips, or of all"""
    average: bool = False
    """means over clips, directions and losses, as published, instead of the paper's sums"""
    prototypes: int = 512
    """clustering: number of clusters"""
    cluster_temperature: float = 0.1
    """clustering: temperature of the assignment that learns"""
    teacher_temperature: float = 0.04
    """clustering: temperature of the teacher's assignment; lower is sharper"""
    teacher_momentum: float = 0.99
    """clustering, regression: what the teacher keeps of itself in a step (0: it is the student)"""

    def __post_init__(self) -> None:
        _check_counts(self)
        _check_numbers(self)

    @property
    def box_numbers(self) -> int:
        """How many coordinates a box has."""
        return 7 if self.boxes == "official" else 6


def _check_counts(config: ModelConfig) -> None:
    for name in COUNTS:
        value, largest = getattr(config, name), DEEPEST if "layers" in name else WIDEST
        if value is not None and not 1 <= value <= largest:
            raise ModelError(f"{name} must lie between 1 and {largest}, got {value}")
    if config.width % config.head_channels:
        raise ModelError(f"width {config.width} must be a multiple of {config.head_channels}")


def _check_numbers(config: ModelConfig) -> None:
    if not 0 <= config.dropout < 1:
        raise ModelError(f"dropout must be at least 0 and less than 1, got {config.dropout}")
    for name in ("temperature", "cluster_temperature", "teacher_temperature"):
        if not 0 < getattr(config, name) < math.inf:
            raise ModelError(f"{name} must be more than 0, got {getattr(config, name)}")
    if not 0 <= config.teacher_momentum < 1:
        raise ModelError(
            f"teacher_momentum must be at least 0 and less than 1, got {config.teacher_momentum}"
        )


COUNTS: Final = (
    "width", "layers", "head_channels", "expansion", "head_width", "head_layers", "target_width",
    "target_layers", "projected", "prototypes",
)  # fmt: skip
