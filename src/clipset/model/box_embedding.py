"""Where a clip is, as a vector (equation 5)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


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
