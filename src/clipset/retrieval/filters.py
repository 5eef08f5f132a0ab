"""Which videos of a collection a search may return, by columns of its catalog."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import shorten

import numpy as np
from jaxtyping import Bool

from clipset.config import near_names
from clipset.data.catalog import COLUMN_NAMES, Video
from clipset.errors import SearchError
from clipset.features.store import FeatureStore

AllowedValues = Mapping[str, Sequence[str | None]]
OWN_COLUMNS = tuple(name for name in COLUMN_NAMES if name != "path")


def allowed_videos(store: FeatureStore, allowed: AllowedValues) -> Bool[np.ndarray, " N"]:
    """Which videos have one of the allowed values in each of the columns; at least one has.

    None allows videos without a value.
    """
    column_names = (*OWN_COLUMNS, *store.catalog.columns)
    if unknown := [name for name in allowed if name not in column_names]:
        raise SearchError(
            f"the catalog has no column {unknown[0]!r}; {near_names(unknown[0], column_names)}"
        )
    by_id = {video.id: video for video in store.catalog}
    videos = [by_id[video_id] for video_id in store.ids]
    mask = np.ones(len(store), np.bool_)
    for name, values in allowed.items():
        mask &= np.array([column_value(video, name) in values for video in videos])
    if not mask.any():
        conditions = [
            f"{name} {' or '.join('none' if v is None else repr(v) for v in values)}"
            for name, values in allowed.items()
        ]
        hint = _similar_values(videos, allowed)
        raise SearchError(f"no video has {' and '.join(conditions)}{hint}")
    return mask


def _similar_values(videos: list[Video], allowed: AllowedValues) -> str:
    """Values of a column that are similar to one that does not exist."""
    for name, values in allowed.items():
        known = {value for v in videos if (value := column_value(v, name)) is not None}
        for value in values:
            if value is not None and value not in known:
                return f"; {shorten(near_names(value, known), 300, placeholder=' …')}"
    return ""


def column_value(video: Video, name: str) -> str | None:
    """The value of a column of the catalog as text; None if the video has none."""
    if name not in OWN_COLUMNS:
        return dict(video.columns).get(name)
    value = getattr(video, name)
    return f"{value:g}" if isinstance(value, float) else value
