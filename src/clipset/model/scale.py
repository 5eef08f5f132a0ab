"""ScaleModel: the set encoder with the heads that train it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from clipset.errors import ModelError
from clipset.model.encoder import SetEncoder, SetEncoding
from clipset.model.losses import ScaleLosses, masked_clip_loss, set_contrastive_loss


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The shape of the model; the paper's base setting, with lean heads."""

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
    head_width: int = 512
    """hidden width of the three-layer projection heads"""
    projected: int = 128
    """width of the space in which clips and sets are compared"""
    temperature: float = 0.2
    """temperature of the contrast"""
    box_numbers: int = 6
    """numbers that say where a clip is (start and end in x, y and t)"""

    def __post_init__(self) -> None:
        for name in ("width", "layers", "head_channels", "expansion", "head_width", "projected"):
            if getattr(self, name) < 1:
                raise ModelError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.width % self.head_channels:
            raise ModelError(f"width {self.width} must be a multiple of {self.head_channels}")
        if not 0 <= self.dropout < 1:
            raise ModelError(f"dropout must be at least 0 and less than 1, got {self.dropout}")
        if self.temperature <= 0:
            raise ModelError(f"temperature must be more than 0, got {self.temperature}")


class ScaleModel(nn.Module):
    """Encodes sets of clips (`encode`), and learns to by two pseudo-tasks (`losses`)."""

    def __init__(self, dim: int, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = make_encoder(dim, config)
        self.predict_clip = projection_head(config.width, config)
        self.project_clip = projection_head(dim, config)
        self.project_set = projection_head(config.width, config)

    def encode(
        self, features: Float[Tensor, "B V D"], boxes: Float[Tensor, "B V X"]
    ) -> SetEncoding:
        """Represent sets of clips."""
        return self.encoder(features, boxes)  # type: ignore[no-any-return]

    def losses(
        self,
        features: Float[Tensor, "2 B V D"],
        boxes: Float[Tensor, "2 B V X"],
        masked: Bool[Tensor, "2 B V"],
    ) -> ScaleLosses:
        """The losses of a minibatch: two disjoint sets of each video, some clips of each hidden."""
        encoding = self.encoder(features.flatten(0, 1), boxes.flatten(0, 1), masked.flatten(0, 1))
        predicted = by_video(self.predict_clip(encoding.clip_tokens))  # (B, 2V, P)
        target = by_video(self.project_clip(self.encoder.standardise(features.flatten(0, 1))))
        temperature = self.config.temperature
        clip_loss, clip_found = masked_clip_loss(
            predicted, target, by_video(masked.flatten(0, 1)), temperature
        )
        one, two = self.project_set(encoding.set_token).chunk(2)  # (B, P) each
        set_loss, set_found = set_contrastive_loss(one, two, temperature)
        return ScaleLosses(
            total=clip_loss + set_loss,
            masked_clip=clip_loss,
            set_contrast=set_loss,
            masked_clip_accuracy=clip_found,
            set_accuracy=set_found,
        )


def by_video(sets: Tensor) -> Tensor:
    """(2B, V, …), all first sets before all second ones, to (B, 2V, …): the clips of one video together."""
    first, second = sets.chunk(2)
    return torch.cat([first, second], dim=1)


def make_encoder(dim: int, config: ModelConfig) -> SetEncoder:
    """The encoder alone, without the heads that only training needs."""
    return SetEncoder(
        dim,
        config.width,
        config.layers,
        box_numbers=config.box_numbers,
        heads=config.width // config.head_channels,
        expansion=config.expansion,
        dropout=config.dropout,
    )


def projection_head(dim: int, config: ModelConfig) -> nn.Sequential:
    """A three-layer MLP without batch normalisation."""
    return nn.Sequential(
        nn.Linear(dim, config.head_width, bias=False),
        nn.GELU(),
        nn.Linear(config.head_width, config.head_width, bias=False),
        nn.GELU(),
        nn.Linear(config.head_width, config.projected, bias=False),
    )
