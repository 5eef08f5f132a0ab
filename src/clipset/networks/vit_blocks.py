"""Blocks of vision transformers: patch embeddings, attention, MLP, tables of positions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class ViTConfig:
    """The shape of a vision transformer; ViT-B/16 by default."""

    embed_dim: int = 768
    depth: int = 12
    num_heads: int = 12
    mlp_dim: int = 3072
    patch_size: int = 16
    tubelet_size: int = 2
    norm_eps: float = 1e-6


class FramePatchEmbed(nn.Module):
    """Each frame to a map of patch tokens."""

    def __init__(self, embed_dim: int, patch_size: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, embed_dim, patch_size, stride=patch_size)

    def forward(self, frames: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B D h w"]:
        return self.proj(frames)  # type: ignore[no-any-return]


class TubeletEmbed(nn.Module):
    """Clips to a map of tokens, each a few frames deep."""

    def __init__(self, embed_dim: int, tubelet_size: int, patch_size: int) -> None:
        super().__init__()
        kernel = (tubelet_size, patch_size, patch_size)
        self.proj = nn.Conv3d(3, embed_dim, kernel, stride=kernel)

    def forward(self, clips: Float[Tensor, "B T 3 H W"]) -> Float[Tensor, "B D t h w"]:
        return self.proj(clips.transpose(1, 2))  # type: ignore[no-any-return]


class Attention(nn.Module):
    """Self-attention with one fused projection to queries, keys and values."""

    def __init__(self, embed_dim: int, num_heads: int, qkv_bias: bool = True) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim, bias=qkv_bias)
        self.proj = nn.Linear(embed_dim, embed_dim)

    def project_qkv(self, tokens: Float[Tensor, "B N D"]) -> Float[Tensor, "B N E"]:
        """Queries, keys and values side by side."""
        return self.qkv(tokens)  # type: ignore[no-any-return]

    def forward(
        self, tokens: Float[Tensor, "B N D"], positions: Int[Tensor, "3 N"] | None = None
    ) -> Float[Tensor, "B N D"]:
        """Attention among all tokens; with positions, queries and keys are rotated by them."""
        heads = self.project_qkv(tokens).unflatten(-1, (3, self.num_heads, -1))
        queries, keys, values = heads.permute(2, 0, 3, 1, 4).unbind()  # (B, A, N, K) each
        if positions is not None:
            queries, keys = rotate(queries, positions), rotate(keys, positions)
        attended = F.scaled_dot_product_attention(queries, keys, values)
        return self.proj(attended.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class MLP(nn.Module):
    """Two linear layers with an exact GELU in between."""

    def __init__(self, embed_dim: int, mlp_dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(embed_dim, mlp_dim)
        self.fc2 = nn.Linear(mlp_dim, embed_dim)

    def forward(self, tokens: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        return self.fc2(F.gelu(self.fc1(tokens)))  # type: ignore[no-any-return]


class ViTBlock(nn.Module):
    """Attention, then MLP, each after a layer norm and with a residual."""

    def __init__(self, config: ViTConfig, attention: Attention | None = None) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.embed_dim, eps=config.norm_eps)
        self.attn = attention or Attention(config.embed_dim, config.num_heads)
        self.norm2 = nn.LayerNorm(config.embed_dim, eps=config.norm_eps)
        self.mlp = MLP(config.embed_dim, config.mlp_dim)

    def forward(
        self, tokens: Float[Tensor, "B N D"], positions: Int[Tensor, "3 N"] | None = None
    ) -> Float[Tensor, "B N D"]:
        tokens = tokens + self.attn(self.norm1(tokens), positions)
        return tokens + self.mlp(self.norm2(tokens))  # type: ignore[no-any-return]


def rotate(
    vectors: Float[Tensor, "B A N K"], positions: Int[Tensor, "3 N"]
) -> Float[Tensor, "B A N K"]:
    """Rotate a third of the channels by time, a third by row, a third by column; the rest stays."""
    third = 2 * (vectors.shape[-1] // 3 // 2)
    *axes, rest = vectors.split([third, third, third, vectors.shape[-1] - 3 * third], dim=-1)
    rotated = [rotate_axis(axis, index) for axis, index in zip(axes, positions, strict=True)]
    return torch.cat([*rotated, rest], dim=-1)


def rotate_axis(
    vectors: Float[Tensor, "B A N K"], positions: Int[Tensor, " N"]
) -> Float[Tensor, "B A N K"]:
    """Rotate neighbouring channels as pairs.

    The angles are laid out half after half, so that the two channels of a pair rotate by different
    angles: this is how the released weights of V-JEPA 2 were trained.
    """
    half = vectors.shape[-1] // 2
    steps = torch.arange(half, device=vectors.device, dtype=vectors.dtype) / half
    angles = positions[:, None] * 10000**-steps  # (N, K / 2)
    angles = torch.cat([angles, angles], dim=-1)
    pairs = vectors.unflatten(-1, (half, 2))
    swapped = torch.stack([-pairs[..., 1], pairs[..., 0]], dim=-1).flatten(-2)
    return vectors * angles.cos() + swapped * angles.sin()


def resize_trilinear(
    table: Float[Tensor, "t h w D"], grid: tuple[int, int, int]
) -> Float[Tensor, "T H W D"]:
    """A table of positions over time, height and width on another grid (corners not aligned).

    Space first, then time, each only if it changes: the same as all three at once, which OpenVINO
    gets wrong where one of them stays.
    """
    if tuple(table.shape[1:3]) != grid[1:]:
        frames = table.movedim(-1, 1)  # (t, D, h, w)
        frames = F.interpolate(frames, size=grid[1:], mode="bilinear", align_corners=False)
        table = frames.movedim(1, -1)
    if table.shape[0] != grid[0]:
        tracks = table.flatten(1).T[None]  # (1, H W D, t)
        tracks = F.interpolate(tracks, size=grid[0], mode="linear", align_corners=False)
        table = tracks[0].T.unflatten(1, table.shape[1:])
    return table


def sinusoid_table(count: int, embed_dim: int) -> Float[Tensor, "N D"]:
    """Sines on even and cosines on odd channels of the angles p / 10000^(2⌊j/2⌋/D)."""
    positions = torch.arange(count, dtype=torch.float64, device="cpu")[:, None]
    channels = torch.arange(embed_dim, dtype=torch.float64, device="cpu")
    angles = positions / 10000 ** (2 * (channels // 2) / embed_dim)  # (N, D)
    even = channels % 2 == 0
    return torch.where(even, angles.sin(), angles.cos()).float()
