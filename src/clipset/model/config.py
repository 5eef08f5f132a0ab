"""The architecture of the model and its losses."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from clipset.errors import ModelError

BoxCoordinates = Literal["paper", "official"]
MAX_WIDTH: Final = 2**20  # channels, and every other size of a layer
MAX_LAYERS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The architecture of the model and its losses."""

    width: int = 256
    """hidden width of the transformer"""
    num_layers: int = 2
    """transformer layers"""
    head_dim: int = 32
    """channels of one attention head"""
    mlp_ratio: int = 2
    """hidden width of the transformer's MLPs, as a multiple of width"""
    dropout: float = 0.1
    """dropout in attention and MLPs"""
    projection_hidden: tuple[int, ...] = (256, 256)
    """hidden widths of the projection heads of predictions and sets"""
    target_hidden: tuple[int, ...] = ()
    """hidden widths of the projection head of clip features (none: a linear layer)"""
    projection_dim: int = 64
    """width of the space in which clips and sets are compared"""
    temperature: float = 0.2
    """temperature of the contrastive losses"""
    box_coordinates: BoxCoordinates = "paper"
    """coordinates of clips: paper (relative to the video) or official (relative to its clips)"""
    losses: Literal["both", "masked", "set"] = "both"
    """losses to minimise: masked clips, pairs of sets, or both"""
    set_loss: Literal["contrast", "clustering", "regression"] = "contrast"
    """loss of set pairs: contrastive, clustering (DINO) or regression (BYOL)"""
    symmetric: bool = True
    """masked clip loss in both directions: predictions to features and features to predictions"""
    negatives: Literal["masked", "all"] = "masked"
    """negatives of a feature: the predictions of masked clips, or of all clips; with masked, large
    batches compare masked clips only, in parts of 4096 clips or more"""
    average: bool = False
    """means over clips, directions and losses, as published, instead of the paper's sums"""
    prototypes: int = 512
    """clustering: number of prototypes"""
    teacher_momentum: float = 0.99
    """clustering, regression: momentum of the teacher (0: it equals the student)"""

    def __post_init__(self) -> None:
        _check_sizes(self)
        if not 0 <= self.dropout < 1:
            raise ModelError(f"dropout must be at least 0 and less than 1, got {self.dropout}")
        if not 0 < self.temperature < math.inf:
            raise ModelError(f"temperature must be more than 0, got {self.temperature}")
        if not 0 <= self.teacher_momentum < 1:
            raise ModelError(
                f"teacher_momentum must be at least 0 and less than 1, got {self.teacher_momentum}"
            )

    @property
    def box_dim(self) -> int:
        """The number of coordinates of a box."""
        return 7 if self.box_coordinates == "official" else 6


def _check_sizes(config: ModelConfig) -> None:
    sizes: dict[str, int] = {name: getattr(config, name) for name in SIZES}
    for name in ("projection_hidden", "target_hidden"):
        hidden = getattr(config, name)
        if len(hidden) > MAX_LAYERS:
            raise ModelError(f"{name} must have at most {MAX_LAYERS} widths, got {len(hidden)}")
        sizes |= {f"{name}[{index}]": size for index, size in enumerate(hidden)}
    for name, size in sizes.items():
        largest = MAX_LAYERS if name == "num_layers" else MAX_WIDTH
        if not 1 <= size <= largest:
            raise ModelError(f"{name} must lie between 1 and {largest}, got {size}")
    if config.width % config.head_dim:
        raise ModelError(f"width {config.width} must be a multiple of head_dim {config.head_dim}")


SIZES: Final = ("width", "num_layers", "head_dim", "mlp_ratio", "projection_dim", "prototypes")
