"""The position of a clip as a vector (equation 5)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


class BoxEmbedding(nn.Module):
    """The MLP of equation 5: box coordinates to a vector."""

    def __init__(self, box_dim: int, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(box_dim, 2 * width)
        self.last = nn.Linear(2 * width, width)

    def forward(self, boxes: Float[Tensor, "*B X"]) -> Float[Tensor, "*B H"]:
        return self.last(F.relu(self.first(boxes)))  # type: ignore[no-any-return]

    @torch.no_grad()
    def init_weights(self) -> None:
        """Start with embeddings that differ between positions, of about the size of clip tokens.

        The kink of each hidden unit lies inside the unit cube of box coordinates. Small weights
        would make all positions look alike, and temporal order could hardly be learned from few
        videos.
        """
        nn.init.normal_(self.first.weight, std=2.0)
        kinks = torch.rand_like(self.first.weight)  # (2H, X): a point of the cube for each unit
        self.first.bias.copy_(-(self.first.weight * kinks).sum(dim=1))
        positions = torch.rand(1024, self.first.in_features)
        self.last.weight.div_(self(positions).std(dim=0).mean())
