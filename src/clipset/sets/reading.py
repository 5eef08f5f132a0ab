"""Reading clips as a model takes them: float32 features, with the boxes that it was made for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from clipset.errors import StoreError
from clipset.features.ledger import Kind
from clipset.features.store import FeatureStore
from clipset.sets.batch import ClipBatch
from clipset.sets.box_coordinates import BoxCoordinates, model_boxes

Rows = Int[np.ndarray, "N V"]
Read = Callable[[Kind, Int[np.ndarray, " N"]], ClipBatch]  # the clips of some videos of a store


@runtime_checkable
class ModelInput(Protocol):
    """What a model takes as boxes; a ModelConfig says so, and so does a SetEncoder."""

    @property
    def box_coordinates(self) -> BoxCoordinates:
        """What boxes are relative to."""


def clips_for(
    model: ModelInput | None,
    features: Float[np.ndarray, "N V D"],
    boxes: Float[np.ndarray, "N V 7"],
    durations: Float[np.ndarray, " N"],
    valid: Bool[np.ndarray, "N V"] | None = None,
) -> ClipBatch:
    """Stored features and boxes as a model takes them; without one, with the paper's boxes."""
    rows = torch.from_numpy(features)
    where = torch.from_numpy(
        model_boxes(boxes, durations, model.box_coordinates if model else "paper")
    )
    if valid is None:
        return ClipBatch(rows, where)
    there = torch.from_numpy(valid)
    where[~there] = 0.0
    return ClipBatch(torch.where(there[..., None], rows, 0.0), where, there)


def reader_for(store: FeatureStore, model: ModelInput | None = None) -> Read:
    """What gives the clips of some videos of a store, by their place in it, to a model."""
    return lambda kind, videos: read_clips(store, kind, videos, model)


def read_clips(
    store: FeatureStore,
    kind: Kind,
    videos: Int[np.ndarray, " N"],
    model: ModelInput | None = None,
) -> ClipBatch:
    """Read the clips of some videos of a store (by their place in it) as float32."""
    table = store.table(kind)
    rows = table.of(videos)  # (N, V)
    valid = rows >= 0 if (rows < 0).any() else None
    stands = np.where(rows < 0, rows[:, :1], rows)  # filler must not widen the clips' extent
    ids = [store.ids[video] for video in videos]
    features = read_rows(store, kind, stands, ids)
    return clips_for(model, features, table.boxes[stands], store.durations[videos], valid)


def read_rows(
    store: FeatureStore, kind: Kind, rows: Rows, ids: Sequence[str]
) -> Float[np.ndarray, "N V D"]:
    """Some rows as float32; an error names the video that they are of."""
    features: Float[np.ndarray, "N V D"]
    features = store.table(kind).features[rows].astype(np.float32)
    if not np.isfinite(features).all():
        bad = int((~np.isfinite(features)).any(axis=(1, 2)).argmax())
        raise StoreError(f"the features of {ids[bad]!r} are not finite numbers")
    return features
