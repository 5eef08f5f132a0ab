"""Convolutional networks: EfficientNet-Lite for images, I3D and Slow-R50 for videos."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import fuse_conv_bn_eval

from clipset.networks import named_sequential

NORM_EPS = 1e-3  # of TensorFlow's batch norms: EfficientNet and I3D
LITE_STAGES = (  # blocks, kernel, stride, expansion, channels
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
MIXED = {  # channels of 1×1 | 1×1 then 3×3 | 1×1 then 3×3 | pool then 1×1
    "mixed_3b": (64, 96, 128, 16, 32, 32),
    "mixed_3c": (128, 128, 192, 32, 96, 64),
    "mixed_4b": (192, 96, 208, 16, 48, 64),
    "mixed_4c": (160, 112, 224, 24, 64, 64),
    "mixed_4d": (128, 128, 256, 24, 64, 64),
    "mixed_4e": (112, 144, 288, 32, 64, 64),
    "mixed_4f": (256, 160, 320, 32, 128, 128),
    "mixed_5b": (256, 160, 320, 32, 128, 128),
    "mixed_5c": (384, 192, 384, 48, 128, 128),
}
POOL_BEFORE = {"mixed_4b": ((3, 3, 3), (2, 2, 2)), "mixed_5b": ((2, 2, 2), (2, 2, 2))}
SLOW_STAGES = ((3, 1), (4, 1), (6, 3), (3, 3))  # blocks, kernel in time


def same_padding(size: int, kernel_size: int, stride: int) -> tuple[int, int]:
    """Padding of one axis, before and after, as TensorFlow's SAME: an odd pixel goes to the end."""
    total = max((-(-size // stride) - 1) * stride + kernel_size - size, 0)
    return total // 2, total - total // 2


def pad_same(
    feature_maps: Float[Tensor, "B C *S"], kernel_size: Sequence[int], stride: Sequence[int]
) -> tuple[Float[Tensor, "B C *P"], list[int]]:
    """Maps padded with zeros where SAME is lopsided, and the even padding that is left to do."""
    axis_sizes = [int(size) for size in feature_maps.shape[2:]]
    sides = [same_padding(*axis) for axis in zip(axis_sizes, kernel_size, stride, strict=True)]
    if all(before == after for before, after in sides):
        return feature_maps, [before for before, _ in sides]
    flat_padding = [amount for before_after in reversed(sides) for amount in before_after]
    return F.pad(feature_maps, flat_padding), [0] * len(sides)


def max_pool_same(
    feature_maps: Float[Tensor, "B C T H W"],
    kernel_size: tuple[int, int, int],
    stride: tuple[int, int, int],
) -> Float[Tensor, "B C t h w"]:
    """Max pooling with SAME padding; after a ReLU nothing is below the zeros of the padding."""
    feature_maps, padding = pad_same(feature_maps, kernel_size, stride)
    return F.max_pool3d(feature_maps, kernel_size, stride, padding)


class SameConv2d(nn.Conv2d):
    """A convolution with TensorFlow's SAME padding."""

    def forward(self, input: Float[Tensor, "N C H W"]) -> Float[Tensor, "N K h w"]:
        input, padding = pad_same(input, self.kernel_size, self.stride)
        return F.conv2d(
            input, self.weight, self.bias, self.stride, padding, self.dilation, self.groups
        )


class ConvUnit(nn.Sequential):
    """Convolution, batch norm and, unless it ends a block, ReLU6."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, *,
        stride: int = 1, groups: int = 1, activated: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.conv = SameConv2d(
            in_channels, out_channels, kernel_size, stride, groups=groups, bias=False
        )
        self.norm: nn.Module = nn.BatchNorm2d(out_channels, eps=NORM_EPS)
        if activated:
            self.relu = nn.ReLU6()


class InvertedBottleneck(nn.Module):
    """Expand, filter each channel, project, and add the input if the shapes agree."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, stride: int, expansion: int
    ) -> None:
        super().__init__()
        expanded = in_channels * expansion
        self.expand = ConvUnit(in_channels, expanded, 1) if expansion > 1 else nn.Identity()
        self.depthwise = ConvUnit(expanded, expanded, kernel_size, stride=stride, groups=expanded)
        self.project = ConvUnit(expanded, out_channels, 1, activated=False)
        self.residual = stride == 1 and in_channels == out_channels

    def forward(self, feature_maps: Float[Tensor, "N C H W"]) -> Float[Tensor, "N K h w"]:
        out: Tensor = self.project(self.depthwise(self.expand(feature_maps)))
        return out + feature_maps if self.residual else out


class EfficientNetLite(nn.Module):
    """Normalised clips to the mean of their frames' features."""

    def __init__(
        self, width_scale: float = 1.0, depth_scale: float = 1.0, num_classes: int = 1000
    ) -> None:
        super().__init__()
        self.stem = ConvUnit(3, 32, 3, stride=2)
        self.blocks, num_channels = nn.Sequential(), 32
        for stage, (count, kernel_size, stride, expansion, base) in enumerate(LITE_STAGES):
            out_channels = scaled_channels(base, width_scale)
            is_fixed = stage in (0, len(LITE_STAGES) - 1)
            for index in range(count if is_fixed else math.ceil(count * depth_scale)):
                step = stride if index == 0 else 1
                self.blocks.append(
                    InvertedBottleneck(num_channels, out_channels, kernel_size, step, expansion)
                )
                num_channels = out_channels
        self.head = ConvUnit(num_channels, 1280, 1)
        self.classifier = nn.Linear(1280, num_classes)

    def forward(self, clips: Float[Tensor, "B T 3 S S"]) -> Float[Tensor, "B D"]:
        features = self.frame_features(clips.flatten(0, 1))  # (B*T, D)
        return features.reshape(-1, clips.shape[1], features.shape[1]).mean(dim=1)

    def frame_features(self, frames: Float[Tensor, "N 3 S S"]) -> Float[Tensor, "N D"]:
        """The last feature maps of normalised images, averaged over the image."""
        feature_maps: Tensor = self.head(self.blocks(self.stem(frames)))  # (N, D, S/32, S/32)
        return feature_maps.mean(dim=(2, 3))

    def fuse_batch_norm(self) -> EfficientNetLite:
        """Fuse each batch norm into the convolution before it; the network is in eval mode."""
        for unit in self.modules():
            if isinstance(unit, ConvUnit) and isinstance(unit.norm, nn.BatchNorm2d):
                unit.conv = fuse_conv_bn_eval(unit.conv, unit.norm)
                unit.norm = nn.Identity()
        return self


def scaled_channels(base: int, width_scale: float) -> int:
    """The nearest multiple of 8 that is not much below `base * width_scale`."""
    nearest = max(8, int(base * width_scale + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * base * width_scale else nearest


class Unit3d(nn.Conv3d):
    """Convolution with SAME padding and ReLU; a batch norm was folded into its weights."""

    def forward(self, input: Float[Tensor, "B C T H W"]) -> Float[Tensor, "B K t h w"]:
        input, padding = pad_same(input, self.kernel_size, self.stride)
        return F.relu(F.conv3d(input, self.weight, self.bias, self.stride, padding))


class MixedBlock(nn.Module):
    """Four branches over the same feature maps, concatenated."""

    def __init__(self, in_channels: int, channels: Sequence[int]) -> None:
        super().__init__()
        one, before_two, two, before_three, three, four = channels
        self.branch_0 = Unit3d(in_channels, one, 1)
        self.branch_1a = Unit3d(in_channels, before_two, 1)
        self.branch_1b = Unit3d(before_two, two, 3)
        self.branch_2a = Unit3d(in_channels, before_three, 1)
        self.branch_2b = Unit3d(before_three, three, 3)
        self.branch_3 = Unit3d(in_channels, four, 1)
        self.out_channels = one + two + three + four

    def forward(self, feature_maps: Float[Tensor, "B C T H W"]) -> Float[Tensor, "B K T H W"]:
        branches = (
            self.branch_0(feature_maps),
            self.branch_1b(self.branch_1a(feature_maps)),
            self.branch_2b(self.branch_2a(feature_maps)),
            self.branch_3(max_pool_same(feature_maps, (3, 3, 3), (1, 1, 1))),
        )
        return torch.cat(branches, dim=1)


class InceptionI3d(nn.Module):
    """Normalised clips to the mean over time and space of the last mixed block.

    The inflated Inception network of Carreira and Zisserman (2017), for RGB.
    """

    def __init__(self, num_classes: int = 400) -> None:
        super().__init__()
        self.conv_1a = Unit3d(3, 64, 7, 2)
        self.conv_2b = Unit3d(64, 64, 1)
        self.conv_2c = Unit3d(64, 192, 3)
        num_channels = 192
        for name, widths in MIXED.items():
            mixed_block = MixedBlock(num_channels, widths)
            self.add_module(name, mixed_block)
            num_channels = mixed_block.out_channels
        self.logits = nn.Conv3d(num_channels, num_classes, 1)

    def forward(self, clips: Float[Tensor, "B T 3 S S"]) -> Float[Tensor, "B D"]:
        return self.last_feature_maps(clips).mean(dim=(2, 3, 4))

    def last_feature_maps(self, clips: Float[Tensor, "B T 3 S S"]) -> Float[Tensor, "B D t s s"]:
        """The feature maps of the last mixed block."""
        feature_maps: Tensor = self.conv_1a(clips.transpose(1, 2))
        feature_maps = max_pool_same(feature_maps, (1, 3, 3), (1, 2, 2))
        feature_maps = self.conv_2c(self.conv_2b(feature_maps))
        feature_maps = max_pool_same(feature_maps, (1, 3, 3), (1, 2, 2))
        for name in MIXED:
            if name in POOL_BEFORE:
                feature_maps = max_pool_same(feature_maps, *POOL_BEFORE[name])
            feature_maps = self.get_submodule(name)(feature_maps)
        return feature_maps


def conv3d(
    in_channels: int, out_channels: int, kernel: tuple[int, int, int], stride: int = 1
) -> nn.Conv3d:
    """A convolution without bias that keeps the size, or divides height and width by the stride."""
    time, height, width = kernel
    padding = (time // 2, height // 2, width // 2)
    return nn.Conv3d(in_channels, out_channels, kernel, (1, stride, stride), padding, bias=False)


class Bottleneck(nn.Module):
    """A residual branch beside a shortcut; the first of a stage projects its shortcut.

    The branch: a convolution in time, one in space, one to widen.
    """

    def __init__(
        self, in_channels: int, hidden_channels: int, time_kernel: int, stride: int
    ) -> None:
        super().__init__()
        out_channels = 4 * hidden_channels
        self.projects = in_channels != out_channels
        if self.projects:
            self.branch1 = conv3d(in_channels, out_channels, (1, 1, 1), stride)
            self.branch1_bn = nn.BatchNorm3d(out_channels)
        self.branch2 = named_sequential(
            a=conv3d(in_channels, hidden_channels, (time_kernel, 1, 1)),
            a_bn=nn.BatchNorm3d(hidden_channels),
            a_relu=nn.ReLU(),
            b=conv3d(hidden_channels, hidden_channels, (1, 3, 3), stride),
            b_bn=nn.BatchNorm3d(hidden_channels),
            b_relu=nn.ReLU(),
            c=conv3d(hidden_channels, out_channels, (1, 1, 1)),
            c_bn=nn.BatchNorm3d(out_channels),
        )

    def forward(self, feature_maps: Float[Tensor, "B C T H W"]) -> Float[Tensor, "B E T h w"]:
        shortcut = self.branch1_bn(self.branch1(feature_maps)) if self.projects else feature_maps
        return F.relu(shortcut + self.branch2(feature_maps))


class SlowR50(nn.Module):
    """Normalised clips to the mean over time and space of the last stage.

    The slow pathway of SlowFast, under the names of PySlowFast. The first block of a stage widens
    and, after s2, halves the feature maps.
    """

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        stem = named_sequential(
            conv=conv3d(3, width, (1, 7, 7), 2),
            bn=nn.BatchNorm3d(width),
            relu=nn.ReLU(),
            pool=nn.MaxPool3d((1, 3, 3), stride=(1, 2, 2), padding=(0, 1, 1)),
        )
        self.s1 = named_sequential(pathway0_stem=stem)
        in_channels = width
        for index, (num_blocks, time_kernel) in enumerate(SLOW_STAGES):
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
