"""VideoFilter: which videos of a collection a search may return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from textwrap import shorten

import numpy as np
from jaxtyping import Bool

from clipset.config import near_names
from clipset.data.catalog import COLUMN_NAMES, Video
from clipset.errors import SearchError
from clipset.features.store import FeatureStore

Values = tuple[str | None, ...]
OWN_COLUMNS = tuple(name for name in COLUMN_NAMES if name != "path")


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoFilter:
    """The allowed values of some columns of the catalog; None allows videos without a value.

    A video must have one of the values in each of the columns.
    """

    labels: Values = ()
    splits: Values = ()
    columns: Mapping[str, Values] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether all videos are allowed."""
        return not (self.labels or self.splits or self.columns)

    def mask(self, store: FeatureStore) -> Bool[np.ndarray, " N"]:
        """Which videos of a store are allowed; an error if there are none."""
        by_column = {"label": self.labels, "split": self.splits}
        requested = [(name, values) for name, values in by_column.items() if values]
        requested += self.columns.items()
        for name, _ in requested:
            if name not in (*OWN_COLUMNS, *store.catalog.columns):
                raise SearchError(
                    f"the catalog has no column {name!r}; "
                    f"{near_names(name, (*OWN_COLUMNS, *store.catalog.columns))}"
                )
        videos_by_id = {video.id: video for video in store.catalog}
        videos = [videos_by_id[video_id] for video_id in store.ids]
        allowed = np.ones(len(store), np.bool_)
        for name, values in requested:
            allowed &= np.array([column_value(video, name) in values for video in videos])
        if not allowed.any():
            conditions = [
                f"{name} {' or '.join('none' if v is None else repr(v) for v in values)}"
                for name, values in requested
            ]
            hint = self._hint(videos, requested)
            raise SearchError(f"no video has {' and '.join(conditions)}{hint}")
        return allowed

    def _hint(self, videos: list[Video], requested: list[tuple[str, Values]]) -> str:
        """Similar values of a column, if one does not exist."""
        for name, values in requested:
            known = {value for v in videos if (value := column_value(v, name)) is not None}
            unknown = [value for value in values if value is not None and value not in known]
            if unknown:
                return f"; {shorten(near_names(unknown[0], known), 300, placeholder=' …')}"
        return ""


def column_value(video: Video, name: str) -> str | None:
    """The value of a column of the catalog as text; None if the video has none."""
    if name not in OWN_COLUMNS:
        return dict(video.columns).get(name)
    value = getattr(video, name)
    return f"{value:g}" if isinstance(value, float) else value
