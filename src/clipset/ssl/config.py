"""Settings of `clipset pretrain-backbone`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from clipset.backbones.trained import check_shape
from clipset.clips.config import Augmentation, Sampling
from clipset.errors import BackboneError, TrainingError
from clipset.networks.video_transformers import VideoMAEConfig

WIDTHS = {  # width, blocks and heads
    "mini": (128, 6, 2),
    "tiny": (192, 12, 3),
    "small": (384, 12, 6),
    "base": (768, 12, 12),
}
MOCO_COLOURS = Augmentation(
    brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1, grey_probability=0.2,
    blur_probability=0.5,
)  # fmt: skip
MAX_EPOCHS = 100  # without a number of epochs or minutes


@dataclass(frozen=True, slots=True, kw_only=True)
class BackboneTraining:
    """Settings of the training of a backbone."""

    method: Literal["videomae", "moco", "sparse-moco"] = "videomae"
    """masked tubes are reconstructed; two views of a video are told from other videos; the same
    with few tokens of each view"""
    vit: Literal["mini", "tiny", "small", "base"] = "tiny"
    """width and depth of the transformer: 128 × 6, 192 × 12, 384 × 12 or 768 × 12"""
    frames: int = 8
    """frames of a clip"""
    stride: int = 4
    """distance of a clip's frames, counted at 30 frames per second"""
    size: int = 112
    """height and width of a clip in pixels"""
    patch_size: int = 16
    """height and width of a token in pixels; it is 2 frames deep"""
    drop: float = 0.9
    """fraction of the tokens that the encoder does not see (videomae, sparse-moco)"""
    epochs: int | None = None
    """passes over the videos"""
    minutes: float | None = None
    """minutes of training instead; reading the videos comes on top"""
    batch_size: int = 64
    """videos in a batch"""
    learning_rate: float = 1e-3
    """peak of the learning rate"""
    weight_decay: float = 0.05
    """weight decay of matrices"""
    crop_scale: tuple[float, float] = (0.5, 1.0)
    """smallest and largest area of a crop, relative to the largest square"""
    flip: bool = True
    """flip half of the clips; only where left and right mean the same"""

    def __post_init__(self) -> None:
        if self.epochs is not None and self.minutes is not None:
            raise TrainingError("epochs and minutes exclude each other; set one of them")
        limits = {"epochs": 1, "batch_size": 2, "learning_rate": 0, "weight_decay": 0}
        for name, smallest in limits.items():
            value = getattr(self, name)
            if value is not None and not smallest <= value < math.inf:
                raise TrainingError(f"{name} must be at least {smallest}, got {value}")
        if self.minutes is not None and not 0 < self.minutes < math.inf:
            raise TrainingError(f"minutes must be more than 0, got {self.minutes}")
        if not 0 < self.drop < 1:
            raise TrainingError(
                f"drop must lie between 0 and 1, got {self.drop}: with 0 nothing is hidden, with "
                "1 nothing is seen"
            )
        self.sampling  # noqa: B018  refuses a bad crop_scale
        try:
            check_shape(self.network, "the backbone")
        except BackboneError as error:
            raise TrainingError(str(error)) from None

    @property
    def network(self) -> VideoMAEConfig:
        """The shape of the network."""
        width, depth, num_heads = WIDTHS[self.vit]
        return VideoMAEConfig(
            embed_dim=width, depth=depth, num_heads=num_heads, mlp_dim=4 * width,
            patch_size=self.patch_size, frames=self.frames, size=self.size,
        )  # fmt: skip

    @property
    def sampling(self) -> Sampling:
        """How the views of a video are drawn: one, or two with other colours."""
        is_moco = self.method != "videomae"
        return Sampling(
            num_clips=2 if is_moco else 1,
            crop_scale=self.crop_scale,
            flip=self.flip,
            augmentation=MOCO_COLOURS if is_moco else Augmentation(),
        )

    @property
    def span(self) -> float:
        """The duration of a clip in seconds."""
        return self.frames * self.stride / 30.0
