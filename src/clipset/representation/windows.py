"""Windows of long videos: the clips of each window are a set."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from clipset.errors import StoreError
from clipset.features.ledger import Kind
from clipset.features.store import FeatureStore
from clipset.sets.batch import ClipBatch
from clipset.sets.reading import ModelInput, make_clips, read_features


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a video (window None: all of it) and the rows of the clips centred in it."""

    video: int
    start: float
    end: float
    window: int | None = None
    rows: tuple[int, ...] = ()


def cut_windows(store: FeatureStore, kind: Kind, window: float) -> list[Span]:
    """Each whole video, followed by its windows with clips if it is longer than one."""
    if not window > 0:
        raise StoreError(f"a window must be longer than 0 s, got {window}")
    table = store.table(kind)
    spans = []
    for index, entry in enumerate(store.entries):
        rows = table.first[index] + np.arange(table.count[index])
        spans.append(Span(index, 0.0, entry.duration, None, tuple(rows.tolist())))
        count = math.ceil(entry.duration / window)
        middles = table.boxes[rows, :2].astype(np.float64).mean(axis=1)
        windows = np.clip(middles // window, 0, max(count - 1, 0)).astype(np.int64)
        for number in np.unique(windows) if count > 1 else ():
            low, high = number * window, min((number + 1) * window, entry.duration)
            inside = tuple(rows[windows == number].tolist())
            spans.append(Span(index, low, high, int(number), inside))
    return spans


def read_spans(
    store: FeatureStore, model: ModelInput | None, spans: list[Span], kind: Kind
) -> ClipBatch:
    """The clips of spans with equally many clips; for the model each span is a video."""
    rows = np.array([span.rows for span in spans])  # (N, V)
    ids = [store.ids[span.video] for span in spans]
    features = read_features(store, kind, rows, ids)
    starts = np.array([span.start for span in spans], dtype=np.float32)
    lengths = np.array([span.end for span in spans], dtype=np.float32) - starts
    boxes = store.table(kind).boxes[rows].astype(np.float32)  # (N, V, 7)
    times = boxes[..., :2] - starts[:, None, None]
    boxes[..., :2] = np.clip(times, 0, lengths[:, None, None])
    return make_clips(features, boxes, lengths, model)
