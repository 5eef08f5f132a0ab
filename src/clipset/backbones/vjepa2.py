"""V-JEPA 2: a video transformer with rotary positions on three axes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from clipset.backbones.checkpoints import Layout, load_network, read_state
from clipset.backbones.layers import Parted, bin_means, outputs_of
from clipset.backbones.registry import BackboneEntry, BackboneSpec, InWeightsFolder, Weights
from clipset.backbones.transformer import (
    Attention,
    Perceptron,
    TubePatches,
    attend,
    check_grid,
    split_heads,
)

# The averaged copy, which the authors' frozen evaluations use, and the trained copy.
AVERAGED = Layout(
    nests=("target_encoder",), keeps=("backbone.", ""), drops=(r"(backbone\.)?pos_embed",)
)
TRAINED = Layout(nests=("encoder",), keeps=AVERAGED.keeps, drops=AVERAGED.drops)


@dataclass(frozen=True, slots=True, kw_only=True)
class VJEPA2Config:
    """The shape of the network; it has no table of positions and takes any grid."""

    width: int = 1024
    depth: int = 24
    heads: int = 16
    hidden: int = 4096
    patch: int = 16
    tubelet: int = 2
    eps: float = 1e-6


class RotaryAttention(Attention):
    """Attention whose queries and keys are turned by the place of their token."""

    def forward(  # type: ignore[override]
        self, tokens: Float[Tensor, "B N D"], places: Int[Tensor, "3 N"]
    ) -> Float[Tensor, "B N D"]:
        queries, keys, values = split_heads(self.fused(tokens), self.heads)
        queries, keys = turn(queries, places), turn(keys, places)
        return self.proj(attend(queries, keys, values))  # type: ignore[no-any-return]


class RotaryBlock(nn.Module):
    """Attention, then perceptron, each after a layer norm and with a residual."""

    def __init__(self, config: VJEPA2Config) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width, eps=config.eps)
        self.attn = RotaryAttention(config.width, config.heads)
        self.norm2 = nn.LayerNorm(config.width, eps=config.eps)
        self.mlp = Perceptron(config.width, config.hidden)

    def forward(
        self, tokens: Float[Tensor, "B N D"], places: Int[Tensor, "3 N"]
    ) -> Float[Tensor, "B N D"]:
        tokens = tokens + self.attn(self.norm1(tokens), places)
        return tokens + self.mlp(self.norm2(tokens))  # type: ignore[no-any-return]


class VJEPA2(Parted):
    """Normalised clips to the mean of all tokens after the last norm."""

    def __init__(self, config: VJEPA2Config) -> None:
        super().__init__()
        self.tubelet = config.tubelet
        self.patch_embed = TubePatches(config.width, config.tubelet, config.patch)
        self.blocks = nn.ModuleList(RotaryBlock(config) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.width, eps=config.eps)

    @property
    def depth(self) -> int:
        """The blocks."""
        return len(self.blocks)

    def steps(self, frames: int) -> int:
        """A token is a few frames deep."""
        return frames // self.tubelet

    def parts(
        self, clips: Float[Tensor, "B T 3 H W"], layers: tuple[int, ...], bins: int
    ) -> Float[Tensor, "B L N D"]:
        """The mean of each layer's tokens in each time bin."""
        if layers:
            found = outputs_of(self.blocks, layers, lambda: self.tokens(clips))
        else:
            found = [self.tokens(clips)]
        steps = self.steps(int(clips.shape[1]))
        return torch.stack([bin_means(e.unflatten(1, (steps, -1)), bins) for e in found], dim=1)

    def forward(self, clips: Float[Tensor, "B T 3 H W"]) -> Float[Tensor, "B D"]:
        return self.tokens(clips).mean(dim=1)

    def tokens(self, clips: Float[Tensor, "B T 3 H W"]) -> Float[Tensor, "B N D"]:
        """All tokens after the last norm."""
        maps = self.patch_embed(clips)  # (B, D, t, h, w)
        axes = [torch.arange(length, device=maps.device) for length in maps.shape[2:]]
        places = torch.stack(torch.meshgrid(*axes, indexing="ij")).flatten(1)  # (3, N)
        tokens = maps.flatten(2).transpose(1, 2)
        for block in self.blocks:
            tokens = block(tokens, places)
        return self.norm(tokens)  # type: ignore[no-any-return]


def turn(vectors: Float[Tensor, "B A N K"], places: Int[Tensor, "3 N"]) -> Float[Tensor, "B A N K"]:
    """Turn a third of the channels by time, a third by row, a third by column; a rest stays."""
    count = 2 * (vectors.shape[-1] // 3 // 2)
    parts = vectors.split([count, count, count, vectors.shape[-1] - 3 * count], dim=-1)
    turned = [turn_axis(part, place) for part, place in zip(parts[:3], places, strict=True)]
    return torch.cat([*turned, parts[3]], dim=-1)


def turn_axis(
    vectors: Float[Tensor, "B A N K"], places: Int[Tensor, " N"]
) -> Float[Tensor, "B A N K"]:
    """Turn neighbouring channels as pairs.

    The angles are laid out half after half, so that the two channels of a pair turn by different
    angles: this is how the released weights were trained.
    """
    half = vectors.shape[-1] // 2
    steps = torch.arange(half, device=vectors.device, dtype=vectors.dtype) / half
    angles = places[:, None] * 10000**-steps  # (N, K / 2)
    angles = torch.cat([angles, angles], dim=-1)
    pairs = vectors.unflatten(-1, (half, 2))
    swapped = torch.stack([-pairs[..., 1], pairs[..., 0]], dim=-1).flatten(-2)
    return vectors * angles.cos() + swapped * angles.sin()


def load_vjepa2(path: Path, config: VJEPA2Config, layout: Layout = AVERAGED) -> VJEPA2:
    """One encoder of an official V-JEPA 2 checkpoint."""
    return load_network(lambda: VJEPA2(config), read_state(path, layout), layout, path)


def make(spec: BackboneSpec, path: Path) -> VJEPA2:
    """The ViT-L/16."""
    check_grid(spec.name, spec.frames, spec.size, tubelet=2, patch=16)
    return load_vjepa2(path, VJEPA2Config())


ENTRIES = (
    BackboneEntry(
        spec=BackboneSpec(
            name="vjepa2_vitl",
            dim=1024,
            frames=64,
            stride=4,
            size=256,
            mean=(123.675, 116.28, 103.53),
            std=(58.395, 57.12, 57.375),
            pooling="last norm, then mean of all tokens; averaged copy of the encoder",
            weights=Weights(
                file="vitl.pt",
                licence="MIT",
                source="the README of github.com/facebookresearch/vjepa2 (V-JEPA 2, ViT-L/16)",
            ),
            paper="V-JEPA 2 (Assran et al., 2025)",
        ),
        find_weights=InWeightsFolder("vitl.pt"),
        make=make,
    ),
)
