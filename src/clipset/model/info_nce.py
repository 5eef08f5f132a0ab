"""InfoNCE over any number of keys, in tiles: memory does not grow with the square of a batch.

Of a tile of logits only sums are kept: the largest logit of a row and the sum of its exponentials
are carried from tile to tile (an online log-sum-exp). Gradients are computed in the same pass: from
the tile at hand if it holds whole rows, else from tiles that are computed again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

TILE_SIZE = 1 << 22  # logits in memory at a time
MIN_ROWS = 64  # rows of a tile, if there are so many queries


def info_nce(
    queries: Float[Tensor, "M P"],
    keys: Float[Tensor, "N P"],
    positive_index: Int[Tensor, " M"],
    temperature: float,
    *,
    tile_size: int = TILE_SIZE,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Equation 2, summed over the queries, and the number of queries nearest to their positive.

    Queries and keys have unit length. All keys but the positive are negatives.
    """
    needs_gradient = torch.is_grad_enabled() and (queries.requires_grad or keys.requires_grad)
    with torch.autocast(queries.device.type, enabled=False):  # sums of exponentials stay exact
        return _InfoNCE.apply(  # type: ignore[no-any-return, no-untyped-call]
            queries / temperature, keys, positive_index, tile_size, needs_gradient
        )


class _InfoNCE(torch.autograd.Function):
    """The summed loss; its gradients are computed in the forward pass, so no tile is kept."""

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        keys: Tensor,
        positive_index: Tensor,
        tile_size: int,
        needs_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        tiles = _Tiles(queries, keys, positive_index, tile_size)
        loss, num_correct, gradients = tiles.run(needs_gradient)
        ctx.save_for_backward(*gradients)
        ctx.mark_non_differentiable(num_correct)
        return loss, num_correct

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        of_queries, of_keys = ctx.saved_tensors
        return gradient * of_queries, gradient * of_keys, None, None, None


@dataclass(frozen=True, slots=True)
class _Tiles:
    """The matrix of logits, some rows and columns at a time; queries are scaled already."""

    queries: Float[Tensor, "M P"]
    keys: Float[Tensor, "N P"]
    positive_index: Int[Tensor, " M"]
    tile_size: int

    def run(self, needs_gradient: bool) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """Loss, number of correct queries, and the gradients of queries and keys."""
        width = max(min(len(self.keys), self.tile_size // MIN_ROWS), 1)
        height = max(self.tile_size // width, 1)
        loss, num_correct = self.queries.new_zeros(()), self.queries.new_zeros(())
        gradients: tuple[Tensor, ...] = ()
        if needs_gradient:
            gradients = (torch.empty_like(self.queries), torch.zeros_like(self.keys))
        for start in range(0, len(self.queries), height):
            stop = min(start + height, len(self.queries))
            row_loss, row_correct = self._run_rows(start, stop, width, gradients)
            loss, num_correct = loss + row_loss, num_correct + row_correct
        return loss, num_correct, gradients

    def _run_rows(
        self, start: int, stop: int, width: int, gradients: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor]:
        queries = self.queries[start:stop]
        positive = (queries * self.keys[self.positive_index[start:stop]]).sum(dim=1)
        top, total = positive, torch.ones_like(positive)
        top_negative = torch.full_like(positive, -torch.inf)
        for left in range(0, len(self.keys), width):
            tile = self._negative_logits(start, stop, left, width)
            highest = tile.amax(dim=1)
            top_negative = torch.maximum(top_negative, highest)
            previous_top, top = top, torch.maximum(top, highest)
            tile.sub_(top[:, None]).exp_()
            total = total * (previous_top - top).exp() + tile.sum(dim=1)
        if gradients:
            whole_rows = tile if width >= len(self.keys) else None
            sums = (positive, top, total)
            self._add_gradients(gradients, start, stop, width, sums, whole_rows)
        return (top + total.log() - positive).sum(), (positive > top_negative).sum()

    def _negative_logits(
        self, start: int, stop: int, left: int, width: int
    ) -> Float[Tensor, "m n"]:
        """A tile of logits; those of positives are -inf."""
        tile = self.queries[start:stop] @ self.keys[left : left + width].T
        column = self.positive_index[start:stop] - left
        row = ((column >= 0) & (column < width)).nonzero().squeeze(1)
        tile[row, column[row]] = -torch.inf
        return tile

    def _add_gradients(
        self,
        gradients: tuple[Tensor, ...],
        start: int,
        stop: int,
        width: int,
        sums: tuple[Tensor, Tensor, Tensor],
        whole_rows: Tensor | None,
    ) -> None:
        positive, top, total = sums
        queries, positive_index = self.queries[start:stop], self.positive_index[start:stop]
        of_positive = ((positive - top).exp() / total - 1)[:, None]  # (m, 1)
        weighted = queries / total[:, None]
        of_queries = torch.zeros_like(queries)
        for left in range(0, len(self.keys), width):
            tile = whole_rows
            if tile is None:
                tile = self._negative_logits(start, stop, left, width).sub_(top[:, None]).exp_()
            of_queries.addmm_(tile, self.keys[left : left + width])
            gradients[1][left : left + width].addmm_(tile.T, weighted)
        of_queries.div_(total[:, None]).addcmul_(of_positive, self.keys[positive_index])
        gradients[0][start:stop] = of_queries
        gradients[1].index_add_(0, positive_index, of_positive * queries)
