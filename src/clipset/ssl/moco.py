"""MoCo v3 (Chen, Xie and He, ICCV 2021) on clips; sparse, with few tokens, as in MSN.

Two views of each video; the prediction from one must find the momentum encoder's projection of the
other among those of all videos of the batch. With `drop`, the trained encoder sees a random part of
the tokens of each view, and the momentum encoder all of them, as the targets of MSN do. Tokens are
averaged; there is no class token. Pure PyTorch.
"""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from clipset.networks.video_transformers import VideoMAE, VideoMAEConfig
from clipset.ssl.masked_autoencoder import count_visible
from clipset.ssl.method import SelfSupervisedMethod, init_weights

TEMPERATURE = 0.2
HIDDEN_DIM, OUTPUT_DIM = 4096, 256  # of the heads
MOMENTUM = 0.99  # at the start; it rises to 1


class MoCo(SelfSupervisedMethod):
    """An encoder with two heads, and a slowly moving copy of it."""

    num_views = 2

    def __init__(
        self, config: VideoMAEConfig, *, drop: float | None = None, hidden_dim: int = HIDDEN_DIM
    ) -> None:
        super().__init__()
        self.encoder = VideoMAE(config)
        self.num_tokens = self.encoder.table.shape[0]
        self.num_visible = None if drop is None else count_visible(self.num_tokens, drop)
        self.projection = make_head(3, config.embed_dim, hidden_dim, OUTPUT_DIM)
        self.prediction = make_head(2, OUTPUT_DIM, hidden_dim, OUTPUT_DIM)
        init_weights(self)
        self.encoder.patch_embed.requires_grad_(False)  # as published: training is more stable
        self.teacher = copy.deepcopy(nn.ModuleList([self.encoder, self.projection]))
        self.teacher.requires_grad_(False)

    def forward(self, views: Float[Tensor, "V B T 3 H W"]) -> Float[Tensor, ""]:
        clips = views.flatten(0, 1)
        with torch.no_grad():  # heads see one view at a time: so do the statistics of their norms
            first_key, second_key = (self.teacher[1](self.teacher[0](view)) for view in views)
        encoded = self.encoder(clips, self.draw_visible(len(clips), clips.device))
        first, second = encoded.chunk(2)
        queries = [self.prediction(self.projection(own)) for own in (first, second)]
        return contrast(queries[0], second_key) + contrast(queries[1], first_key)

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


def make_head(num_layers: int, input_dim: int, hidden_dim: int, output_dim: int) -> nn.Sequential:
    """Linear layers, each with a batch norm; a ReLU after all but the last."""
    layers: list[nn.Module] = []
    for index in range(num_layers):
        is_last = index == num_layers - 1
        width = output_dim if is_last else hidden_dim
        layers += [
            nn.Linear(input_dim, width, bias=False),
            nn.BatchNorm1d(width, affine=not is_last),
        ]
        layers += [] if is_last else [nn.ReLU()]
        input_dim = width
    return nn.Sequential(*layers)


def contrast(queries: Float[Tensor, "B P"], keys: Float[Tensor, "B P"]) -> Float[Tensor, ""]:
    """InfoNCE of each query with the key of the same video, times 2 τ as published."""
    logits = F.normalize(queries.float(), dim=1) @ F.normalize(keys.float(), dim=1).T
    labels = torch.arange(len(queries), device=queries.device)
    return 2 * TEMPERATURE * F.cross_entropy(logits / TEMPERATURE, labels)
