"""Padding as TensorFlow's SAME does it: an odd pixel goes to the end."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def same_padding(size: int, kernel_size: int, stride: int) -> tuple[int, int]:
    """Padding of one axis, before and after."""
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
