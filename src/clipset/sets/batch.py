"""The clips of some videos as tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

MIN_STD = 1e-6  # channels with less are constant


@dataclass(frozen=True, slots=True)
class ClipBatch:
    """The random or regular clips of N videos as tensors for the model.

    `valid` is False for padding, where a video has fewer clips than others; None if there is none.
    """

    features: Float[Tensor, "N V D"]
    boxes: Float[Tensor, "N V X"]
    valid: Bool[Tensor, "N V"] | None = None

    def __len__(self) -> int:
        return len(self.features)

    @property
    def num_clips(self) -> int:
        """Clips of each video, padding included."""
        return self.features.shape[1]

    @property
    def dim(self) -> int:
        """The width of a feature."""
        return self.features.shape[2]

    @property
    def counts(self) -> Int[Tensor, " N"]:
        """The number of valid clips of each video."""
        return self.valid_mask.sum(dim=1)

    def select(self, videos: Int[Tensor, " B"] | slice) -> ClipBatch:
        """The clips of some of the videos."""
        return self._apply(lambda tensor: tensor[videos])

    read = select  # clips of a store, in `clipset.sets.stored_clips`, are read into memory by this

    def to(self, device: torch.device) -> ClipBatch:
        """The same clips on another device."""
        return self._apply(lambda tensor: tensor.to(device))

    def _apply(self, function: Callable[[Tensor], Tensor]) -> ClipBatch:
        return ClipBatch(
            function(self.features),
            function(self.boxes),
            None if self.valid is None else function(self.valid),
        )

    def select_clips(
        self, clip_index: Int[Tensor, "B W"], videos: Int[Tensor, " B"] | None = None
    ) -> ClipBatch:
        """Some valid clips of each video (or of some videos), by their indices."""
        if videos is None:
            videos = torch.arange(len(self), device=clip_index.device)
        index = (videos[:, None], clip_index)
        return ClipBatch(self.features[index], self.boxes[index])

    def pad_to(self, num_clips: int) -> ClipBatch:
        """The same clips, padded to `num_clips` for each video."""
        num_padding = num_clips - self.features.shape[1]
        return ClipBatch(
            pad(self.features, (0, 0, 0, num_padding)),
            pad(self.boxes, (0, 0, 0, num_padding)),
            pad(self.valid_mask, (0, num_padding)),
        )

    def concat_clips(self, other: ClipBatch) -> ClipBatch:
        """The same videos with the clips of another batch after their own."""
        valid_mask = None
        if self.valid is not None or other.valid is not None:
            valid_mask = torch.cat([self.valid_mask, other.valid_mask], dim=1)
        return ClipBatch(
            torch.cat([self.features, other.features], dim=1),
            torch.cat([self.boxes, other.boxes], dim=1),
            valid_mask,
        )

    @property
    def valid_mask(self) -> Bool[Tensor, "N V"]:
        """`valid`, also where there is no padding."""
        if self.valid is not None:
            return self.valid
        return self.features.new_ones(self.features.shape[:2], dtype=torch.bool)

    def valid_features(self) -> Float[Tensor, "M D"]:
        """The features of all valid clips, video by video."""
        return self.features.flatten(0, 1) if self.valid is None else self.features[self.valid]


def mean_over_clips(
    vectors: Float[Tensor, "N V R"], valid: Bool[Tensor, "N V"] | None
) -> Float[Tensor, "N R"]:
    """The mean over each video's valid clips."""
    if valid is None:
        return vectors.mean(dim=1)
    vector_sums = torch.where(valid[..., None], vectors, 0.0).sum(dim=1)
    return vector_sums / valid.sum(dim=1, keepdim=True).clamp(min=1)


class RunningStatistics:
    """Mean and standard deviation of each channel over chunks, in double precision."""

    def __init__(self) -> None:
        self.count = 0
        self.sum, self.sum_of_squares = torch.zeros(()), torch.zeros(())  # squares of deviations

    def update(self, features: Float[Tensor, "M D"]) -> None:
        """Add a chunk of features."""
        variance, mean = torch.var_mean(features.double(), dim=0, correction=0)
        chunk_size, total_count = len(features), self.count + len(features)
        if not self.count:
            self.sum, self.sum_of_squares = mean * chunk_size, variance * chunk_size
        else:
            mean_shift = mean - self.sum / self.count
            between = mean_shift**2 * (self.count * chunk_size / total_count)
            self.sum_of_squares = self.sum_of_squares + variance * chunk_size + between
            self.sum = self.sum + mean * chunk_size
        self.count = total_count

    @property
    def mean(self) -> Float[Tensor, " D"]:
        """The mean of each channel."""
        return (self.sum / self.count).float()

    @property
    def std(self) -> Float[Tensor, " D"]:
        """The standard deviation of each channel; a constant channel gets 1."""
        std = (self.sum_of_squares / self.count).sqrt().float()
        return torch.where(std > MIN_STD, std, torch.ones_like(std))
