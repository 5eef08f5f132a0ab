"""The losses of the paper: InfoNCE, masked clip modelling, set contrast (equations 2 to 8).

All of them take projected vectors. The equations are written for one video; over a minibatch we
take the mean over its videos, and every contrast is with all its clips (or sets). A minibatch may
be shared by several ranks: each rank's loss is such that the mean over the ranks of losses, of
accuracies and of gradients is that of the whole minibatch on one rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from clipset.model.info_nce import one_way_info_nce


@dataclass(frozen=True, slots=True)
class ScaleLosses:
    """The loss to minimise, its two terms, and how often the right answer was the nearest one."""

    total: Float[Tensor, ""]
    masked_clip: Float[Tensor, ""]
    set_contrast: Float[Tensor, ""]
    masked_clip_accuracy: Float[Tensor, ""]
    set_accuracy: Float[Tensor, ""]


@runtime_checkable
class Gather(Protocol):
    """Rows of all ranks, one rank after the other, along the first dimension.

    Ranks may have different numbers of rows. In the backward pass each rank's rows receive the
    sum over the ranks of the gradients that they got there; whole numbers have none.
    """

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    def __call__(self, rows: Tensor, /) -> Tensor: ...


class OneRank:
    """The gathering of a single rank: nothing to do."""

    rank, world_size = 0, 1

    def __call__(self, rows: Tensor, /) -> Tensor:
        return rows


def count_before(rows: Tensor, gather: Gather) -> tuple[int, int]:
    """How many rows the ranks before this one have, and all ranks together."""
    counts = gather(torch.tensor([len(rows)], device=rows.device)).tolist()
    return sum(counts[: gather.rank]), sum(counts)


@dataclass(frozen=True, slots=True)
class Scores:
    """A loss and how often the right answer was the nearest one."""

    loss: Float[Tensor, ""]
    found: Float[Tensor, ""]


def contrast_clips(
    predicted: Float[Tensor, "K P"],
    target: Float[Tensor, "N P"],
    asked: Int[Tensor, " M"],
    answer: Int[Tensor, " M"],
    temperature: float,
    *,
    videos: int,
    symmetric: bool,
    average: bool,
    gather: Gather | None = None,
) -> Scores:
    """Equation 6: the predictions `asked` find their `answer` among the targets of all ranks.

    Symmetric: those targets find these predictions among all predictions, too. Summed over the
    clips and divided by the videos, or the mean over clips and directions.
    """
    gather = gather or OneRank()
    guesses, truths = F.normalize(predicted, dim=-1), F.normalize(target, dim=-1)
    first, _ = count_before(truths, gather)
    _, clips = count_before(asked, gather)
    total, found = one_way_info_nce(guesses[asked], gather(truths), answer + first, temperature)
    if symmetric:
        first_guess, _ = count_before(guesses, gather)
        back, _ = one_way_info_nce(
            truths[answer], gather(guesses), asked + first_guess, temperature
        )
        total = (total + back) / 2 if average else total + back
    whole = clips if average else videos
    scale = gather.world_size / max(whole, 1)
    return Scores(total * scale, found * (gather.world_size / max(clips, 1)))


def set_contrastive_loss(
    first: Float[Tensor, "B P"],
    second: Float[Tensor, "B P"],
    temperature: float,
    *,
    average: bool = False,
    gather: Gather | None = None,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Equation 7: two sets of one video find each other among the sets of all videos."""
    gather = gather or OneRank()
    one, two = F.normalize(first, dim=-1), F.normalize(second, dim=-1)
    before, videos = count_before(one, gather)
    answer = torch.arange(len(one), device=one.device) + before
    forward, found = one_way_info_nce(one, gather(two), answer, temperature)
    backward, found_back = one_way_info_nce(two, gather(one), answer, temperature)
    scale = gather.world_size / videos
    total = (forward + backward) * (scale / 2 if average else scale)
    return total, (found + found_back) * (scale / 2)
