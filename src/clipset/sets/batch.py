"""The clips of some videos as tensors: what every later stage takes from a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad


@dataclass(frozen=True, slots=True)
class ClipBatch:
    """All clips of one kind of N videos, in memory, ready for the model.

    `valid` is False where a video has fewer clips than another and zeros fill up; None if all
    have the same number. In a mixed set every clip is there once for each of several backbones, one
    backbone's clips after the other's: `sources` says which backbone saw a clip, `dims` how wide
    the features of each backbone are; zeros fill up to the widest.
    """

    features: Float[Tensor, "N V D"]
    boxes: Float[Tensor, "N V X"]
    sources: Int[Tensor, "N V"] | None = None
    valid: Bool[Tensor, "N V"] | None = None
    dims: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.features)

    @property
    def counts(self) -> Int[Tensor, " N"]:
        """How many clips each video has; in a mixed set, those of all backbones."""
        if self.valid is None:
            return torch.full((len(self),), self.features.shape[1], device=self.features.device)
        return self.valid.sum(dim=1)

    @property
    def backbones(self) -> int:
        """How often a clip is there."""
        return max(len(self.dims), 1)

    @property
    def of_one(self) -> ClipBatch:
        """The clips as the first backbone saw them."""
        most = self.features.shape[1] // self.backbones
        return replace(self._each(lambda part: part[:, :most]), dims=self.dims[:1])

    @property
    def side_by_side(self) -> ClipBatch:
        """Each clip once, with the features of all backbones next to one another."""
        if self.backbones == 1:
            return self
        one = self.of_one
        features = join_sources(self.features, self.dims)
        return ClipBatch(features, one.boxes, valid=one.valid)

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
            None if self.sources is None else change(self.sources),
            None if self.valid is None else change(self.valid),
            self.dims,
        )

    def pick(self, clips: Int[Tensor, "B W"], videos: Int[Tensor, " B"] | None = None) -> ClipBatch:
        """Some clips of each video (or of those named), by their places; they must be valid.

        In a mixed set a clip comes with all its backbones.
        """
        if videos is None:
            videos = torch.arange(len(self), device=clips.device)
        rows, places = videos[:, None], self.places(clips)
        return replace(self._each(lambda part: part[rows, places]), valid=None)

    def places(self, clips: Int[Tensor, "*B W"]) -> Int[Tensor, "*B K"]:
        """Where some clips stand: once for each backbone."""
        if self.backbones == 1:
            return clips
        most = self.features.shape[1] // self.backbones
        return torch.cat([clips + most * number for number in range(self.backbones)], dim=-1)

    def fill_up(self, most: int) -> ClipBatch:
        """The same clips as part of a larger table, in which a video has up to `most`."""
        more = most - self.features.shape[1] // self.backbones
        valid = self.valid
        if valid is None:
            valid = torch.ones(self.features.shape[:2], dtype=torch.bool)
        parts = replace(self, valid=valid)._parts()
        return self._joined([p if p is None else pad(p, (0, 0, 0, more)) for p in parts])

    def followed_by(self, other: ClipBatch) -> ClipBatch:
        """The same videos with more clips, behind those that they have."""
        one, two = self, other
        if one.valid is not None or two.valid is not None:
            one, two = (each.fill_up(each.of_one.features.shape[1]) for each in (one, two))
        pairs = zip(one._parts(), two._parts(), strict=True)
        return self._joined(
            [None if a is None or b is None else torch.cat([a, b], dim=2) for a, b in pairs]
        )

    def _parts(self) -> list[Tensor | None]:
        """All tensors as (N, backbones, V, numbers of a clip)."""
        shape = (len(self), self.backbones, self.features.shape[1] // self.backbones)
        found = (self.features, self.boxes, self.sources, self.valid)
        return [None if part is None else part.reshape(*shape, *_width(part)) for part in found]

    def _joined(self, parts: list[Tensor | None]) -> ClipBatch:
        """The clips whose `_parts` these are."""
        features, boxes, sources, valid = (p if p is None else p.flatten(1, 2) for p in parts)
        assert features is not None
        assert boxes is not None
        return ClipBatch(
            features,
            boxes,
            None if sources is None else sources[..., 0],
            None if valid is None else valid[..., 0],
            self.dims,
        )

    def valid_features(self) -> Float[Tensor, "M D"]:
        """The features of all clips that are there, one video's after the other's."""
        return self.features.flatten(0, 1) if self.valid is None else self.features[self.valid]


def _width(part: Tensor) -> tuple[int]:
    return (part.shape[2],) if part.dim() == 3 else (1,)


def join_sources(rows: Float[Tensor, "N V D"], dims: tuple[int, ...]) -> Float[Tensor, "N W R"]:
    """What stands there for each backbone, one after the other, next to one another."""
    parts = rows.chunk(len(dims), dim=1)
    return torch.cat([part[..., :dim] for part, dim in zip(parts, dims, strict=True)], dim=-1)


def by_count(clips: ClipBatch) -> Iterator[tuple[Int[Tensor, " B"], ClipBatch]]:
    """The videos in groups that have the same number of clips, without filler."""
    if clips.valid is None:
        yield torch.arange(len(clips)), clips
        return
    counts = clips.counts
    for count in counts.unique().tolist():
        videos = (counts == count).nonzero().squeeze(1)
        some = clips.of(videos)
        one = clips.valid[videos, : clips.features.shape[1] // clips.backbones]
        places = one.nonzero()[:, 1].view(len(videos), count // clips.backbones)
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


def clip_statistics(
    clips: ClipBatch,
) -> tuple[Float[Tensor, "*S D"], Float[Tensor, "*S D"]]:
    """Mean and deviation of each channel; in a mixed set, a row for each backbone."""
    if clips.backbones == 1:
        return feature_statistics(clips.valid_features())
    assert clips.sources is not None
    there = torch.ones_like(clips.sources) > 0 if clips.valid is None else clips.valid
    found = [
        feature_statistics(clips.features[there & (clips.sources == number)])
        for number in range(clips.backbones)
    ]
    mean, std = (torch.stack(each) for each in zip(*found, strict=True))
    return mean, std
