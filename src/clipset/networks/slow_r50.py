"""Slow-R50: the slow pathway of SlowFast, under the names of PySlowFast."""

from __future__ import annotations

from collections import OrderedDict

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

STAGES = ((3, 1), (4, 1), (6, 3), (3, 3))  # blocks, kernel in time


class SlowStem(nn.Module):
    """Frames to feature maps of a quarter of their size."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv3d(3, width, (1, 7, 7), (1, 2, 2), (0, 3, 3), bias=False)
        self.bn = nn.BatchNorm3d(width)

    def forward(self, clips: Float[Tensor, "B 3 T H W"]) -> Float[Tensor, "B C T h w"]:
        feature_maps = F.relu(self.bn(self.conv(clips)))
        return F.max_pool3d(feature_maps, (1, 3, 3), stride=(1, 2, 2), padding=(0, 1, 1))


class BottleneckBranch(nn.Module):
    """The residual branch of a bottleneck: a convolution in time, one in space, one to widen."""

    def __init__(
        self, in_channels: int, hidden_channels: int, time_kernel: int, stride: int
    ) -> None:
        super().__init__()
        padding = (time_kernel // 2, 0, 0)
        self.a = nn.Conv3d(
            in_channels, hidden_channels, (time_kernel, 1, 1), padding=padding, bias=False
        )
        self.a_bn = nn.BatchNorm3d(hidden_channels)
        self.b = nn.Conv3d(
            hidden_channels, hidden_channels, (1, 3, 3), (1, stride, stride), (0, 1, 1), bias=False
        )
        self.b_bn = nn.BatchNorm3d(hidden_channels)
        self.c = nn.Conv3d(hidden_channels, 4 * hidden_channels, 1, bias=False)
        self.c_bn = nn.BatchNorm3d(4 * hidden_channels)

    def forward(self, feature_maps: Float[Tensor, "B C T H W"]) -> Float[Tensor, "B E T h w"]:
        feature_maps = F.relu(self.a_bn(self.a(feature_maps)))
        feature_maps = F.relu(self.b_bn(self.b(feature_maps)))
        return self.c_bn(self.c(feature_maps))  # type: ignore[no-any-return]


class Bottleneck(nn.Module):
    """A residual branch beside a shortcut; the first of a stage projects its shortcut."""

    def __init__(
        self, in_channels: int, hidden_channels: int, time_kernel: int, stride: int
    ) -> None:
        super().__init__()
        self.projects = in_channels != 4 * hidden_channels
        if self.projects:
            strides = (1, stride, stride)
            self.branch1 = nn.Conv3d(
                in_channels, 4 * hidden_channels, 1, stride=strides, bias=False
            )
            self.branch1_bn = nn.BatchNorm3d(4 * hidden_channels)
        self.branch2 = BottleneckBranch(in_channels, hidden_channels, time_kernel, stride)

    def forward(self, feature_maps: Float[Tensor, "B C T H W"]) -> Float[Tensor, "B E T h w"]:
        shortcut = self.branch1_bn(self.branch1(feature_maps)) if self.projects else feature_maps
        return F.relu(shortcut + self.branch2(feature_maps))


class SlowR50(nn.Module):
    """Normalised clips to the mean over time and space of the last stage.

    The first block of a stage widens and, after s2, halves the feature maps.
    """

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.s1 = nn.Sequential(OrderedDict(pathway0_stem=SlowStem(width)))
        in_channels = width
        for index, (num_blocks, time_kernel) in enumerate(STAGES):
            stage_blocks, hidden_channels = nn.Sequential(), width * 2**index
            for block in range(num_blocks):
                stride = 2 if block == 0 and index > 0 else 1
                bottleneck = Bottleneck(in_channels, hidden_channels, time_kernel, stride)
                stage_blocks.add_module(f"pathway0_res{block}", bottleneck)
                in_channels = 4 * hidden_channels
            self.add_module(f"s{index + 2}", stage_blocks)

    def forward(self, clips: Float[Tensor, "B T 3 H W"]) -> Float[Tensor, "B D"]:
        feature_maps = clips.transpose(1, 2)  # (B, 3, T, H, W)
        for stage in self.children():  # s1 to s5
            feature_maps = stage(feature_maps)
        return feature_maps.mean(dim=(2, 3, 4))
