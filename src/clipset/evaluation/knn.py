"""k nearest neighbours: nothing is trained, so nothing is chosen."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor


def knn_probabilities(
    train: Float[Tensor, "N R"],
    classes: Int[Tensor, " N"],
    queries: Float[Tensor, "M R"],
    *,
    class_count: int,
    k: int = 20,
    temperature: float = 0.07,
) -> Float[Tensor, "M C"]:
    """Let the k nearest training videos vote, each by exp(cosine / temperature)."""
    nearest, weights = neighbours(train, queries, k=k, temperature=temperature)
    votes = torch.zeros(len(queries), class_count, dtype=weights.dtype)
    return votes.scatter_add_(1, classes[nearest], weights)


def knn_numbers(
    train: Float[Tensor, "N R"],
    targets: Float[Tensor, " N"],
    queries: Float[Tensor, "M R"],
    *,
    k: int = 20,
    temperature: float = 0.07,
) -> Float[Tensor, "M 1"]:
    """The mean of the k nearest training videos' numbers, with the same weights."""
    nearest, weights = neighbours(train, queries, k=k, temperature=temperature)
    return (targets[nearest] * weights).sum(dim=1, keepdim=True)


def neighbours(
    train: Float[Tensor, "N R"], queries: Float[Tensor, "M R"], *, k: int, temperature: float
) -> tuple[Int[Tensor, "M K"], Float[Tensor, "M K"]]:
    """The k nearest training videos of each query by the cosine, and their shares of the vote."""
    similar = F.normalize(queries, dim=1) @ F.normalize(train, dim=1).T  # (M, N)
    nearness, nearest = similar.topk(min(k, len(train)), dim=1)  # (M, k)
    return nearest, torch.softmax(nearness / temperature, dim=1)
