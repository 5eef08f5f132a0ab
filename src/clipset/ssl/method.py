"""What the methods share: an encoder that is trained, and how many views of a video a step takes.

Pure PyTorch: modules take and return tensors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from jaxtyping import Float
from torch import Tensor, nn

from clipset.networks.video_transformers import VideoMAE


class SelfSupervisedMethod(nn.Module, ABC):
    """An encoder and what is needed to train it; the encoder alone is the backbone."""

    encoder: VideoMAE
    num_views: int = 1

    @abstractmethod
    def forward(self, views: Float[Tensor, "V B T 3 H W"]) -> Float[Tensor, ""]:
        """The loss of a batch, from normalised views of its videos."""

    def update_teacher(self, progress: float) -> None:
        """After each step; `progress` is the finished fraction of the training."""


def init_weights(module: nn.Module) -> None:
    """Linear layers as in VideoMAE and MoCo v3: Xavier, uniform, without bias at first."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
