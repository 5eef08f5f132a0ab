"""Dropout whose chance costs little on a CPU."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

STEPS = 1 << 16  # the chance is rounded to one of so many


def drop(values: Float[Tensor, "*S"], chance: float, training: bool) -> Float[Tensor, "*S"]:
    """Zero some values and scale the others so that the mean stays."""
    if not training or chance == 0.0:
        return values
    if values.device.type != "cpu":
        return F.dropout(values, chance, True)
    return values * draw_kept(values.shape, chance, values.dtype)


@torch.no_grad()
def draw_kept(shape: torch.Size, chance: float, dtype: torch.dtype) -> Float[Tensor, "*S"]:
    """0 where a value is dropped, else what it is scaled by: 16 random bits for each value."""
    count = shape.numel()
    words = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None)
    bits = words.view(torch.int16)[:count].view(shape)
    dropped = round(chance * STEPS)
    kept = (bits >= dropped - STEPS // 2).to(dtype)
    return kept.mul_(STEPS / (STEPS - dropped))


class Dropout(nn.Module):
    """`drop` as a layer."""

    def __init__(self, chance: float) -> None:
        super().__init__()
        self.chance = chance

    def forward(self, values: Float[Tensor, "*S"]) -> Float[Tensor, "*S"]:
        return drop(values, self.chance, self.training)
