"""The clips of some videos as tensors: what every later stage takes from a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad


@dataclass(frozen=True, slots=True)
class ClipBatch:
    """All clips of one kind of N videos, in memory, ready for the model.

    `valid` is False where a video has fewer clips than another and zeros fill up; None if all
    have the same number.
    """

    features: Float[Tensor, "N V D"]
    boxes: Float[Tensor, "N V X"]
    valid: Bool[Tensor, "N V"] | None = None

    def __len__(self) -> int:
        return len(self.features)

    @property
    def counts(self) -> Int[Tensor, " N"]:
        """How many clips each video has."""
        if self.valid is None:
            return torch.full((len(self),), self.features.shape[1], device=self.features.device)
        return self.valid.sum(dim=1)

    def of(self, videos: Int[Tensor, " B"] | slice) -> ClipBatch:
        """The clips of some of the videos."""
        return self._each(lambda part: part[videos])

    def to(self, device: torch.device) -> ClipBatch:
        """The same clips on another device."""
        return self._each(lambda part: part.to(device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> ClipBatch:
        return ClipBatch(
            change(self.features),
            change(self.boxes),
            None if self.valid is None else change(self.valid),
        )

    def pick(self, clips: Int[Tensor, "B W"], videos: Int[Tensor, " B"] | None = None) -> ClipBatch:
        """Some clips of each video (or of those named), by their places; they must be valid."""
        if videos is None:
            videos = torch.arange(len(self), device=clips.device)
        rows = videos[:, None]
        return ClipBatch(self.features[rows, clips], self.boxes[rows, clips])

    def fill_up(self, most: int) -> ClipBatch:
        """The same clips as part of a larger table, in which a video has up to `most`."""
        more = most - self.features.shape[1]
        return ClipBatch(
            pad(self.features, (0, 0, 0, more)),
            pad(self.boxes, (0, 0, 0, more)),
            pad(self._mask(), (0, more)),
        )

    def followed_by(self, other: ClipBatch) -> ClipBatch:
        """The same videos with more clips, behind those that they have."""
        valid = None
        if self.valid is not None or other.valid is not None:
            valid = torch.cat([self._mask(), other._mask()], dim=1)
        return ClipBatch(
            torch.cat([self.features, other.features], dim=1),
            torch.cat([self.boxes, other.boxes], dim=1),
            valid,
        )

    def _mask(self) -> Bool[Tensor, "N V"]:
        if self.valid is not None:
            return self.valid
        return torch.ones(self.features.shape[:2], dtype=torch.bool)

    def valid_features(self) -> Float[Tensor, "M D"]:
        """The features of all clips that are there, one video's after the other's."""
        return self.features.flatten(0, 1) if self.valid is None else self.features[self.valid]


def by_count(clips: ClipBatch) -> Iterator[tuple[Int[Tensor, " B"], ClipBatch]]:
    """The videos in groups that have the same number of clips, without filler."""
    if clips.valid is None:
        yield torch.arange(len(clips)), clips
        return
    counts = clips.counts
    for count in counts.unique().tolist():
        videos = (counts == count).nonzero().squeeze(1)
        some = clips.of(videos)
        places = clips.valid[videos].nonzero()[:, 1].view(len(videos), count)
        yield videos, some.pick(places)


def mean_over_clips(
    vectors: Float[Tensor, "N V R"], valid: Bool[Tensor, "N V"] | None
) -> Float[Tensor, "N R"]:
    """The mean over each video's clips, filler left out."""
    if valid is None:
        return vectors.mean(dim=1)
    sums = torch.where(valid[..., None], vectors, 0.0).sum(dim=1)
    return sums / valid.sum(dim=1, keepdim=True).clamp(min=1)


def feature_statistics(
    features: Float[Tensor, "*N D"],
) -> tuple[Float[Tensor, " D"], Float[Tensor, " D"]]:
    """Mean and deviation of each channel over all clips; a channel that never changes gets 1."""
    std, mean = torch.std_mean(features.flatten(0, -2), dim=0, correction=0)
    return mean, torch.where(std > 1e-6, std, torch.ones_like(std))
