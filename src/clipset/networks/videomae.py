"""VideoMAE: the encoder, a plain video transformer with a fixed table of positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from clipset.networks.layers import LayeredNetwork
from clipset.networks.vit_blocks import (
    Attention,
    TubeletEmbed,
    ViTBlock,
    ViTConfig,
    resize_trilinear,
    sinusoid_table,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoMAEConfig(ViTConfig):
    """The shape of the network; `frames` and `size` are those of its table of positions.

    The last norm is applied to the "tokens" before their mean (pre-trained), or to the "mean" of
    the tokens (fine-tuned).
    """

    frames: int = 16
    size: int = 224
    norm: Literal["tokens", "mean"] = "tokens"


class QueryValueBiasAttention(Attention):
    """Attention with a bias of queries and values and none of keys."""

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__(embed_dim, num_heads, qkv_bias=False)
        self.q_bias = nn.Parameter(torch.zeros(embed_dim))
        self.v_bias = nn.Parameter(torch.zeros(embed_dim))

    def project_qkv(self, tokens: Float[Tensor, "B N D"]) -> Float[Tensor, "B N E"]:
        """Queries, keys and values side by side."""
        bias = torch.cat([self.q_bias, torch.zeros_like(self.q_bias), self.v_bias])
        return F.linear(tokens, self.qkv.weight, bias)


class VideoMAE(LayeredNetwork):
    """Normalised clips to the mean of all tokens, normed before or after."""

    table: Tensor

    def __init__(self, config: VideoMAEConfig) -> None:
        super().__init__()
        dim, heads, patch = config.embed_dim, config.num_heads, config.patch_size
        self.grid = (config.frames // config.tubelet_size,) + (config.size // patch,) * 2
        self.patch_embed = TubeletEmbed(dim, config.tubelet_size, patch)
        self.blocks = nn.ModuleList(
            ViTBlock(config, QueryValueBiasAttention(dim, heads)) for _ in range(config.depth)
        )
        last_norm, identity = nn.LayerNorm(dim, eps=config.norm_eps), nn.Identity()
        on_tokens = config.norm == "tokens"
        self.norm: nn.Module = last_norm if on_tokens else identity
        self.fc_norm: nn.Module = identity if on_tokens else last_norm
        count = self.grid[0] * self.grid[1] * self.grid[2]
        self.register_buffer("table", sinusoid_table(count, dim), persistent=False)

    def forward(self, clips: Float[Tensor, "B T 3 H W"]) -> Float[Tensor, "B D"]:
        return self.fc_norm(self.tokens(clips).mean(dim=1))  # type: ignore[no-any-return]

    def tokens(self, clips: Float[Tensor, "B T 3 H W"]) -> Float[Tensor, "B N D"]:
        """All tokens after the last block (normed if the network was pre-trained only)."""
        token_map = self.patch_embed(clips)  # (B, D, t, h, w)
        grid = (int(token_map.shape[2]), int(token_map.shape[3]), int(token_map.shape[4]))
        tokens = token_map.flatten(2).transpose(1, 2) + self.positions(grid).flatten(0, 2)
        for block in self.blocks:
            tokens = block(tokens)
        return self.norm(tokens)  # type: ignore[no-any-return]

    def positions(self, grid: tuple[int, int, int]) -> Float[Tensor, "t h w D"]:
        """The fixed table of the native grid, resized to `grid`; not computed anew for it."""
        return resize_trilinear(self.table.unflatten(0, self.grid), grid)
