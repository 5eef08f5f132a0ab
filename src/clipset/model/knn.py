"""k nearest neighbours by cosine similarity, weighted by exp(cosine / temperature)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

BLOCK_NUMBERS = 2**25  # of vectors compared at once, which bounds the memory


def knn_probabilities(
    train: Float[Tensor, "N R"],
    labels: Int[Tensor, " N"],
    queries: Float[Tensor, "M R"],
    *,
    num_classes: int,
    k: int = 20,
    temperature: float = 0.07,
) -> Float[Tensor, "M C"]:
    """The weights of the k nearest training vectors, summed for each class."""
    neighbours, weights = nearest_neighbours(train, queries, k=k, temperature=temperature)
    votes = torch.zeros(len(queries), num_classes, dtype=weights.dtype)
    return votes.scatter_add_(1, labels[neighbours], weights)


def knn_regression(
    train: Float[Tensor, "N R"],
    targets: Float[Tensor, " N"],
    queries: Float[Tensor, "M R"],
    *,
    k: int = 20,
    temperature: float = 0.07,
) -> Float[Tensor, "M 1"]:
    """The weighted mean of the targets of the k nearest training vectors."""
    neighbours, weights = nearest_neighbours(train, queries, k=k, temperature=temperature)
    return (targets[neighbours] * weights).sum(dim=1, keepdim=True)


def nearest_neighbours(
    train: Float[Tensor, "N R"], queries: Float[Tensor, "M R"], *, k: int, temperature: float
) -> tuple[Int[Tensor, "M K"], Float[Tensor, "M K"]]:
    """Indices of the k nearest training vectors of each query, and their softmax weights."""
    indices, cosines = most_similar(train, queries, k=k)
    return indices, torch.softmax(cosines / temperature, dim=1)


def most_similar(
    vectors: Float[Tensor, "N R"], queries: Float[Tensor, "M R"], *, k: int
) -> tuple[Int[Tensor, "M K"], Float[Tensor, "M K"]]:
    """Indices of the k vectors with the largest cosine to each query, and the cosines."""
    queries = F.normalize(queries, dim=1)
    indices, cosines = [], []
    block_size = max(k, BLOCK_NUMBERS // vectors.shape[1])
    for start in range(0, len(vectors), block_size):
        block = F.normalize(vectors[start : start + block_size].float(), dim=1)
        nearest = (queries @ block.T).topk(min(k, len(block)), dim=1)  # (M, k)
        indices.append(nearest.indices + start)
        cosines.append(nearest.values)
    if len(indices) == 1:
        return indices[0], cosines[0]
    best = torch.cat(cosines, dim=1).topk(min(k, len(vectors)), dim=1)
    return torch.cat(indices, dim=1).gather(1, best.indices), best.values
