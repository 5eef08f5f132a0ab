"""The clips of some videos as tensors: what every later stage takes from a store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from clipset.errors import StoreError
from clipset.features.ledger import Kind
from clipset.features.store import FeatureStore
from clipset.sets.boxes import model_boxes


@dataclass(frozen=True, slots=True)
class VideoClips:
    """All clips of one kind of N videos, in memory, ready for the model.

    `sources` numbers the backbones that features come from, where there are several; `present`
    tells clips from filler, where videos have different numbers of them.
    """

    features: Float[Tensor, "N V D"]
    boxes: Float[Tensor, "N V X"]
    sources: Int[Tensor, "N V"] | None = None
    present: Bool[Tensor, "N V"] | None = None

    def __len__(self) -> int:
        return len(self.features)

    def of(self, videos: Int[Tensor, " B"]) -> VideoClips:
        """The clips of some of the videos."""
        return self._each(lambda part: part[videos])

    def to(self, device: torch.device) -> VideoClips:
        """The same clips on another device."""
        return self._each(lambda part: part.to(device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> VideoClips:
        return VideoClips(
            change(self.features),
            change(self.boxes),
            None if self.sources is None else change(self.sources),
            None if self.present is None else change(self.present),
        )


def read_clips(
    store: FeatureStore,
    kind: Kind,
    videos: Int[np.ndarray, " N"],
    *,
    boxes: Literal["paper", "official"] = "paper",
    box_numbers: int = 6,
) -> VideoClips:
    """Read the clips of some videos of a store (by their place in it) as float32.

    `boxes` and `box_numbers` are those of the model that will see the clips.
    """
    table = store.random if kind == "random" else store.regular
    rows = table.of(videos)  # (N, V)
    features = torch.from_numpy(table.features[rows].astype(np.float32))  # (N, V, D)
    if not bool(torch.isfinite(features).all()):
        bad = int((~torch.isfinite(features)).flatten(1).any(dim=1).nonzero()[0])
        raise StoreError(f"the features of {store.ids[videos[bad]]!r} are not finite numbers")
    where = model_boxes(table.boxes[rows], store.durations[videos], boxes, box_numbers)  # (N, V, X)
    return VideoClips(features, torch.from_numpy(where))


def feature_statistics(
    features: Float[Tensor, "N V D"],
) -> tuple[Float[Tensor, " D"], Float[Tensor, " D"]]:
    """Mean and deviation of each channel over all clips; a channel that never changes gets 1."""
    std, mean = torch.std_mean(features.flatten(0, 1), dim=0, correction=0)
    return mean, torch.where(std > 1e-6, std, torch.ones_like(std))
