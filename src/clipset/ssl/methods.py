"""Self-supervised methods on clips: VideoMAE, MoCo v3, and MoCo v3 with few tokens.

VideoMAE (Tong et al., NeurIPS 2022) reconstructs the pixels of masked tubes. The encoder sees the
visible tokens only. A small decoder predicts the masked patches, each normalised by its own mean
and deviation.

MoCo v3 (Chen, Xie and He, ICCV 2021): two views of each video; the prediction from one must find
the momentum encoder's projection of the other among those of all videos of the batch. With `drop`,
the trained encoder sees a random part of the tokens of each view, and the momentum encoder all of
them, as the targets of MSN do. Tokens are averaged; there is no class token.

Pure PyTorch: modules take and return tensors.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from itertools import pairwise

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
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

DECODER_DEPTH = 4
EPSILON = 1e-6  # added to the deviation of a patch
TEMPERATURE = 0.2
HIDDEN_DIM, OUTPUT_DIM = 4096, 256  # of MoCo's heads
MOMENTUM = 0.99  # at the start; it rises to 1


class SelfSupervisedMethod(nn.Module, ABC):
    """An encoder and what is needed to train it; the encoder alone is the backbone."""

    encoder: VideoMAE
    num_views: int = 1

    @abstractmethod
    def forward(self, views: Float[Tensor, "V B T 3 H W"]) -> Float[Tensor, ""]:
        """The loss of a batch, from normalised views of its videos."""

    def update_teacher(self, progress: float) -> None:
        """After each step; `progress` is the finished fraction of the training."""

    def init_weights(self) -> None:
        """Linear layers as in VideoMAE and MoCo v3: Xavier, uniform, without bias at first."""
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)


class MaskedAutoencoder(SelfSupervisedMethod):
    """VideoMAE: an encoder of visible tokens and a decoder of pixels."""

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
        self.init_weights()
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
        tokens = torch.cat([encoded, self.mask_token.expand(*hidden.shape, -1)], dim=1)
        tokens = tokens + self.decoder_table[order]  # (B, N, E)
        for block in self.decoder:
            tokens = block(tokens)
        predicted = self.decoder_head(self.decoder_norm(tokens[:, num_visible:]))
        patches = normalised_patches(clips, self.config)
        targets = patches.take_along_dim(hidden[:, :, None], dim=1)
        return F.mse_loss(predicted.float(), targets)


class MoCo(SelfSupervisedMethod):
    """MoCo v3: an encoder with two heads, and a slowly moving copy of it."""

    num_views = 2

    def __init__(
        self, config: VideoMAEConfig, *, drop: float | None = None, hidden_dim: int = HIDDEN_DIM
    ) -> None:
        super().__init__()
        self.encoder = VideoMAE(config)
        self.num_tokens = self.encoder.table.shape[0]
        self.num_visible = None if drop is None else count_visible(self.num_tokens, drop)
        self.projection = make_head(config.embed_dim, hidden_dim, hidden_dim, OUTPUT_DIM)
        self.prediction = make_head(OUTPUT_DIM, hidden_dim, OUTPUT_DIM)
        self.init_weights()
        self.encoder.patch_embed.requires_grad_(False)  # as published: training is more stable
        self.teacher = copy.deepcopy(nn.ModuleList([self.encoder, self.projection]))
        self.teacher.requires_grad_(False)

    def forward(self, views: Float[Tensor, "V B T 3 H W"]) -> Float[Tensor, ""]:
        clips = views.flatten(0, 1)
        with torch.no_grad():  # heads see one view at a time: so do the statistics of their norms
            first_key, second_key = (self.teacher[1](self.teacher[0](view)) for view in views)
        encoded = self.encoder(clips, self.draw_visible(len(clips), clips.device))
        first, second = (self.prediction(self.projection(view)) for view in encoded.chunk(2))
        return contrast(first, second_key) + contrast(second, first_key)

    def draw_visible(self, batch: int, device: torch.device) -> Int[Tensor, "B K"] | None:
        """Random tokens that the encoder sees; None: all."""
        if self.num_visible is None:
            return None
        order = torch.rand(batch, self.num_tokens).argsort(dim=1)[:, : self.num_visible]
        return order.sort(dim=1).values.to(device)

    @torch.no_grad()
    def update_teacher(self, progress: float) -> None:
        momentum = 1 - (1 - MOMENTUM) * 0.5 * (1 + math.cos(math.pi * progress))
        own = [*self.encoder.parameters(), *self.projection.parameters()]
        for average, parameter in zip(self.teacher.parameters(), own, strict=True):
            average.lerp_(parameter, 1 - momentum)


def make_method(name: str, network: VideoMAEConfig, drop: float) -> SelfSupervisedMethod:
    """The networks of videomae, moco or sparse-moco; moco drops no tokens."""
    if name == "videomae":
        return MaskedAutoencoder(network, mask_ratio=drop)
    return MoCo(network, drop=drop if name == "sparse-moco" else None)


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
    if not 0 < num_visible < num_tokens:
        raise TrainingError(
            f"drop must leave some of {num_tokens} tokens and drop some, got {mask_ratio}"
        )
    return num_visible


def make_head(*widths: int) -> nn.Sequential:
    """Linear layers, each with a batch norm; a ReLU after all but the last."""
    layers: list[nn.Module] = []
    for input_dim, width in pairwise(widths):
        layers += [nn.Linear(input_dim, width, bias=False), nn.BatchNorm1d(width), nn.ReLU()]
    return nn.Sequential(*layers[:-2], nn.BatchNorm1d(widths[-1], affine=False))


def contrast(queries: Float[Tensor, "B P"], keys: Float[Tensor, "B P"]) -> Float[Tensor, ""]:
    """InfoNCE of each query with the key of the same video, times 2 τ as published."""
    logits = F.normalize(queries.float(), dim=1) @ F.normalize(keys.float(), dim=1).T
    labels = torch.arange(len(queries), device=queries.device)
    return 2 * TEMPERATURE * F.cross_entropy(logits / TEMPERATURE, labels)
