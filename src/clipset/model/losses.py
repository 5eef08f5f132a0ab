"""The losses of the paper: InfoNCE, masked clip modelling, set contrast (equations 2 to 8).

All of them take projected vectors. The equations are written for one video; over a minibatch we
take the mean over its videos, and the negatives come from all its clips (or sets). A minibatch may
be sharded over several ranks: each rank's loss is such that the mean over the ranks of losses, of
accuracies and of gradients is that of the whole minibatch on one rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from clipset.model.info_nce import info_nce


@dataclass(frozen=True, slots=True)
class ScaleLosses:
    """The loss to minimise, its two terms, and their top-1 accuracies."""

    total: Float[Tensor, ""]
    masked_clip: Float[Tensor, ""]
    set_contrast: Float[Tensor, ""]
    masked_clip_accuracy: Float[Tensor, ""]
    set_accuracy: Float[Tensor, ""]


@dataclass(frozen=True, slots=True)
class LossTerm:
    """A loss and the fraction of queries that are nearest to their positive."""

    loss: Float[Tensor, ""]
    accuracy: Float[Tensor, ""]


@runtime_checkable
class Gather(Protocol):
    """Concatenates the rows of all ranks along the first dimension.

    Ranks may have different numbers of rows. In the backward pass each rank's rows receive the sum
    over the ranks of their gradients; integers have none.
    """

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    def __call__(self, rows: Tensor, /) -> Tensor: ...


class SingleRank:
    """The gathering of a single rank: nothing to do."""

    rank, world_size = 0, 1

    def __call__(self, rows: Tensor, /) -> Tensor:
        return rows


def row_offset(rows: Tensor, gather: Gather) -> tuple[int, int]:
    """The index of this rank's first row among the rows of all ranks, and their number."""
    counts = gather(torch.tensor([len(rows)], device=rows.device)).tolist()
    return sum(counts[: gather.rank]), sum(counts)


def unit_vectors(vectors: Float[Tensor, "*B P"]) -> Float[Tensor, "*B P"]:
    """Vectors of length 1 in single precision, also where the network computes in bfloat16."""
    return F.normalize(vectors.float(), dim=-1)


def masked_clip_loss(
    predictions: Float[Tensor, "K P"],
    targets: Float[Tensor, "N P"],
    prediction_index: Int[Tensor, " M"],
    target_index: Int[Tensor, " M"],
    temperature: float,
    *,
    num_videos: int,
    num_masked: int,
    symmetric: bool,
    average: bool,
    gather: Gather | None = None,
) -> LossTerm:
    """Equation 6: InfoNCE of the predictions of M masked clips against the targets of all ranks.

    `prediction_index` and `target_index` are the rows of the masked clips. Symmetric: also of their
    targets against all predictions. Summed over the clips and divided by the videos, or the mean
    over clips and directions; `num_videos` and `num_masked` are those of the whole minibatch.
    """
    gather = gather or SingleRank()
    predictions, targets = unit_vectors(predictions), unit_vectors(targets)
    target_offset, _ = row_offset(targets, gather)
    loss, num_correct = info_nce(
        predictions[prediction_index], gather(targets), target_index + target_offset, temperature
    )
    if symmetric:
        prediction_offset, _ = row_offset(predictions, gather)
        positive_index = prediction_index + prediction_offset
        reverse_loss, _ = info_nce(
            targets[target_index], gather(predictions), positive_index, temperature
        )
        loss = (loss + reverse_loss) / 2 if average else loss + reverse_loss
    scale = gather.world_size / max(num_masked if average else num_videos, 1)
    return LossTerm(loss * scale, num_correct * (gather.world_size / max(num_masked, 1)))


def set_contrastive_loss(
    first: Float[Tensor, "B P"],
    second: Float[Tensor, "B P"],
    temperature: float,
    *,
    average: bool = False,
    gather: Gather | None = None,
) -> LossTerm:
    """Equation 7: InfoNCE between the two sets of each video, in both directions."""
    gather = gather or SingleRank()
    first, second = unit_vectors(first), unit_vectors(second)
    offset, num_videos = row_offset(first, gather)
    positive_index = torch.arange(len(first), device=first.device) + offset
    forward, correct = info_nce(first, gather(second), positive_index, temperature)
    backward, correct_back = info_nce(second, gather(first), positive_index, temperature)
    scale = gather.world_size / num_videos
    loss = (forward + backward) * (scale / 2 if average else scale)
    return LossTerm(loss, (correct + correct_back) * (scale / 2))


@torch.no_grad()
def set_pair_accuracy(projections: Float[Tensor, "2 B P"], gather: Gather) -> Float[Tensor, ""]:
    """The fraction of first sets that are nearest to the second set of their own video."""
    first, second = unit_vectors(projections)
    offset, num_videos = row_offset(first, gather)
    positive_index = torch.arange(len(first), device=first.device) + offset
    _, num_correct = info_nce(first, gather(second), positive_index, 1.0)
    return num_correct * (gather.world_size / num_videos)
