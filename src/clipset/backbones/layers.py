"""More from one pass: the features of several depths, and of several parts of a clip's time.

A layer's feature is pooled from what leaves that block, before any last norm, in the way in which
the network pools its last output. A network that can do this is a `Parted`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clipset.backbones.registry import BackboneSpec
from clipset.errors import BackboneError


class Parted(nn.Module):
    """A network that can also tell what its layers say, or what it sees when."""

    @property
    def depth(self) -> int:
        """How many layers can be asked for; 0 if only the last output can."""
        return 0

    def steps(self, frames: int) -> int:
        """How many places in time are left of so many frames; 1 if they cannot be told apart."""
        return frames

    def parts(
        self, clips: Float[Tensor, "B T 3 S S"], layers: tuple[int, ...], bins: int
    ) -> Float[Tensor, "B L N D"]:
        """The features of some layers (none: the usual output) in each time bin."""
        if layers:
            raise BackboneError(f"{type(self).__name__} gives its last output only, no layers")
        return self.binned(clips, bins)[:, None]

    def binned(self, clips: Float[Tensor, "B T 3 S S"], bins: int) -> Float[Tensor, "B N D"]:
        """The usual output in each time bin: what a network without layers defines."""
        raise NotImplementedError


class InParts(nn.Module):
    """A network that gives the parts of its feature side by side."""

    def __init__(self, network: Parted, layers: tuple[int, ...], bins: int) -> None:
        super().__init__()
        self.network, self.layers, self.bins = network, layers, bins

    def forward(self, clips: Float[Tensor, "B T 3 S S"]) -> Float[Tensor, "B E"]:
        return self.network.parts(clips, self.layers, self.bins).flatten(1)


def with_parts(
    spec: BackboneSpec, network: nn.Module, layers: tuple[int, ...], bins: int
) -> tuple[BackboneSpec, nn.Module]:
    """The spec and the network for these layers and time bins; an error says what there is."""
    if not isinstance(network, Parted):
        raise BackboneError(f"{spec.name} gives its last output only, no layers and no time bins")
    _check_layers(spec.name, layers, network.depth)
    steps = network.steps(spec.frames)
    if bins > 1 and steps == 1:
        raise BackboneError(
            f"{spec.name} gives one feature for all {spec.frames} frames, no time bins"
        )
    if not 1 <= bins <= steps:
        raise BackboneError(
            f"{spec.name} tells {steps} places in time apart in {spec.frames} frames: "
            f"time_bins must be 1 to {steps}, got {bins}"
        )
    dim = spec.dim * max(len(layers), 1) * bins
    spec = replace(spec, layers=layers, time_bins=bins, dim=dim)
    return spec, InParts(network, layers, bins).eval().requires_grad_(False)


def _check_layers(name: str, layers: tuple[int, ...], depth: int) -> None:
    if layers and depth == 0:
        raise BackboneError(f"{name} gives its last output only, no layers; time bins it can do")
    if any(not 0 <= layer < depth for layer in layers):
        raise BackboneError(f"{name} has the layers 0 to {depth - 1}, got {layers}")
    if list(layers) != sorted(set(layers)):
        raise BackboneError(f"layers must be different ones, the lowest first, got {layers}")


def outputs_of(
    blocks: nn.ModuleList, layers: Sequence[int], run: Callable[[], object]
) -> list[Any]:
    """What leaves some of the blocks while a network runs."""
    found: dict[int, Any] = {}

    def keep(number: int) -> Callable[..., None]:
        def hook(_module: nn.Module, _given: object, output: object) -> None:
            found[number] = output

        return hook

    hooks = [blocks[number].register_forward_hook(keep(number)) for number in layers]
    try:
        run()
    finally:
        for each in hooks:
            each.remove()
    return [found[number] for number in layers]


def bin_means(values: Float[Tensor, "B T *M D"], bins: int) -> Float[Tensor, "B N D"]:
    """The mean over each of `bins` parts of the second axis, and over all axes but the last.

    Where the bins do not divide the steps, neighbours share one, as in adaptive average pooling.
    """
    steps = int(values.shape[1])
    edges = [(n * steps // bins, -(-(n + 1) * steps // bins)) for n in range(bins)]
    axes = tuple(range(1, values.ndim - 1))
    return torch.stack([values[:, low:high].mean(dim=axes) for low, high in edges], dim=1)
