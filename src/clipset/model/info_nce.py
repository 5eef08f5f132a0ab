"""InfoNCE over any number of candidates, in tiles: memory does not grow with the square of a batch.

Of a tile of similarities only sums are kept: the largest similarity of a row and the sum of its
exponentials go from tile to tile (an online log-sum-exp). Gradients are made in the same sweep,
from the tile at hand where whole rows fit into one, else from tiles that are computed again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

TILE = 1 << 22  # similarities held at a time
LEAST_ROWS = 64  # rows of a tile, as long as there are so many


def one_way_info_nce(
    asked: Float[Tensor, "M P"],
    candidates: Float[Tensor, "N P"],
    answer: Int[Tensor, " M"],
    temperature: float,
    *,
    tile: int = TILE,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Equation 2, summed over the asked vectors, and how many were nearest to their answer alone.

    Both sides have unit length already.
    """
    wanted = torch.is_grad_enabled() and (asked.requires_grad or candidates.requires_grad)
    return _InfoNCE.apply(  # type: ignore[no-any-return, no-untyped-call]
        asked / temperature, candidates, answer, tile, wanted
    )


class _InfoNCE(torch.autograd.Function):
    """The sum of the losses; its gradients are made on the way, so that no tile is kept."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        candidates: Tensor,
        answer: Tensor,
        tile: int,
        wanted: bool,
    ) -> tuple[Tensor, Tensor]:
        sweep = _Sweep(rows, candidates, answer, tile)
        loss, found, gradients = sweep.run(wanted)
        ctx.save_for_backward(*gradients)
        ctx.mark_non_differentiable(found)
        return loss, found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        of_rows, of_candidates = ctx.saved_tensors
        return grad * of_rows, grad * of_candidates, None, None, None


@dataclass(frozen=True, slots=True)
class _Sweep:
    """Rows of similarities, some at a time, over all candidates."""

    rows: Float[Tensor, "M P"]
    candidates: Float[Tensor, "N P"]
    answer: Int[Tensor, " M"]
    tile: int

    def run(self, wanted: bool) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """Loss, how many were found, and the gradients of both sides if they are wanted."""
        width = max(min(len(self.candidates), self.tile // LEAST_ROWS), 1)
        height = max(self.tile // width, 1)
        loss, found = self.rows.new_zeros(()), self.rows.new_zeros(())
        gradients: tuple[Tensor, ...] = ()
        if wanted:
            gradients = (torch.empty_like(self.rows), torch.zeros_like(self.candidates))
        for low in range(0, len(self.rows), height):
            share = self._some_rows(low, min(low + height, len(self.rows)), width, gradients)
            loss, found = loss + share[0], found + share[1]
        return loss, found, gradients

    def _some_rows(
        self, low: int, high: int, width: int, gradients: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor]:
        rows = self.rows[low:high]
        right = (rows * self.candidates[self.answer[low:high]]).sum(dim=1)
        top, total, nearest = right, torch.ones_like(right), torch.full_like(right, -torch.inf)
        for left in range(0, len(self.candidates), width):
            tile = self._similarities(low, high, left, width)
            highest = tile.amax(dim=1)
            nearest = torch.maximum(nearest, highest)
            before, top = top, torch.maximum(top, highest)
            tile.sub_(top[:, None]).exp_()
            total = total * (before - top).exp() + tile.sum(dim=1)
        if gradients:
            kept = tile if width >= len(self.candidates) else None
            self._add_gradients(gradients, low, high, width, (right, top, total), kept)
        return (top + total.log() - right).sum(), (right > nearest).sum()

    def _similarities(self, low: int, high: int, left: int, width: int) -> Float[Tensor, "m n"]:
        """A tile in which the right answers are infinitely far away."""
        tile = self.rows[low:high] @ self.candidates[left : left + width].T
        column = self.answer[low:high] - left
        row = ((column >= 0) & (column < width)).nonzero().squeeze(1)
        tile[row, column[row]] = -torch.inf
        return tile

    def _add_gradients(
        self,
        gradients: tuple[Tensor, ...],
        low: int,
        high: int,
        width: int,
        sums: tuple[Tensor, Tensor, Tensor],
        kept: Tensor | None,
    ) -> None:
        right, top, total = sums
        rows, answer = self.rows[low:high], self.answer[low:high]
        surprise = ((right - top).exp() / total - 1)[:, None]  # (m, 1)
        weighted = rows / total[:, None]
        of_rows = torch.zeros_like(rows)
        for left in range(0, len(self.candidates), width):
            tile = kept
            if tile is None:
                tile = self._similarities(low, high, left, width).sub_(top[:, None]).exp_()
            of_rows.addmm_(tile, self.candidates[left : left + width])
            gradients[1][left : left + width].addmm_(tile.T, weighted)
        of_rows.div_(total[:, None]).addcmul_(surprise, self.candidates[answer])
        gradients[0][low:high] = of_rows
        gradients[1].index_add_(0, answer, surprise * rows)
