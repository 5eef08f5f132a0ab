"""SVT: a video transformer with divided space-time attention, self-supervised on Kinetics-400."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from clipset.backbones.checkpoints import Layout, load_network, read_state
from clipset.backbones.layers import Parted, bin_means, outputs_of
from clipset.backbones.registry import BackboneEntry, BackboneSpec, InWeightsFolder, Weights
from clipset.backbones.transformer import (
    Attention,
    FramePatches,
    Perceptron,
    check_grid,
    resize_trilinear,
)

# The released file is the teacher, flat; a training checkpoint has it under "teacher".
LAYOUT = Layout(nests=("teacher",), keeps=("backbone.", ""), drops=(r"head\..*",))


@dataclass(frozen=True, slots=True, kw_only=True)
class SVTConfig:
    """The shape of the network; `frames` and `size` are those of its tables of positions.

    `resize` says how the tables meet other frame counts and sizes: "trilinear" adds the two and
    resizes the sum once (as the code of the SCALE paper), "nearest" resizes each alone (as SVT).
    """

    width: int = 768
    depth: int = 12
    heads: int = 12
    hidden: int = 3072
    patch: int = 16
    frames: int = 8
    size: int = 224
    eps: float = 1e-6
    resize: Literal["trilinear", "nearest"] = "trilinear"


class DividedBlock(nn.Module):
    """Attention over time at each place, then over space in each frame, then a perceptron."""

    def __init__(self, config: SVTConfig) -> None:
        super().__init__()
        width = config.width
        self.norm1 = nn.LayerNorm(width, eps=config.eps)
        self.attn = Attention(width, config.heads)
        self.temporal_norm1 = nn.LayerNorm(width, eps=config.eps)
        self.temporal_attn = Attention(width, config.heads)
        self.temporal_fc = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width, eps=config.eps)
        self.mlp = Perceptron(width, config.hidden)

    def forward(
        self, summary: Float[Tensor, "B 1 D"], patches: Float[Tensor, "B T N D"]
    ) -> tuple[Float[Tensor, "B 1 D"], Float[Tensor, "B T N D"]]:
        patches = patches + self.over_time(patches)
        summary_step, patches_step = self.over_space(summary, patches)
        summary, patches = summary + summary_step, patches + patches_step
        return summary + self.mlp(self.norm2(summary)), patches + self.mlp(self.norm2(patches))

    def over_time(self, patches: Float[Tensor, "B T N D"]) -> Float[Tensor, "B T N D"]:
        """What each patch learns from the same place in the other frames."""
        batch, _, places, _ = patches.shape
        tracks = patches.transpose(1, 2).flatten(0, 1)  # (B N, T, D)
        tracks = self.temporal_fc(self.temporal_attn(self.temporal_norm1(tracks)))
        return tracks.unflatten(0, (batch, places)).transpose(1, 2)  # type: ignore[no-any-return]

    def over_space(
        self, summary: Float[Tensor, "B 1 D"], patches: Float[Tensor, "B T N D"]
    ) -> tuple[Float[Tensor, "B 1 D"], Float[Tensor, "B T N D"]]:
        """What each patch learns from its frame, and the class token from the mean over frames."""
        batch, frames, _, _ = patches.shape
        copies = summary[:, None].expand(-1, frames, -1, -1)
        tokens = torch.cat([copies, patches], dim=2).flatten(0, 1)  # (B T, 1 + N, D)
        tokens = self.attn(self.norm1(tokens)).unflatten(0, (batch, frames))
        return tokens[:, :, :1].mean(dim=1), tokens[:, :, 1:]


class SVT(Parted):
    """Normalised clips to the class token after the last norm.

    There is one class token for the whole clip; time bins are means of the patch tokens.
    """

    def __init__(self, config: SVTConfig) -> None:
        super().__init__()
        self.config = config
        side = config.size // config.patch
        self.cls_token = nn.Parameter(torch.zeros(1, 1, config.width))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + side * side, config.width))
        self.time_embed = nn.Parameter(torch.zeros(1, config.frames, config.width))
        self.patch_embed = FramePatches(config.width, config.patch)
        self.blocks = nn.ModuleList(DividedBlock(config) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.width, eps=config.eps)

    @property
    def depth(self) -> int:
        """The blocks."""
        return len(self.blocks)

    def parts(
        self, clips: Float[Tensor, "B T 3 H W"], layers: tuple[int, ...], bins: int
    ) -> Float[Tensor, "B L N D"]:
        """The class token of each layer, or the mean of its patch tokens in each time bin."""
        if layers:
            found = outputs_of(self.blocks, layers, lambda: self.tokens(clips))
        else:
            summary, patches = self.tokens(clips)
            found = [(self.norm(summary), self.norm(patches))]
        if bins == 1:
            return torch.stack([summary for summary, _ in found], dim=1)
        return torch.stack([bin_means(patches, bins) for _, patches in found], dim=1)

    def forward(self, clips: Float[Tensor, "B T 3 H W"]) -> Float[Tensor, "B D"]:
        summary, _ = self.tokens(clips)
        return self.norm(summary)[:, 0]  # type: ignore[no-any-return]

    def tokens(
        self, clips: Float[Tensor, "B T 3 H W"]
    ) -> tuple[Float[Tensor, "B 1 D"], Float[Tensor, "B T N D"]]:
        """The class token and the patch tokens after the last block, not normed."""
        batch, frames = clips.shape[:2]
        maps = self.patch_embed(clips.flatten(0, 1))  # (B T, D, h, w)
        grid = (int(frames), int(maps.shape[2]), int(maps.shape[3]))
        patches = maps.flatten(2).transpose(1, 2).unflatten(0, (batch, frames))  # (B, T, N, D)
        patches = patches + self.positions(grid).flatten(1, 2)
        summary = (self.cls_token + self.pos_embed[:, :1]).expand(batch, -1, -1)
        for block in self.blocks:
            summary, patches = block(summary, patches)
        return summary, patches

    def positions(self, grid: tuple[int, int, int]) -> Float[Tensor, "T h w D"]:
        """The entry of each patch token on a grid of frames, rows and columns."""
        side = self.config.size // self.config.patch
        space = self.pos_embed[0, 1:].unflatten(0, (side, side))  # (h, w, D)
        time = self.time_embed[0]  # (T, D)
        if self.config.resize == "trilinear":
            return resize_trilinear(space[None] + time[:, None, None], grid)
        time = F.interpolate(time.T[None], size=grid[0], mode="nearest")[0].T
        space = F.interpolate(space.movedim(-1, 0)[None], size=grid[1:], mode="nearest")[0]
        return space.movedim(0, -1)[None] + time[:, None, None]


def load_svt(path: Path, config: SVTConfig) -> SVT:
    """The teacher of an SVT checkpoint, released or of a training run."""
    return load_network(lambda: SVT(config), read_state(path, LAYOUT), LAYOUT, path)


def make(spec: BackboneSpec, path: Path) -> SVT:
    """The ViT-B/16 of the paper."""
    check_grid(spec.name, spec.frames, spec.size, tubelet=1, patch=16)
    return load_svt(path, SVTConfig())


# Fed as in the paper: 16 frames at stride 4, mean 0.45, deviation 0.225 (SVT: 8 at stride 32).
ENTRIES = (
    BackboneEntry(
        spec=BackboneSpec(
            name="svt_vitb16",
            dim=768,
            frames=16,
            stride=4,
            size=224,
            mean=(114.75, 114.75, 114.75),
            std=(57.375, 57.375, 57.375),
            pooling="class token after the last norm; teacher; positions resized trilinearly",
            weights=Weights(
                file="kinetics400_vitb_ssl.pth",
                licence="not stated by its authors",
                source="the releases of github.com/kahnchana/svt (v1.0)",
            ),
            paper="Self-supervised Video Transformer (Ranasinghe et al., CVPR 2022)",
        ),
        find_weights=InWeightsFolder("kinetics400_vitb_ssl.pth"),
        make=make,
    ),
)
