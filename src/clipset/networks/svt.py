"""SVT: a video transformer with divided space-time attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clipset.networks.layers import LayeredNetwork
from clipset.networks.vit_blocks import MLP, Attention, FramePatchEmbed, ViTConfig, resize_trilinear


@dataclass(frozen=True, slots=True, kw_only=True)
class SVTConfig(ViTConfig):
    """The shape of the network; `frames` and `size` are those of its tables of positions."""

    frames: int = 8
    size: int = 224


class DividedBlock(nn.Module):
    """Attention over time at each position, then over space in each frame, then an MLP."""

    def __init__(self, config: SVTConfig) -> None:
        super().__init__()
        dim = config.embed_dim
        self.norm1 = nn.LayerNorm(dim, eps=config.norm_eps)
        self.attn = Attention(dim, config.num_heads)
        self.temporal_norm1 = nn.LayerNorm(dim, eps=config.norm_eps)
        self.temporal_attn = Attention(dim, config.num_heads)
        self.temporal_fc = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim, eps=config.norm_eps)
        self.mlp = MLP(dim, config.mlp_dim)

    def forward(
        self, cls: Float[Tensor, "B 1 D"], patches: Float[Tensor, "B T N D"]
    ) -> tuple[Float[Tensor, "B 1 D"], Float[Tensor, "B T N D"]]:
        patches = patches + self.attend_over_time(patches)
        cls_update, patches_update = self.attend_over_space(cls, patches)
        cls, patches = cls + cls_update, patches + patches_update
        return cls + self.mlp(self.norm2(cls)), patches + self.mlp(self.norm2(patches))

    def attend_over_time(self, patches: Float[Tensor, "B T N D"]) -> Float[Tensor, "B T N D"]:
        """Attention of each patch to the same position in the other frames."""
        batch, _, positions, _ = patches.shape
        tracks = patches.transpose(1, 2).flatten(0, 1)  # (B N, T, D)
        tracks = self.temporal_fc(self.temporal_attn(self.temporal_norm1(tracks)))
        return tracks.unflatten(0, (batch, positions)).transpose(1, 2)  # type: ignore[no-any-return]

    def attend_over_space(
        self, cls: Float[Tensor, "B 1 D"], patches: Float[Tensor, "B T N D"]
    ) -> tuple[Float[Tensor, "B 1 D"], Float[Tensor, "B T N D"]]:
        """Attention of each patch to its frame; the class token's is the mean over frames."""
        batch, frames, _, _ = patches.shape
        copies = cls[:, None].expand(-1, frames, -1, -1)
        tokens = torch.cat([copies, patches], dim=2).flatten(0, 1)  # (B T, 1 + N, D)
        tokens = self.attn(self.norm1(tokens)).unflatten(0, (batch, frames))
        return tokens[:, :, :1].mean(dim=1), tokens[:, :, 1:]


class SVT(LayeredNetwork):
    """Normalised clips to the class token after the last norm."""

    def __init__(self, config: SVTConfig) -> None:
        super().__init__()
        self.config = config
        side = config.size // config.patch_size
        self.cls_token = nn.Parameter(torch.zeros(1, 1, config.embed_dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + side * side, config.embed_dim))
        self.time_embed = nn.Parameter(torch.zeros(1, config.frames, config.embed_dim))
        self.patch_embed = FramePatchEmbed(config.embed_dim, config.patch_size)
        self.blocks = nn.ModuleList(DividedBlock(config) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.embed_dim, eps=config.norm_eps)

    def forward(self, clips: Float[Tensor, "B T 3 H W"]) -> Float[Tensor, "B D"]:
        batch, frames = clips.shape[:2]
        token_map = self.patch_embed(clips.flatten(0, 1))  # (B T, D, h, w)
        grid = (int(frames), int(token_map.shape[2]), int(token_map.shape[3]))
        patches = token_map.flatten(2).transpose(1, 2).unflatten(0, (batch, frames))  # (B, T, N, D)
        patches = patches + self.positions(grid).flatten(1, 2)
        cls = (self.cls_token + self.pos_embed[:, :1]).expand(batch, -1, -1)
        for block in self.blocks:
            cls, patches = block(cls, patches)
        return self.norm(cls)[:, 0]  # type: ignore[no-any-return]

    def pool_block(self, output: Any) -> Float[Tensor, "N D"]:
        """The class token."""
        return output[0][:, 0]  # type: ignore[no-any-return]

    def positions(self, grid: tuple[int, int, int]) -> Float[Tensor, "T h w D"]:
        """The position embedding of each patch on a grid of frames, rows and columns.

        Time and space are added and resized at once, as in the code of the SCALE paper.
        """
        side = self.config.size // self.config.patch_size
        space = self.pos_embed[0, 1:].unflatten(0, (side, side))  # (h, w, D)
        time = self.time_embed[0]  # (T, D)
        return resize_trilinear(space[None] + time[:, None, None], grid)
