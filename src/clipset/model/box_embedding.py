"""Where a clip is, as a vector (equation 5)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

BANDS = 4  # octaves of the sines and cosines, from half a turn over the video


class BoxEmbedding(nn.Module):
    """The MLP of equation 5: where a clip is, as a vector."""

    def __init__(self, box_numbers: int, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(box_numbers, 2 * width)
        self.last = nn.Linear(2 * width, width)

    def forward(self, boxes: Float[Tensor, "*B X"]) -> Float[Tensor, "*B H"]:
        return self.last(F.relu(self.first(boxes)))  # type: ignore[no-any-return]

    @torch.no_grad()
    def spread_out(self) -> None:
        """Start out able to tell places apart, about as loud as the clips that they are added to.

        Each hidden unit bends somewhere inside the unit cube, where boxes live. Small weights would
        make all places look alike, and what happens when could hardly be learned from few videos.
        """
        nn.init.normal_(self.first.weight, std=2.0)
        bends = torch.rand_like(self.first.weight)  # (2H, X): a point of the cube for each unit
        self.first.bias.copy_(-(self.first.weight * bends).sum(dim=1))
        places = torch.rand(1024, self.first.in_features)
        self.last.weight.div_(self(places).std(dim=0).mean())


class FourierEmbedding(nn.Module):
    """The same MLP on the numbers of a box and their sines and cosines of several lengths."""

    turns: Tensor

    def __init__(self, box_numbers: int, width: int) -> None:
        super().__init__()
        self.box_numbers = box_numbers
        turns = math.pi * 2.0 ** torch.arange(BANDS)
        self.register_buffer("turns", turns, persistent=False)
        self.first = nn.Linear(box_numbers * (1 + 2 * BANDS), 2 * width)
        self.last = nn.Linear(2 * width, width)

    def forward(self, boxes: Float[Tensor, "*B X"]) -> Float[Tensor, "*B H"]:
        angles = (boxes[..., None] * self.turns).flatten(-2)  # (*B, X bands)
        waves = torch.cat([boxes, angles.sin(), angles.cos()], dim=-1)
        return self.last(F.relu(self.first(waves)))  # type: ignore[no-any-return]

    @torch.no_grad()
    def spread_out(self) -> None:
        """Start out with an output of unit deviation, as `BoxEmbedding` does."""
        nn.init.normal_(self.first.weight, std=self.first.in_features**-0.5)
        nn.init.zeros_(self.first.bias)
        places = torch.rand(1024, self.box_numbers)
        self.last.weight.div_(self(places).std(dim=0).mean())
