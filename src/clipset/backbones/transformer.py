"""The parts that vision transformers share: attention, perceptron, block, tables of positions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from clipset.errors import BackboneError


class FramePatches(nn.Module):
    """Each frame to a map of patch tokens."""

    def __init__(self, width: int, patch: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, width, patch, stride=patch)

    def forward(self, frames: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B D h w"]:
        return self.proj(frames)  # type: ignore[no-any-return]


class TubePatches(nn.Module):
    """Clips to a map of tokens, each a few frames deep."""

    def __init__(self, width: int, tubelet: int, patch: int) -> None:
        super().__init__()
        kernel = (tubelet, patch, patch)
        self.proj = nn.Conv3d(3, width, kernel, stride=kernel)

    def forward(self, clips: Float[Tensor, "B T 3 H W"]) -> Float[Tensor, "B D t h w"]:
        return self.proj(clips.transpose(1, 2))  # type: ignore[no-any-return]


class Attention(nn.Module):
    """Self-attention with one fused product for queries, keys and values."""

    def __init__(self, width: int, heads: int, bias: bool = True) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=bias)
        self.proj = nn.Linear(width, width)

    def fused(self, tokens: Float[Tensor, "B N D"]) -> Float[Tensor, "B N E"]:
        """Queries, keys and values side by side."""
        return self.qkv(tokens)  # type: ignore[no-any-return]

    def forward(self, tokens: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
        queries, keys, values = split_heads(self.fused(tokens), self.heads)
        return self.proj(attend(queries, keys, values))  # type: ignore[no-any-return]


class Perceptron(nn.Module):
    """Two layers with an exact GELU between them."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, tokens: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        return self.fc2(F.gelu(self.fc1(tokens)))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention, then perceptron, each after a layer norm and with a residual."""

    def __init__(self, width: int, attention: nn.Module, hidden: int, eps: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=eps)
        self.attn = attention
        self.norm2 = nn.LayerNorm(width, eps=eps)
        self.mlp = Perceptron(width, hidden)

    def forward(self, tokens: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
        tokens = tokens + self.attn(self.norm1(tokens))
        return tokens + self.mlp(self.norm2(tokens))  # type: ignore[no-any-return]


def split_heads(
    fused: Float[Tensor, "B N E"], heads: int
) -> tuple[Float[Tensor, "B A N K"], Float[Tensor, "B A N K"], Float[Tensor, "B A N K"]]:
    """Queries, keys and values of each head, from the fused product."""
    parts = fused.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)  # (3, B, A, N, K)
    return parts[0], parts[1], parts[2]


def attend(
    queries: Float[Tensor, "B A N K"],
    keys: Float[Tensor, "B A N K"],
    values: Float[Tensor, "B A N K"],
) -> Float[Tensor, "B N D"]:
    """What each token gathers from all tokens, the heads side by side."""
    return F.scaled_dot_product_attention(queries, keys, values).transpose(1, 2).flatten(2)


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


def sinusoid_table(count: int, width: int) -> Float[Tensor, "N D"]:
    """Sines on even and cosines on odd channels of the angles p / 10000^(2⌊j/2⌋/D)."""
    places = torch.arange(count, dtype=torch.float64, device="cpu")[:, None]
    channels = torch.arange(width, dtype=torch.float64, device="cpu")
    angles = places / 10000 ** (2 * (channels // 2) / width)  # (N, D)
    even = channels % 2 == 0
    return torch.where(even, angles.sin(), angles.cos()).float()


def check_grid(name: str, frames: int, size: int, *, tubelet: int, patch: int) -> None:
    """Refuse clips that do not divide into whole patches."""
    if frames % tubelet or size % patch:
        whole = f"a multiple of {tubelet} frames and " if tubelet > 1 else ""
        raise BackboneError(
            f"{name} needs {whole}a multiple of {patch} pixels, "
            f"got {frames} frames of {size} pixels"
        )
