"""The clips of some videos as tensors: what every later stage takes from a store."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from clipset.errors import StoreError
from clipset.features.ledger import Kind
from clipset.features.store import FeatureStore
from clipset.sets.boxes import paper_boxes


@dataclass(frozen=True, slots=True)
class VideoClips:
    """All clips of one kind of N videos, in memory, ready for the model."""

    features: Float[Tensor, "N V D"]
    boxes: Float[Tensor, "N V X"]

    def __len__(self) -> int:
        return len(self.features)

    def of(self, videos: Int[Tensor, " B"]) -> VideoClips:
        """The clips of some of the videos."""
        return VideoClips(self.features[videos], self.boxes[videos])

    def to(self, device: torch.device) -> VideoClips:
        """The same clips on another device."""
        return VideoClips(self.features.to(device), self.boxes.to(device))


def read_clips(store: FeatureStore, kind: Kind, videos: Int[np.ndarray, " N"]) -> VideoClips:
    """Read the clips of some videos of a store (by their place in it) as float32."""
    table = store.random if kind == "random" else store.regular
    rows = table.of(videos)  # (N, V)
    features = torch.from_numpy(table.features[rows].astype(np.float32))  # (N, V, D)
    if not bool(torch.isfinite(features).all()):
        bad = int((~torch.isfinite(features)).flatten(1).any(dim=1).nonzero()[0])
        raise StoreError(f"the features of {store.ids[videos[bad]]!r} are not finite numbers")
    boxes = paper_boxes(table.boxes[rows], store.durations[videos])  # (N, V, 6)
    return VideoClips(features, torch.from_numpy(boxes))


def feature_statistics(
    features: Float[Tensor, "N V D"],
) -> tuple[Float[Tensor, " D"], Float[Tensor, " D"]]:
    """Mean and deviation of each channel over all clips; a channel that never changes gets 1."""
    std, mean = torch.std_mean(features.flatten(0, 1), dim=0, correction=0)
    return mean, torch.where(std > 1e-6, std, torch.ones_like(std))
