"""VideoMAE (Tong et al., NeurIPS 2022): reconstruct the pixels of masked tubes.

The encoder sees the visible tokens only. A small decoder predicts the masked patches, each
normalised by its own mean and deviation. Pure PyTorch.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from clipset.errors import TrainingError
from clipset.networks.video_transformers import (
    QueryValueBiasAttention,
    VideoMAE,
    VideoMAEConfig,
    ViTBlock,
    ViTConfig,
    sinusoid_table,
)
from clipset.ssl.method import SelfSupervisedMethod, init_weights

DECODER_DEPTH = 4
EPSILON = 1e-6  # added to the deviation of a patch


class MaskedAutoencoder(SelfSupervisedMethod):
    """An encoder of visible tokens and a decoder of pixels."""

    decoder_table: Tensor

    def __init__(self, config: VideoMAEConfig, *, mask_ratio: float = 0.9) -> None:
        """The decoder has half the width of the encoder, as published."""
        super().__init__()
        self.config, self.mask_ratio = config, mask_ratio
        self.encoder = VideoMAE(config)
        num_tokens = self.encoder.table.shape[0]
        count_visible(num_tokens // self.encoder.grid[0], mask_ratio)  # refuses a bad ratio
        dim = config.embed_dim // 2
        decoder = ViTConfig(
            embed_dim=dim,
            num_heads=max(config.num_heads // 2, 1),
            mlp_dim=4 * dim,
            norm_eps=config.norm_eps,
        )
        self.encoder_to_decoder = nn.Linear(config.embed_dim, dim, bias=False)
        self.mask_token = nn.Parameter(torch.zeros(dim))
        self.decoder = nn.ModuleList(
            ViTBlock(decoder, QueryValueBiasAttention) for _ in range(DECODER_DEPTH)
        )
        self.decoder_norm = nn.LayerNorm(dim, eps=config.norm_eps)
        self.decoder_head = nn.Linear(dim, 3 * config.tubelet_size * config.patch_size**2)
        self.register_buffer("decoder_table", sinusoid_table(num_tokens, dim), persistent=False)
        init_weights(self)
        nn.init.trunc_normal_(self.mask_token, std=0.02)

    def forward(self, views: Float[Tensor, "V B T 3 H W"]) -> Float[Tensor, ""]:
        clips = views.flatten(0, 1)
        masked = draw_tubes(len(clips), self.encoder.grid, self.mask_ratio)
        return self.loss(clips, masked.to(clips.device))

    def loss(
        self, clips: Float[Tensor, "B T 3 H W"], masked: Bool[Tensor, "B N"]
    ) -> Float[Tensor, ""]:
        """The mean squared error of the masked patches; the same number is masked in every clip."""
        order = masked.int().argsort(dim=1, stable=True)  # (B, N): visible tokens first
        num_visible = int(masked.shape[1] - masked[0].sum())
        visible, hidden = order[:, :num_visible], order[:, num_visible:]
        encoded = self.encoder_to_decoder(self.encoder.tokens(clips, visible))
        positions = self.decoder_table.expand(len(clips), -1, -1)
        tokens = torch.cat([encoded, self.mask_token.expand(*hidden.shape, -1)], dim=1)
        tokens = tokens + _select(positions, order)
        for block in self.decoder:
            tokens = block(tokens)
        predicted = self.decoder_head(self.decoder_norm(tokens[:, num_visible:]))
        targets = _select(normalised_patches(clips, self.config), hidden)
        return F.mse_loss(predicted.float(), targets)


def normalised_patches(
    clips: Float[Tensor, "B T 3 H W"], config: ViTConfig
) -> Float[Tensor, "B N E"]:
    """The pixels of each token; each channel of a patch with mean 0 and deviation 1."""
    patch = config.patch_size
    cells = clips.unflatten(4, (-1, patch)).unflatten(3, (-1, patch))  # (B, T, 3, h, p, w, p)
    cells = cells.unflatten(1, (-1, config.tubelet_size))  # (B, t, q, 3, h, p, w, p)
    patches = cells.permute(0, 1, 4, 6, 2, 5, 7, 3).flatten(4, 6).flatten(1, 3)  # (B, N, P, 3)
    deviations, means = torch.std_mean(patches, dim=2, keepdim=True)
    normalised: Tensor = (patches - means) / (deviations + EPSILON)
    return normalised.flatten(2)


def draw_tubes(batch: int, grid: tuple[int, int, int], mask_ratio: float) -> Bool[Tensor, "B N"]:
    """Random masks: True where hidden; the same places of the frame at all times of a clip."""
    num_times, height, width = grid
    num_places = height * width
    ranks = torch.rand(batch, num_places).argsort(dim=1).argsort(dim=1)
    return (ranks >= count_visible(num_places, mask_ratio)).repeat(1, num_times)


def count_visible(num_tokens: int, mask_ratio: float) -> int:
    """How many of some tokens stay; at least one does, and at least one does not."""
    num_visible = num_tokens - int(mask_ratio * num_tokens)
    if not 0 < mask_ratio < 1 or not 0 < num_visible < num_tokens:
        raise TrainingError(
            f"drop must leave some of {num_tokens} tokens and drop some, got {mask_ratio}"
        )
    return num_visible


def _select(tokens: Float[Tensor, "B N E"], indices: Tensor) -> Float[Tensor, "B K E"]:
    return tokens.gather(1, indices[:, :, None].expand(-1, -1, tokens.shape[2]))
