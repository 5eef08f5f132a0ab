"""Dropout that costs little time and memory on a CPU."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

RESOLUTION = 1 << 16  # the probability is rounded to a multiple of 1 / RESOLUTION


def dropout(values: Float[Tensor, "*S"], p: float, training: bool) -> Float[Tensor, "*S"]:
    """Zero values with probability `p` and scale the others so that the mean stays."""
    if not training or p == 0.0:
        return values
    if values.device.type != "cpu":
        return F.dropout(values, p, True)
    return _Dropout.apply(values, p)  # type: ignore[no-any-return, no-untyped-call]


def draw_keep_mask(shape: torch.Size, p: float) -> Bool[Tensor, "*S"]:
    """False with probability `p`: 16 random bits for each value, four values to one draw."""
    count = shape.numel()
    words = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None)
    bits = words.view(torch.int16)[:count].view(shape)
    return bits >= round(p * RESOLUTION) - RESOLUTION // 2


class _Dropout(torch.autograd.Function):
    """Saves one byte of each value for the backward pass."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, p: float) -> Tensor:
        keep_mask = draw_keep_mask(values.shape, p)
        ctx.scale = RESOLUTION / (RESOLUTION - round(p * RESOLUTION))
        ctx.save_for_backward(keep_mask)
        return keep_mask.to(values.dtype).mul_(ctx.scale).mul_(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (keep_mask,) = ctx.saved_tensors
        return keep_mask.to(gradient.dtype).mul_(ctx.scale).mul_(gradient), None


class Dropout(nn.Module):
    """`dropout` as a layer."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, values: Float[Tensor, "*S"]) -> Float[Tensor, "*S"]:
        return dropout(values, self.p, self.training)
