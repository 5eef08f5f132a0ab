"""Dropout that costs little time and memory on a CPU."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

STEPS = 1 << 16  # the chance is rounded to one of so many


def drop(values: Float[Tensor, "*S"], chance: float, training: bool) -> Float[Tensor, "*S"]:
    """Zero some values and scale the others so that the mean stays."""
    if not training or chance == 0.0:
        return values
    if values.device.type != "cpu":
        return F.dropout(values, chance, True)
    return _Drop.apply(values, chance)  # type: ignore[no-any-return, no-untyped-call]


def draw_kept(shape: torch.Size, chance: float) -> Bool[Tensor, "*S"]:
    """Which values stay: 16 random bits for each, four values to one draw."""
    count = shape.numel()
    words = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None)
    bits = words.view(torch.int16)[:count].view(shape)
    return bits >= round(chance * STEPS) - STEPS // 2


class _Drop(torch.autograd.Function):
    """Keeps one byte of each value for the way back."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, chance: float) -> Tensor:
        kept = draw_kept(values.shape, chance)
        ctx.scale = STEPS / (STEPS - round(chance * STEPS))
        ctx.save_for_backward(kept)
        return kept.to(values.dtype).mul_(ctx.scale).mul_(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (kept,) = ctx.saved_tensors
        return kept.to(grad.dtype).mul_(ctx.scale).mul_(grad), None


class Dropout(nn.Module):
    """`drop` as a layer."""

    def __init__(self, chance: float) -> None:
        super().__init__()
        self.chance = chance

    def forward(self, values: Float[Tensor, "*S"]) -> Float[Tensor, "*S"]:
        return drop(values, self.chance, self.training)
