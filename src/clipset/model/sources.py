"""Clips of several backbones in one set: each backbone has layers of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


class BySource(nn.Module):
    """One network for each backbone, applied to the channels that its features have."""

    def __init__(self, dims: Sequence[int], out: int, networks: Iterable[nn.Module]) -> None:
        super().__init__()
        self.out_features = out
        self.dims = tuple(dims)
        self.networks = nn.ModuleList(networks)

    @property
    def in_features(self) -> int:
        """Channels of the features that come in: those of the widest backbone."""
        return max(self.dims)

    def forward(
        self, features: Float[Tensor, "*B D"], sources: Int[Tensor, "*B"]
    ) -> Float[Tensor, "*B P"]:
        rows, source = features.flatten(0, -2), sources.flatten()  # (N, D), (N,)
        places = [(source == number).nonzero().squeeze(1) for number in range(len(self.dims))]
        parts = [
            network(rows[place, :dim])
            for network, dim, place in zip(self.networks, self.dims, places, strict=True)
        ]
        order = torch.cat(places).argsort()
        found: Tensor = torch.cat(parts)[order]
        return found.view(*sources.shape, self.out_features)


def apply_source(
    network: nn.Module, features: Float[Tensor, "*B D"], sources: Int[Tensor, "*B"] | None
) -> Float[Tensor, "*B P"]:
    """A network of one backbone, or of several, on features."""
    if isinstance(network, BySource):
        if sources is None:
            sources = torch.zeros(features.shape[:-1], dtype=torch.int64, device=features.device)
        return network(features, sources)  # type: ignore[no-any-return]
    return network(features)  # type: ignore[no-any-return]
