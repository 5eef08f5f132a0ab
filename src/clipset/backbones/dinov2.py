"""DINOv2: an image transformer, run on each frame and averaged over the frames."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from clipset.backbones.checkpoints import Layout, load_network, read_state
from clipset.backbones.layers import Parted, bin_means, outputs_of
from clipset.backbones.registry import BackboneSpec, Entry, InWeightsFolder, Weights
from clipset.backbones.transformer import Attention, FramePatches, Perceptron, check_grid

LAYOUT = Layout(drops=(r"mask_token",))
OFFSET = 0.1  # what the authors add to the number of patches when they resize the table


@dataclass(frozen=True, slots=True, kw_only=True)
class DINOv2Config:
    """The shape of the network; `size` is that of its table of positions."""

    width: int
    depth: int
    heads: int
    hidden: int
    patch: int = 14
    size: int = 518
    eps: float = 1e-6


SMALL = DINOv2Config(width=384, depth=12, heads=6, hidden=1536)
BASE = DINOv2Config(width=768, depth=12, heads=12, hidden=3072)
LARGE = DINOv2Config(width=1024, depth=24, heads=16, hidden=4096)


class Scale(nn.Module):
    """A learned factor for each channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, tokens: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
        return tokens * self.gamma


class ScaledBlock(nn.Module):
    """Attention, then perceptron, each normed before and scaled after, with a residual."""

    def __init__(self, config: DINOv2Config) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width, eps=config.eps)
        self.attn = Attention(config.width, config.heads)
        self.ls1 = Scale(config.width)
        self.norm2 = nn.LayerNorm(config.width, eps=config.eps)
        self.mlp = Perceptron(config.width, config.hidden)
        self.ls2 = Scale(config.width)

    def forward(self, tokens: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
        tokens = tokens + self.ls1(self.attn(self.norm1(tokens)))
        return tokens + self.ls2(self.mlp(self.norm2(tokens)))  # type: ignore[no-any-return]


class DINOv2(Parted):
    """Normalised clips to the mean over frames of the class token after the last norm."""

    def __init__(self, config: DINOv2Config) -> None:
        super().__init__()
        self.side = config.size // config.patch
        self.cls_token = nn.Parameter(torch.zeros(1, 1, config.width))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + self.side**2, config.width))
        self.patch_embed = FramePatches(config.width, config.patch)
        self.blocks = nn.ModuleList(ScaledBlock(config) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.width, eps=config.eps)

    def forward(self, clips: Float[Tensor, "B T 3 H W"]) -> Float[Tensor, "B D"]:
        features = self.frame_features(clips.flatten(0, 1))  # (B T, D)
        return features.unflatten(0, clips.shape[:2]).mean(dim=1)  # type: ignore[no-any-return]

    @property
    def depth(self) -> int:
        """The blocks."""
        return len(self.blocks)

    def parts(
        self, clips: Float[Tensor, "B T 3 H W"], layers: tuple[int, ...], bins: int
    ) -> Float[Tensor, "B L N D"]:
        """The class token of each frame and layer, averaged over the frames of each time bin."""
        frames = clips.flatten(0, 1)  # (B T, 3, H, W)
        if layers:
            tokens = outputs_of(self.blocks, layers, lambda: self.frame_features(frames))
            found = [each[:, 0] for each in tokens]
        else:
            found = [self.frame_features(frames)]
        means = [bin_means(each.unflatten(0, clips.shape[:2]), bins) for each in found]
        return torch.stack(means, dim=1)

    def frame_features(self, frames: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B D"]:
        """The class token of each frame."""
        maps = self.patch_embed(frames)  # (B, D, h, w)
        patches = maps.flatten(2).transpose(1, 2)
        patches = patches + self.positions(int(maps.shape[2]), int(maps.shape[3])).flatten(0, 1)
        summary = (self.cls_token + self.pos_embed[:, :1]).expand(len(frames), -1, -1)
        tokens = torch.cat([summary, patches], dim=1)
        for block in self.blocks:
            tokens = block(tokens)
        return self.norm(tokens[:, 0])  # type: ignore[no-any-return]

    def positions(self, rows: int, columns: int) -> Float[Tensor, "h w D"]:
        """The table on another grid, by the authors' bicubic rule."""
        table: Tensor = self.pos_embed[0, 1:].unflatten(0, (self.side, self.side))
        if (rows, columns) == (self.side, self.side):
            return table
        factors = ((rows + OFFSET) / self.side, (columns + OFFSET) / self.side)
        maps = table.movedim(-1, 0)[None]  # (1, D, h, w)
        resized: Tensor = F.interpolate(maps, scale_factor=factors, mode="bicubic")[0]
        return resized.movedim(0, -1)


def load_dinov2(path: Path, config: DINOv2Config) -> DINOv2:
    """The network of a released DINOv2 file without registers."""
    return load_network(lambda: DINOv2(config), read_state(path, LAYOUT), LAYOUT, path)


def _entry(name: str, config: DINOv2Config) -> Entry:
    spec = BackboneSpec(
        name=name,
        dim=config.width,
        frames=16,
        stride=4,
        size=224,
        mean=(123.675, 116.28, 103.53),
        std=(58.395, 57.12, 57.375),
        pooling="class token after the last norm of each frame, mean over frames",
        weights=Weights(
            file=f"{name}_pretrain.pth",
            licence="Apache-2.0",
            source="the README of github.com/facebookresearch/dinov2 (backbone without registers)",
        ),
        paper="DINOv2 (Oquab et al., TMLR 2024)",
    )

    def make(spec: BackboneSpec, path: Path) -> DINOv2:
        check_grid(spec.name, spec.frames, spec.size, tubelet=1, patch=config.patch)
        return load_dinov2(path, config)

    return Entry(spec=spec, find_weights=InWeightsFolder(spec.weights.file), make=make)


ENTRIES = (
    _entry("dinov2_vits14", SMALL),
    _entry("dinov2_vitb14", BASE),
    _entry("dinov2_vitl14", LARGE),
)
