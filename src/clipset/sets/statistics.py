"""Mean and standard deviation of each feature channel: of one tensor, or of chunks."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

MIN_STD = 1e-6  # channels with less are constant


def feature_statistics(
    features: Float[Tensor, "*N D"], *, constant_std: float = 1.0
) -> tuple[Float[Tensor, " D"], Float[Tensor, " D"]]:
    """Mean and standard deviation of each channel; a constant channel gets `constant_std`."""
    std, mean = torch.std_mean(features.flatten(0, -2), dim=0, correction=0)
    return mean, torch.where(std > MIN_STD, std, torch.full_like(std, constant_std))


class RunningStatistics:
    """Mean and standard deviation of each channel over chunks, in double precision."""

    def __init__(self) -> None:
        self.count = 0
        self.sum, self.sum_of_squares = torch.zeros(()), torch.zeros(())  # squares of deviations

    def update(self, features: Float[Tensor, "M D"]) -> None:
        """Add a chunk of features."""
        variance, mean = torch.var_mean(features.double(), dim=0, correction=0)
        size, total = len(features), self.count + len(features)
        if not self.count:
            self.sum, self.sum_of_squares = mean * size, variance * size
        else:
            delta = mean - self.sum / self.count
            between = delta**2 * (self.count * size / total)
            self.sum_of_squares = self.sum_of_squares + variance * size + between
            self.sum = self.sum + mean * size
        self.count = total

    @property
    def mean(self) -> Float[Tensor, " D"]:
        """The mean of each channel."""
        return (self.sum / self.count).float()

    @property
    def std(self) -> Float[Tensor, " D"]:
        """The standard deviation of each channel; a constant channel gets 1."""
        std = (self.sum_of_squares / self.count).sqrt().float()
        return torch.where(std > MIN_STD, std, torch.ones_like(std))
