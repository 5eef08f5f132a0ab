"""Chance in training: which videos form a batch, which clips its two sets, which are hidden."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from clipset.sets.batch import ClipBatch

MaskRule = Literal["count", "bernoulli"]


@dataclass(frozen=True, slots=True)
class SetPair:
    """Two sets of each video of a batch that have no clip in common, and what is hidden of them.

    Where clips differ in number, `valid` tells them from filler.
    """

    features: Float[Tensor, "2 B V D"]
    boxes: Float[Tensor, "2 B V X"]
    masked: Bool[Tensor, "2 B V"]
    valid: Bool[Tensor, "2 B V"] | None = None


def draw_batches(videos: int, batch: int, generator: Generator) -> list[Int[Tensor, " B"]]:
    """One epoch: all videos in random order, in batches of (nearly) equal size up to `batch`."""
    order = torch.randperm(videos, generator=generator)
    return list(order.tensor_split(-(-videos // batch)))


def draw_batches_by_group(
    groups: Int[Tensor, " N"], batch: int, generator: Generator
) -> list[Int[Tensor, " B"]]:
    """One epoch of batches that hold videos of one group each, in random order."""
    batches = []
    for group in groups.unique().tolist():
        videos = (groups == group).nonzero().flatten()
        batches += [videos[part] for part in draw_batches(len(videos), batch, generator)]
    return [batches[place] for place in torch.randperm(len(batches), generator=generator).tolist()]


def draw_set_pair(
    clips: ClipBatch,
    per_set: int,
    mask_ratio: float,
    generator: Generator,
    *,
    rule: MaskRule = "count",
) -> SetPair:
    """Split each video's clips at random into two sets of `per_set`, and hide some of each.

    A video with fewer clips than two sets need shares them out evenly; the rest is filler.
    """
    count, valid = len(clips), clips.valid
    order = _draw_order(clips, generator)[:, : 2 * per_set]
    chosen = order.view(count, 2, per_set).transpose(0, 1)  # (2, B, V)
    if valid is not None:  # filler comes last: where there is some, a clip to each set in turn
        in_turn = order.view(count, per_set, 2).permute(2, 0, 1)
        chosen = torch.where((clips.counts < 2 * per_set)[None, :, None], in_turn, chosen)
    videos = torch.arange(count)[None, :, None]
    there = None if valid is None else valid[videos, chosen]
    return SetPair(
        features=clips.features[videos, chosen],
        boxes=clips.boxes[videos, chosen],
        masked=draw_mask(count, per_set, mask_ratio, generator, rule=rule, valid=there),
        valid=there,
    )


def draw_subset(clips: ClipBatch, size: int, generator: Generator) -> ClipBatch:
    """One random set of `size` clips of each video, or of as many as the shortest one has."""
    order = _draw_order(clips, generator)
    return clips.pick(order[:, : min(size, int(clips.counts.min()))])


def mix_means(clips: ClipBatch, generator: Generator) -> ClipBatch:
    """Move each video's mean feature a random part of the way to another video's.

    What stays the same throughout a video (the person, the clothes, the room) then says less about
    what is done in it. All clips are valid.
    """
    moves = draw_moves(clips.features.mean(dim=1), torch.arange(len(clips)), generator)
    return replace(clips, features=clips.features + moves[:, None])


def draw_moves(
    means: Float[Tensor, "N D"], videos: Int[Tensor, " B"], generator: Generator
) -> Float[Tensor, "B D"]:
    """From each of some videos' means a random part of the way to that of another of them."""
    own = means[videos]
    other = own[torch.randperm(len(videos), generator=generator)]
    return torch.rand((len(videos), 1), generator=generator) * (other - own)


def _draw_order(clips: ClipBatch, generator: Generator) -> Int[Tensor, "B V"]:
    """Each video's clips in random order, those that are not there behind all that are."""
    ranks = torch.rand(clips.features.shape[:2], generator=generator)
    if clips.valid is not None:
        ranks = ranks.masked_fill(~clips.valid, 2.0)
    return ranks.argsort(dim=1)


def draw_mask(
    videos: int,
    per_set: int,
    ratio: float,
    generator: Generator,
    *,
    rule: MaskRule = "count",
    valid: Bool[Tensor, "2 B V"] | None = None,
) -> Bool[Tensor, "2 B V"]:
    """Which clips are hidden; filler never is.

    `count`: the same fraction of every set, rounded, at least one, never all. `bernoulli`: each
    clip with the same probability, so that a set may have none or all hidden.
    """
    chance = torch.rand(2, videos, per_set, generator=generator)
    if rule == "bernoulli":
        return chance < ratio if valid is None else (chance < ratio) & valid
    if valid is None:
        hidden = min(max(round(ratio * per_set), 1), per_set - 1)
        return chance.argsort(dim=-1).argsort(dim=-1) < hidden
    rank = chance.masked_fill(~valid, 2.0).argsort(dim=-1).argsort(dim=-1)
    there = valid.sum(dim=-1, keepdim=True)  # (2, B, 1)
    return rank < (ratio * there).round().clamp(min=1).minimum(there - 1)
