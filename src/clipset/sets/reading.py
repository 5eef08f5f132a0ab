"""Reading clips from a store as a model takes them: float32 features and box coordinates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from clipset.errors import StoreError
from clipset.features.ledger import Kind
from clipset.features.store import FeatureStore
from clipset.sets.batch import ClipBatch
from clipset.sets.box_coordinates import BoxCoordinates, model_boxes


@runtime_checkable
class ModelInput(Protocol):
    """The box coordinates that a model takes: a property of ModelConfig and SetEncoder."""

    @property
    def box_coordinates(self) -> BoxCoordinates: ...


def read_clips(
    store: FeatureStore,
    kind: Kind,
    videos: Int[np.ndarray, " N"],
    model: ModelInput | None = None,
) -> ClipBatch:
    """The clips of some videos of a store, by their indices; by default with the paper's boxes."""
    table = store.table(kind)
    rows = table.row_indices(videos)  # (N, V); -1 for padding
    valid = rows >= 0 if (rows < 0).any() else None
    rows = np.where(rows < 0, rows[:, :1], rows)  # padding must not widen the extent of the clips
    features = read_features(store, kind, rows, [store.ids[video] for video in videos])
    return make_clips(features, table.boxes[rows], store.durations[videos], model, valid)


def make_clips(
    features: Float[np.ndarray, "N V D"],
    boxes: Float[np.ndarray, "N V 7"],
    durations: Float[np.ndarray, " N"],
    model: ModelInput | None = None,
    valid: Bool[np.ndarray, "N V"] | None = None,
) -> ClipBatch:
    """Stored features and boxes as a model takes them; padding becomes zero."""
    coordinates = "paper" if model is None else model.box_coordinates
    clip_features = torch.from_numpy(features)
    clip_boxes = torch.from_numpy(model_boxes(boxes, durations, coordinates))
    if valid is None:
        return ClipBatch(clip_features, clip_boxes)
    mask = torch.from_numpy(valid)
    clip_boxes[~mask] = 0.0
    return ClipBatch(torch.where(mask[..., None], clip_features, 0.0), clip_boxes, mask)


def read_features(
    store: FeatureStore, kind: Kind, rows: Int[np.ndarray, "N V"], video_ids: Sequence[str]
) -> Float[np.ndarray, "N V D"]:
    """Some rows of a table as float32; an error names the video with non-finite features."""
    features: Float[np.ndarray, "N V D"]
    features = store.table(kind).features[rows].astype(np.float32)
    if not np.isfinite(features).all():
        index = int((~np.isfinite(features)).any(axis=(1, 2)).argmax())
        raise StoreError(f"the features of {video_ids[index]!r} are not finite numbers")
    return features
