"""I3D (RGB): the inflated Inception network of Carreira and Zisserman (2017)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from clipset.networks.padding import pad_same

NORM_EPS = 1e-3
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


class ShiftNorm(nn.Module):
    """A batch norm that was trained without a scale."""

    mean: Tensor
    var: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("var", torch.ones(channels))

    def forward(self, feature_maps: Float[Tensor, "B C T H W"]) -> Float[Tensor, "B C T H W"]:
        return F.batch_norm(feature_maps, self.mean, self.var, bias=self.bias, eps=NORM_EPS)


class Unit3d(nn.Module):
    """Convolution with TensorFlow's SAME padding, batch norm and ReLU."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1
    ) -> None:
        super().__init__()
        self.conv = nn.Conv3d(in_channels, out_channels, kernel_size, stride, bias=False)
        self.norm: nn.Module = ShiftNorm(out_channels)

    def forward(self, feature_maps: Float[Tensor, "B C T H W"]) -> Float[Tensor, "B K t h w"]:
        conv = self.conv
        feature_maps, padding = pad_same(feature_maps, conv.kernel_size, conv.stride)
        feature_maps = F.conv3d(feature_maps, conv.weight, conv.bias, conv.stride, padding)
        return F.relu(self.norm(feature_maps))


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
    """Normalised clips to the mean over time and space of the last mixed block."""

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
        self.logits = nn.ModuleDict({"conv": nn.Conv3d(num_channels, num_classes, 1)})

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

    def fuse_batch_norm(self) -> InceptionI3d:
        """Fuse each batch norm into the convolution before it."""
        for unit in self.modules():
            if isinstance(unit, Unit3d) and isinstance(unit.norm, ShiftNorm):
                scale = torch.rsqrt(unit.norm.var + NORM_EPS)  # (C,)
                unit.conv.weight = nn.Parameter(unit.conv.weight * scale.view(-1, 1, 1, 1, 1))
                unit.conv.bias = nn.Parameter(unit.norm.bias - unit.norm.mean * scale)
                unit.norm = nn.Identity()
        return self


def max_pool_same(
    feature_maps: Float[Tensor, "B C T H W"],
    kernel_size: tuple[int, int, int],
    stride: tuple[int, int, int],
) -> Float[Tensor, "B C t h w"]:
    """Max pooling with SAME padding; after a ReLU nothing is below the zeros of the padding."""
    feature_maps, padding = pad_same(feature_maps, kernel_size, stride)
    return F.max_pool3d(feature_maps, kernel_size, stride, padding)
