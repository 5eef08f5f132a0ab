"""Random sampling for training: batches of videos, pairs of disjoint clip sets, masks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Generator, Tensor

from clipset.sets.batch import ClipBatch

MaskRule = Literal["count", "bernoulli"]


@dataclass(frozen=True, slots=True)
class SetPair:
    """Two disjoint sets of clips of each video of a batch, with their masks.

    `valid` is False for padding; None if there is none.
    """

    features: Float[Tensor, "2 B V D"]
    boxes: Float[Tensor, "2 B V X"]
    masked: Bool[Tensor, "2 B V"]
    valid: Bool[Tensor, "2 B V"] | None = None


@dataclass(frozen=True, slots=True)
class PixelPair:
    """Two disjoint sets of clips of each video as pixels, for a backbone that is trained.

    `visible` are the indices of the tokens of each clip that are not dropped; None: all of them.
    """

    pixels: UInt8[Tensor, "2 B V T 3 S S"]
    boxes: Float[Tensor, "2 B V X"]
    masked: Bool[Tensor, "2 B V"]
    visible: Int[Tensor, "2 B V K"] | None = None

    def __len__(self) -> int:
        return self.masked.shape[1]

    def select(self, videos: Int[Tensor, " W"]) -> PixelPair:
        """The sets of some of the videos."""
        visible = None if self.visible is None else self.visible[:, videos]
        return PixelPair(
            self.pixels[:, videos], self.boxes[:, videos], self.masked[:, videos], visible
        )


@dataclass(frozen=True, slots=True)
class SetIndices:
    """Which clips of each video form its two sets, and which of them are masked."""

    clip_index: Int[Tensor, "2 B V"]
    masked: Bool[Tensor, "2 B V"]
    valid: Bool[Tensor, "2 B V"] | None = None

    def select(self, videos: slice) -> SetIndices:
        """The sets of some of the videos."""
        valid = None if self.valid is None else self.valid[:, videos]
        return SetIndices(self.clip_index[:, videos], self.masked[:, videos], valid)


def draw_batches(num_videos: int, batch_size: int, generator: Generator) -> list[Int[Tensor, " B"]]:
    """One epoch: all videos in random order, in batches of nearly equal size up to `batch_size`."""
    video_order = torch.randperm(num_videos, generator=generator)
    return list(video_order.tensor_split(-(-num_videos // batch_size)))


def draw_batches_by_group(
    groups: Int[Tensor, " N"], batch_size: int, generator: Generator
) -> list[Int[Tensor, " B"]]:
    """One epoch of batches in random order; all videos of a batch are of one group."""
    batches = []
    for group in groups.unique().tolist():
        videos = (groups == group).nonzero().flatten()
        batches += [videos[batch] for batch in draw_batches(len(videos), batch_size, generator)]
    return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]


def draw_set_indices(
    num_videos: int,
    num_clips: int,
    clips_per_set: int,
    mask_ratio: float,
    generator: Generator,
    *,
    mask_rule: MaskRule = "count",
    valid: Bool[Tensor, "B W"] | None = None,
) -> SetIndices:
    """Split each video's clips at random into two sets, and mask some of each.

    A video with too few clips for two full sets divides them evenly; the rest is padding.
    """
    clip_order = _draw_order(num_videos, num_clips, generator, valid)[:, : 2 * clips_per_set]
    clip_index = clip_order.view(num_videos, 2, clips_per_set).transpose(0, 1)  # (2, B, V)
    set_valid = None
    if valid is not None:  # padding comes last in the order: alternate the sets where there is any
        alternating = clip_order.view(num_videos, clips_per_set, 2).permute(2, 0, 1)
        too_few = valid.sum(dim=1) < 2 * clips_per_set
        clip_index = torch.where(too_few[None, :, None], alternating, clip_index)
        set_valid = valid[torch.arange(num_videos)[None, :, None], clip_index]
    masked = draw_mask(
        num_videos, clips_per_set, mask_ratio, generator, mask_rule=mask_rule, valid=set_valid
    )
    return SetIndices(clip_index, masked, set_valid)


def draw_subset(clips: ClipBatch, num_clips: int, generator: Generator) -> ClipBatch:
    """A random set of `num_clips` clips of each video, or of as many as the shortest one has."""
    clip_order = _draw_order(len(clips), clips.features.shape[1], generator, clips.valid)
    return clips.select_clips(clip_order[:, : min(num_clips, int(clips.counts.min()))])


def draw_mask(
    num_videos: int,
    clips_per_set: int,
    mask_ratio: float,
    generator: Generator,
    *,
    mask_rule: MaskRule = "count",
    valid: Bool[Tensor, "2 B V"] | None = None,
) -> Bool[Tensor, "2 B V"]:
    """Which clips are masked; padding never is.

    `count`: the same fraction of every set; a number that is not whole is rounded at random.
    `bernoulli`: each clip with the same probability, so that none or all clips of a set may be
    masked. With both, the mean over many draws is the mask ratio.
    """
    random_values = torch.rand(2, num_videos, clips_per_set, generator=generator)
    valid = torch.ones_like(random_values, dtype=torch.bool) if valid is None else valid
    if mask_rule == "bernoulli":
        return (random_values < mask_ratio) & valid
    random_rank = random_values.masked_fill(~valid, 2.0).argsort(dim=-1).argsort(dim=-1)
    num_valid = valid.sum(dim=-1, keepdim=True)  # (2, B, 1)
    return random_rank < _round_at_random(mask_ratio * num_valid.double(), generator)


def mix_means(clips: ClipBatch, generator: Generator) -> ClipBatch:
    """Move each video's mean feature a random part of the way to another video's.

    Constant properties of a video (the person, the clothes, the room) then say less about its
    action. All clips are valid.
    """
    mean_features = clips.features.mean(dim=1)
    others = mean_features[torch.randperm(len(mean_features), generator=generator)]
    shifts = torch.rand((len(mean_features), 1), generator=generator) * (others - mean_features)
    return replace(clips, features=clips.features + shifts[:, None])


def _draw_order(
    num_videos: int, num_clips: int, generator: Generator, valid: Bool[Tensor, "B V"] | None
) -> Int[Tensor, "B V"]:
    """The clip indices of each video in random order, padding last."""
    random_values = torch.rand((num_videos, num_clips), generator=generator)
    if valid is not None:
        random_values = random_values.masked_fill(~valid, 2.0)
    return random_values.argsort(dim=1)


def _round_at_random(
    numbers: Float[Tensor, "*shape"], generator: Generator
) -> Float[Tensor, "*shape"]:
    """Round up or down so that the mean over draws is the number; whole numbers need no draw."""
    rounded = numbers.round()
    if torch.allclose(numbers, rounded, rtol=0.0, atol=1e-9):
        return rounded
    return (numbers + torch.rand(numbers.shape, generator=generator)).floor()
