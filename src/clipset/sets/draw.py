"""Chance in training: which videos form a batch, which clips its two sets, which are hidden."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from clipset.errors import StoreError
from clipset.sets.clips import VideoClips


@dataclass(frozen=True, slots=True)
class SetPair:
    """Two sets of each video of a batch that have no clip in common, and what is hidden of them."""

    features: Float[Tensor, "2 B V D"]
    boxes: Float[Tensor, "2 B V X"]
    masked: Bool[Tensor, "2 B V"]
    sources: Int[Tensor, "2 B V"] | None = None


def draw_batches(videos: int, batch: int, generator: Generator) -> list[Int[Tensor, " B"]]:
    """One epoch: all videos in random order, in batches of (nearly) equal size up to `batch`."""
    order = torch.randperm(videos, generator=generator)
    return list(order.tensor_split(-(-videos // batch)))


def draw_set_pair(
    clips: VideoClips, per_set: int, mask_ratio: float, generator: Generator
) -> SetPair:
    """Split each video's clips at random into two sets of `per_set`, and hide some of each."""
    count = len(clips)
    if clips.present is not None and int(clips.counts.min()) < 2 * per_set:
        raise StoreError(
            f"two sets of {per_set} need {2 * per_set} clips of a video, "
            f"one has {int(clips.counts.min())}; use fewer clips per set"
        )
    order = _draw_order(clips, generator)[:, : 2 * per_set]
    chosen = order.view(count, 2, per_set).transpose(0, 1)  # (2, B, V)
    videos = torch.arange(count)[None, :, None]
    return SetPair(
        features=clips.features[videos, chosen],
        boxes=clips.boxes[videos, chosen],
        masked=draw_mask(count, per_set, mask_ratio, generator),
        sources=None if clips.sources is None else clips.sources[videos, chosen],
    )


def draw_subset(clips: VideoClips, size: int, generator: Generator) -> VideoClips:
    """One random set of `size` clips of each video, or of as many as the shortest one has."""
    order = _draw_order(clips, generator)
    return clips.pick(order[:, : min(size, int(clips.counts.min()))])


def _draw_order(clips: VideoClips, generator: Generator) -> Int[Tensor, "B V"]:
    """Each video's clips in random order, those that are not there behind all that are."""
    ranks = torch.rand(clips.features.shape[:2], generator=generator)
    if clips.present is not None:
        ranks = ranks.masked_fill(~clips.present, 2.0)
    return ranks.argsort(dim=1)


def draw_mask(
    videos: int, per_set: int, ratio: float, generator: Generator
) -> Bool[Tensor, "2 B V"]:
    """Hide the same number of clips in every set: `ratio` of them, at least one, never all."""
    hidden = min(max(round(ratio * per_set), 1), per_set - 1)
    rank = torch.rand(2, videos, per_set, generator=generator).argsort(dim=-1).argsort(dim=-1)
    return rank < hidden
