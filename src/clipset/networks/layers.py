"""Features of several layers in one forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn


class LayeredNetwork(nn.Module):
    """A network whose blocks' outputs can be pooled to features, too; no blocks: only its own."""

    blocks: nn.ModuleList

    def pool_block(self, output: Any) -> Float[Tensor, "N D"]:
        """A feature of each clip or frame from the output of a block, before any last norm.

        By default the mean of all tokens; pooled as the network pools its last output.
        """
        return output.mean(dim=1)  # type: ignore[no-any-return]

    def layer_features(
        self, clips: Float[Tensor, "B T 3 H W"], layers: Sequence[int]
    ) -> Float[Tensor, "B L D"]:
        """The pooled outputs of some blocks, averaged over the frames of a clip."""
        outputs: dict[int, Any] = {}

        def record(layer: int) -> Any:
            return lambda _module, _inputs, output: outputs.update({layer: output})

        hooks = [self.blocks[layer].register_forward_hook(record(layer)) for layer in layers]
        try:
            self(clips)
        finally:
            for hook in hooks:
                hook.remove()
        features = [self.pool_block(outputs[layer]) for layer in layers]
        by_clip = [feature.unflatten(0, (len(clips), -1)) for feature in features]  # (B, 1 or T, D)
        return torch.stack([feature.mean(dim=1) for feature in by_clip], dim=1)


class SelectedLayers(nn.Module):
    """The features of some layers of a network, side by side."""

    def __init__(self, network: LayeredNetwork, layers: tuple[int, ...]) -> None:
        super().__init__()
        self.network, self.layers = network, layers

    def forward(self, clips: Float[Tensor, "B T 3 H W"]) -> Float[Tensor, "B E"]:
        return self.network.layer_features(clips, self.layers).flatten(1)
