"""A linear classifier that is solved, not trained: ridge, also for long vectors."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from clipset.evaluation.selection import Score, score
from clipset.evaluation.stacks import Weights

Wanted = Int[Tensor, " N"] | Float[Tensor, " N"]
PENALTIES = (1e-2, 1e-1, 1.0, 10.0, 100.0)  # to search
SHARPNESS = (1.0, 3.0, 10.0, 30.0)  # what ridge scores are multiplied by before the softmax


def standardise(
    train: Float[Tensor, "N R"], *others: Float[Tensor, "M R"]
) -> tuple[Float[Tensor, "_ R"], ...]:
    """Each channel centred and scaled by the training videos, all of them together of length 1."""
    mean, scale = middle_and_scale(train)
    return tuple((each - mean) / scale for each in (train, *others))


def middle_and_scale(
    train: Float[Tensor, "N R"],
) -> tuple[Float[Tensor, " R"], Float[Tensor, " R"]]:
    """What is subtracted from each channel, and what it is divided by."""
    std, mean = torch.std_mean(train, dim=0, correction=0)
    scale = torch.where(std > 1e-6, std, torch.full_like(std, torch.inf))
    return mean, scale * train.shape[1] ** 0.5


class Ridge:
    """Ridge regression on classes (one against the others) or numbers, for several penalties.

    The matrix that is solved has as many rows as there are videos or channels, whichever is less.
    A penalty of 1 is the mean of that matrix's eigenvalues.
    """

    def __init__(self, train: Float[Tensor, "N R"], wanted: Wanted, outputs: int) -> None:
        numbers = wanted.is_floating_point()
        goals = wanted[:, None] if numbers else F.one_hot(wanted, outputs)
        self.middle = goals.double().mean(dim=0)
        self.goals = goals.double() - self.middle  # (N, C)
        self.train, self.dual = train, train.shape[1] > train.shape[0]
        self.square = (train @ train.T if self.dual else train.T @ train).double()
        self.numbers = numbers

    def fit(self, penalty: float) -> Float[Tensor, "R C"]:
        """The weights of one penalty."""
        middle = self.square.diagonal().mean().clamp_min(1e-12)
        system = self.square.clone()
        system.diagonal().add_(penalty * middle)
        factor = torch.linalg.cholesky(system)
        if self.dual:
            return self.train.T @ torch.cholesky_solve(self.goals, factor).float()
        return torch.cholesky_solve((self.train.T @ self.goals.float()).double(), factor).float()

    def scores(
        self, weight: Float[Tensor, "R C"], queries: Float[Tensor, "M R"]
    ) -> Float[Tensor, "M C"]:
        """What the classifier says, class by class."""
        return queries @ weight + self.middle.float()

    def predict(
        self, weight: Float[Tensor, "R C"], queries: Float[Tensor, "M R"], sharpness: float
    ) -> Float[Tensor, "M C"]:
        """Numbers, or scores as probabilities."""
        found = self.scores(weight, queries)
        return found if self.numbers else (sharpness * found).softmax(dim=1)


def choose_ridge(
    learn: Float[Tensor, "A R"],
    wanted: Int[Tensor, " A"] | Float[Tensor, " A"],
    check: Float[Tensor, "B R"],
    truth: Int[Tensor, " B"] | Float[Tensor, " B"],
    *,
    outputs: int,
    penalties: tuple[float, ...],
) -> tuple[float, float]:
    """The penalty and sharpness that do best on the videos set aside."""
    learn, check = standardise(learn, check)
    solver = Ridge(learn, wanted, outputs)
    ranked: list[tuple[Score, float, float]] = []
    for penalty in penalties:
        weight = solver.fit(penalty)
        for sharpness in SHARPNESS:
            found = solver.predict(weight, check, sharpness)
            ranked.append((score(found, truth), penalty, sharpness))
    _, penalty, sharpness = max(ranked)
    return penalty, sharpness


def solve_ridge(
    train: Float[Tensor, "N R"], wanted: Wanted, *, outputs: int, penalty: float, sharpness: float
) -> Weights:
    """Learn from all training videos: a linear layer behind their mean and scale."""
    mean, scale = middle_and_scale(train)
    solver = Ridge((train - mean) / scale, wanted, outputs)
    weight, bias = solver.fit(penalty), solver.middle.float()
    if not solver.numbers:
        weight, bias = sharpness * weight, sharpness * bias
    return {"mean": mean, "scale": scale, "weight": weight, "bias": bias}
