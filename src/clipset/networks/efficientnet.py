"""EfficientNet-Lite: an image network, applied to each frame of a clip."""

from __future__ import annotations

import math

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import fuse_conv_bn_eval

from clipset.networks.padding import pad_same

STAGES = (  # blocks, kernel, stride, expansion, channels
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
NORM_EPS = 1e-3


class SameConv2d(nn.Conv2d):
    """A convolution with TensorFlow's SAME padding."""

    def forward(self, input: Float[Tensor, "N C H W"]) -> Float[Tensor, "N K h w"]:
        input, padding = pad_same(input, self.kernel_size, self.stride)
        return F.conv2d(
            input, self.weight, self.bias, self.stride, padding, self.dilation, self.groups
        )


class ConvUnit(nn.Module):
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
        self.activated = activated

    def forward(self, feature_maps: Float[Tensor, "N C H W"]) -> Float[Tensor, "N K h w"]:
        feature_maps = self.norm(self.conv(feature_maps))
        return F.relu6(feature_maps) if self.activated else feature_maps


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
        blocks, num_channels = [], 32
        for stage, (count, kernel_size, stride, expansion, base) in enumerate(STAGES):
            out_channels = scaled_channels(base, width_scale)
            is_fixed = stage in (0, len(STAGES) - 1)
            for index in range(count if is_fixed else math.ceil(count * depth_scale)):
                step = stride if index == 0 else 1
                blocks.append(
                    InvertedBottleneck(num_channels, out_channels, kernel_size, step, expansion)
                )
                num_channels = out_channels
        self.blocks = nn.Sequential(*blocks)
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
