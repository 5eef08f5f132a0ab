"""Filters allow the videos with the requested values, and an empty result is an error."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from clipset.data.catalog import Video
from clipset.errors import SearchError
from clipset.retrieval import SearchIndex
from clipset.retrieval.filters import AllowedValues, allowed_videos


def test_filters_are_loops_over_the_catalog(index: SearchIndex) -> None:
    store = index.store
    videos = {video.id: video for video in store.catalog}
    every = [videos[video_id] for video_id in store.ids]
    cases: list[tuple[AllowedValues, Callable[[Video], bool]]] = [
        ({}, lambda v: bool(v.id)),
        ({"label": ("run", "swim")}, lambda v: v.label in ("run", "swim")),
        (
            {"label": ("run",), "split": ("test",)},
            lambda v: v.label == "run" and v.split == "test",
        ),
        (
            {"group": ("camera 1",), "day": (None,)},
            lambda v: v.group == "camera 1" and not v.columns,
        ),
        ({"day": ("=Monday",)}, lambda v: bool(v.columns)),
        ({"id": ("run/4.mp4",)}, lambda v: v.id == "run/4.mp4"),
    ]
    for allowed, is_allowed in cases:
        assert allowed_videos(store, allowed).tolist() == [is_allowed(video) for video in every]
    assert np.array_equal(
        allowed_videos(store, {"label": (None, "run")}), allowed_videos(store, {"label": ("run",)})
    )


def test_a_filter_that_nothing_passes_is_an_error(index: SearchIndex) -> None:
    cases: list[tuple[AllowedValues, str]] = [
        ({"label": ("rum",)}, r"no video has label 'rum'; did you mean run or jump\?"),
        ({"split": ("val", None)}, "no video has split 'val' or none; known: test, train"),
        ({"dey": ("x",)}, "no column 'dey'; did you mean day"),
        ({"path": ("x",)}, "no column 'path'"),
        (
            {"split": ("test",), "day": ("x",)},
            r"no video has split 'test' and day 'x'; known: =Monday$",
        ),
    ]
    for allowed, problem in cases:
        with pytest.raises(SearchError, match=problem):
            allowed_videos(index.store, allowed)
