"""The losses of the paper: InfoNCE, masked clip modelling, set contrast (equations 2 to 8).

All of them take projected vectors. The equations are written for one video; over a minibatch we
take the mean over its videos, and every contrast is with all its clips (or sets).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True, slots=True)
class ScaleLosses:
    """The loss to minimise, its two terms, and how often the right answer was the nearest one."""

    total: Float[Tensor, ""]
    masked_clip: Float[Tensor, ""]
    set_contrast: Float[Tensor, ""]
    masked_clip_accuracy: Float[Tensor, ""]
    set_accuracy: Float[Tensor, ""]


def one_way_info_nce(
    asked: Float[Tensor, "M P"],
    candidates: Float[Tensor, "N P"],
    answer: Int[Tensor, " M"],
    temperature: float,
) -> tuple[Float[Tensor, " M"], Float[Tensor, ""]]:
    """Equation 2 for each asked vector: find its answer among the candidates; how many were.

    Both sides have unit length already.
    """
    logits = asked @ candidates.T / temperature  # (M, N)
    losses = F.cross_entropy(logits, answer, reduction="none")
    found = (logits.detach().argmax(dim=1) == answer).float().mean()
    return losses, found


def masked_clip_loss(
    predicted: Float[Tensor, "B V P"],
    target: Float[Tensor, "B V P"],
    masked: Bool[Tensor, "B V"],
    temperature: float,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Equation 6: recognise each hidden clip among all clips of the minibatch, in both directions.

    Summed over the masked clips of a video, mean over the videos. Returns the loss and the share of
    hidden clips that were recognised.
    """
    guesses = F.normalize(predicted, dim=-1).flatten(0, 1)  # (N, P) with N = B V
    truths = F.normalize(target, dim=-1).flatten(0, 1)  # (N, P)
    hidden = masked.flatten().nonzero().squeeze(1)  # (M,)
    if len(hidden) == 0:
        return predicted.sum() * 0.0, torch.zeros(())
    forward, found = one_way_info_nce(guesses[hidden], truths, hidden, temperature)
    backward, _ = one_way_info_nce(truths[hidden], guesses, hidden, temperature)
    return (forward + backward).sum() / len(masked), found


def set_contrastive_loss(
    first: Float[Tensor, "B P"], second: Float[Tensor, "B P"], temperature: float
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Equation 7: two sets of one video find each other among the sets of all videos."""
    one, two = F.normalize(first, dim=-1), F.normalize(second, dim=-1)
    answer = torch.arange(len(one), device=one.device)
    forward, found = one_way_info_nce(one, two, answer, temperature)
    backward, found_back = one_way_info_nce(two, one, answer, temperature)
    return (forward + backward).mean(), (found + found_back) / 2
