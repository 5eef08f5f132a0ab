"""ScaleModel: the set encoder with the heads that train it."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from clipset.model.config import ModelConfig
from clipset.model.encoder import SetEncoder, SetEncoding
from clipset.model.losses import ScaleLosses, masked_clip_loss, set_contrastive_loss


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
    """(2B, V, …), first sets before second ones, to (B, 2V, …): one video's clips together."""
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
