"""Reading clips from a store as a model takes them: float32 features and box coordinates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from clipset.errors import StoreError
from clipset.features.ledger import Kind
from clipset.features.store import FeatureStore, repair_hint
from clipset.sets.batch import ClipBatch

BoxCoordinates = Literal["paper", "official"]


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
    coordinates: BoxCoordinates = "paper" if model is None else model.box_coordinates
    clip_features = torch.from_numpy(features)
    clip_boxes = torch.from_numpy(model_boxes(boxes, durations, coordinates))
    if valid is None:
        return ClipBatch(clip_features, clip_boxes)
    valid_mask = torch.from_numpy(valid)
    clip_boxes[~valid_mask] = 0.0
    return ClipBatch(torch.where(valid_mask[..., None], clip_features, 0.0), clip_boxes, valid_mask)


def read_features(
    store: FeatureStore, kind: Kind, row_indices: Int[np.ndarray, "N V"], video_ids: Sequence[str]
) -> Float[np.ndarray, "N V D"]:
    """Some rows of a table as float32; an error names the video with non-finite features."""
    features: Float[np.ndarray, "N V D"]
    features = store.table(kind).features[row_indices].astype(np.float32)
    if not np.isfinite(features).all():
        video_index = int((~np.isfinite(features)).any(axis=(1, 2)).argmax())
        raise StoreError(
            f"the features of {video_ids[video_index]!r} are not finite numbers; "
            f"{repair_hint(store.folder)}"
        )
    return features


def model_boxes(
    boxes: Float[np.ndarray, "B V 7"],
    durations: Float[np.ndarray, " B"],
    coordinates: BoxCoordinates,
) -> Float[np.ndarray, "B V X"]:
    """Stored boxes in the coordinates of a model (`ModelConfig.box_coordinates`)."""
    return official_boxes(boxes) if coordinates == "official" else paper_boxes(boxes, durations)


def paper_boxes(
    boxes: Float[np.ndarray, "B V 7"], durations: Float[np.ndarray, " B"]
) -> Float[np.ndarray, "B V 6"]:
    """Equation 5: start and end of a clip in x, y and t, relative to the video's size.

    The paper's X runs along the height and Y along the width, so the order is top, left, start,
    bottom, right, end. They do not include the flip.
    """
    start, end, top, left, bottom, right, _ = np.moveaxis(boxes.astype(np.float32), -1, 0)
    video_length = np.maximum(durations.astype(np.float32), 1e-6)[:, None]  # (B, 1)
    return np.stack([top, left, start / video_length, bottom, right, end / video_length], axis=-1)


def official_boxes(boxes: Float[np.ndarray, "B V 7"]) -> Float[np.ndarray, "B V 7"]:
    """Boxes relative to the extent of all V clips of their video, as in the published code.

    The order is flip (1 or -1), top, left, bottom, right, start, end. On each axis the smallest
    start becomes 0 and the largest end 1, so the unit of the stored boxes does not matter.
    """
    boxes = boxes.astype(np.float32)
    low, high = boxes[..., [2, 3, 0]], boxes[..., [4, 5, 1]]  # top, left, start; bottom, right, end
    first_edge = low.min(axis=1, keepdims=True)  # (B, 1, 3)
    extent = np.maximum(high.max(axis=1, keepdims=True) - first_edge, np.float32(1e-9))
    low, high = (low - first_edge) / extent, (high - first_edge) / extent
    flips = np.where(boxes[..., 6:] > 0, np.float32(1), np.float32(-1))
    columns = [flips, low[..., :2], high[..., :2], low[..., 2:], high[..., 2:]]
    return np.concatenate(columns, axis=-1)
