"""Filters allow the videos with the requested values, and an empty result is an error."""

from __future__ import annotations

import numpy as np
import pytest

from clipset.errors import SearchError
from clipset.retrieval import SearchIndex, VideoFilter


def test_filters_are_loops_over_the_catalog(index: SearchIndex) -> None:
    store = index.store
    videos = {video.id: video for video in store.catalog}
    every = [videos[video_id] for video_id in store.ids]
    cases = [
        (VideoFilter(), lambda v: bool(v.id)),
        (VideoFilter(labels=("run", "swim")), lambda v: v.label in ("run", "swim")),
        (
            VideoFilter(labels=("run",), splits=("test",)),
            lambda v: v.label == "run" and v.split == "test",
        ),
        (
            VideoFilter(columns={"group": ("camera 1",), "day": (None,)}),
            lambda v: v.group == "camera 1" and not v.columns,
        ),
        (VideoFilter(columns={"day": ("=Monday",)}), lambda v: bool(v.columns)),
        (VideoFilter(columns={"id": ("run/4.mp4",)}), lambda v: v.id == "run/4.mp4"),
    ]
    for video_filter, is_allowed in cases:
        assert video_filter.mask(store).tolist() == [is_allowed(video) for video in every]
    assert np.array_equal(
        VideoFilter(labels=(None, "run")).mask(store),
        cases[1][0].mask(store) & VideoFilter(labels=("run",)).mask(store),
    )


def test_a_filter_that_nothing_passes_is_an_error(index: SearchIndex) -> None:
    with pytest.raises(SearchError, match=r"no video has label 'rum'; did you mean run or jump\?"):
        VideoFilter(labels=("rum",)).mask(index.store)
    with pytest.raises(SearchError, match="no video has split 'val' or none; known: test, train"):
        VideoFilter(splits=("val", None)).mask(index.store)
    with pytest.raises(SearchError, match="no column 'dey'; did you mean day"):
        VideoFilter(columns={"dey": ("x",)}).mask(index.store)
    with pytest.raises(SearchError, match="no column 'path'"):
        VideoFilter(columns={"path": ("x",)}).mask(index.store)
    with pytest.raises(
        SearchError, match=r"no video has split 'test' and day 'x'; known: =Monday$"
    ):
        VideoFilter(splits=("test",), columns={"day": ("x",)}).mask(index.store)
