"""Slow-R50: the slow pathway of SlowFast, trained by ρBYOL on Kinetics-400."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from clipset.backbones.checkpoints import Layout, load_network, read_state
from clipset.backbones.layers import Parted, bin_means
from clipset.backbones.registry import BackboneEntry, BackboneSpec, InWeightsFolder, Weights

TRAINING_STATE = (r"ptr", r"queue_x", r"iter", r"knn_mem\.memory")
# The momentum copy, which the paper uses, and the online copy of the same file.
MOMENTUM = Layout(
    nests=("model_state",),
    keeps=("backbone_hist.",),
    drops=(*TRAINING_STATE, r"backbone\..*", r"backbone_hist\.(head|ssl_\d+)\..*"),
)
ONLINE = Layout(
    nests=("model_state",),
    keeps=("backbone.",),
    drops=(*TRAINING_STATE, r"backbone_hist\..*", r"backbone\.(head|ssl_\d+)\..*"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowConfig:
    """The shape of the network: channels of the stem; blocks and time kernel of each stage."""

    width: int = 64
    blocks: tuple[int, int, int, int] = (3, 4, 6, 3)
    time_kernels: tuple[int, int, int, int] = (1, 1, 3, 3)

    @property
    def dim(self) -> int:
        """Channels that leave the last stage."""
        return self.width * 32


class Stem(nn.Module):
    """Frames to maps of a quarter of their size."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv3d(3, width, (1, 7, 7), (1, 2, 2), (0, 3, 3), bias=False)
        self.bn = nn.BatchNorm3d(width)

    def forward(self, clips: Float[Tensor, "B 3 T H W"]) -> Float[Tensor, "B C T h w"]:
        maps = F.relu(self.bn(self.conv(clips)))
        return F.max_pool3d(maps, (1, 3, 3), stride=(1, 2, 2), padding=(0, 1, 1))


class Branch(nn.Module):
    """The residual branch of a bottleneck: narrow in time, look in space, widen."""

    def __init__(self, inside: int, hidden: int, time_kernel: int, stride: int) -> None:
        super().__init__()
        padding = (time_kernel // 2, 0, 0)
        self.a = nn.Conv3d(inside, hidden, (time_kernel, 1, 1), padding=padding, bias=False)
        self.a_bn = nn.BatchNorm3d(hidden)
        self.b = nn.Conv3d(hidden, hidden, (1, 3, 3), (1, stride, stride), (0, 1, 1), bias=False)
        self.b_bn = nn.BatchNorm3d(hidden)
        self.c = nn.Conv3d(hidden, 4 * hidden, 1, bias=False)
        self.c_bn = nn.BatchNorm3d(4 * hidden)

    def forward(self, maps: Float[Tensor, "B C T H W"]) -> Float[Tensor, "B E T h w"]:
        maps = F.relu(self.a_bn(self.a(maps)))
        maps = F.relu(self.b_bn(self.b(maps)))
        return self.c_bn(self.c(maps))  # type: ignore[no-any-return]


class Bottleneck(nn.Module):
    """A residual branch beside a shortcut; the first of a stage projects its shortcut."""

    def __init__(self, inside: int, hidden: int, time_kernel: int, stride: int) -> None:
        super().__init__()
        self.projects = inside != 4 * hidden
        if self.projects:
            steps = (1, stride, stride)
            self.branch1 = nn.Conv3d(inside, 4 * hidden, 1, stride=steps, bias=False)
            self.branch1_bn = nn.BatchNorm3d(4 * hidden)
        self.branch2 = Branch(inside, hidden, time_kernel, stride)

    def forward(self, maps: Float[Tensor, "B C T H W"]) -> Float[Tensor, "B E T h w"]:
        shortcut = self.branch1_bn(self.branch1(maps)) if self.projects else maps
        return F.relu(shortcut + self.branch2(maps))


class SlowR50(Parted):
    """Normalised clips to the mean over time and space of the last stage."""

    def __init__(self, config: SlowConfig) -> None:
        super().__init__()
        self.s1 = nn.Sequential(OrderedDict(pathway0_stem=Stem(config.width)))
        self.s2 = _stage(config, 0)
        self.s3 = _stage(config, 1)
        self.s4 = _stage(config, 2)
        self.s5 = _stage(config, 3)

    def forward(self, clips: Float[Tensor, "B T 3 H W"]) -> Float[Tensor, "B D"]:
        return self.last_maps(clips).mean(dim=(2, 3, 4))

    def binned(self, clips: Float[Tensor, "B T 3 H W"], bins: int) -> Float[Tensor, "B N D"]:
        """The last maps, averaged over space in each time bin."""
        return bin_means(self.last_maps(clips).movedim(1, -1), bins)

    def last_maps(self, clips: Float[Tensor, "B T 3 H W"]) -> Float[Tensor, "B D T h w"]:
        """The maps of the last stage."""
        maps = clips.transpose(1, 2)  # (B, 3, T, H, W)
        for stage in (self.s1, self.s2, self.s3, self.s4, self.s5):
            maps = stage(maps)
        return maps


def _stage(config: SlowConfig, number: int) -> nn.Sequential:
    """Bottlenecks under the names of PySlowFast; the first widens and, after s2, halves."""
    hidden = config.width * 2**number
    inside = config.width if number == 0 else 2 * hidden
    stage = nn.Sequential()
    for place in range(config.blocks[number]):
        stride = 2 if place == 0 and number > 0 else 1
        block = Bottleneck(inside, hidden, config.time_kernels[number], stride)
        stage.add_module(f"pathway0_res{place}", block)
        inside = 4 * hidden
    return stage


def load_slow_r50(path: Path, config: SlowConfig, layout: Layout = MOMENTUM) -> SlowR50:
    """One copy of the network in a PySlowFast contrastive checkpoint."""
    return load_network(lambda: SlowR50(config), read_state(path, layout), layout, path)


def make(_spec: BackboneSpec, path: Path) -> SlowR50:
    """The network of the paper; it takes any frame count and any size."""
    return load_slow_r50(path, SlowConfig())


ENTRIES = (
    BackboneEntry(
        spec=BackboneSpec(
            name="rbyol_slow_r50",
            dim=2048,
            frames=16,
            stride=4,
            size=224,
            mean=(114.75, 114.75, 114.75),
            std=(57.375, 57.375, 57.375),
            pooling="mean over time and space of the last stage; momentum copy",
            weights=Weights(
                file="BYOL_SlowR50_16x4_T4_epoch_00200.pyth",
                licence="Apache-2.0 (repository facebookresearch/SlowFast)",
                source="projects/contrastive_ssl in github.com/facebookresearch/SlowFast",
            ),
            paper="A Large-Scale Study on Unsupervised Spatiotemporal Representation Learning "
            "(Feichtenhofer et al., CVPR 2021)",
        ),
        find_weights=InWeightsFolder("BYOL_SlowR50_16x4_T4_epoch_00200.pyth"),
        make=make,
    ),
)
