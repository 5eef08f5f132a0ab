"""Requests of the page as queries of the run's search index."""

from __future__ import annotations

from collections.abc import Sequence

from clipset.retrieval import QueryExample, SearchIndex, VideoFilter
from clipset.web import models
from clipset.web.uploads import Uploads


def read_examples(
    examples: Sequence[models.Example], index: SearchIndex, uploads: Uploads
) -> list[QueryExample]:
    """Videos, moments and uploads as vectors."""
    return [_read_example(example, index, uploads) for example in examples]


def _read_example(example: models.Example, index: SearchIndex, uploads: Uploads) -> QueryExample:
    if example.upload is not None:
        return uploads.find(example.upload)
    assert example.video is not None
    if example.start is None or example.end is None:
        return index.video_example(example.video)
    return index.moment_example(example.video, example.start, example.end)


def video_filter(filters: models.Filter | None) -> VideoFilter | None:
    """The values that are allowed in every column that is filtered by; None: all videos."""
    if filters is None:
        return None
    columns = {name: tuple(values) for name, values in filters.columns.items()}
    labels, splits = tuple(filters.label or ()), tuple(filters.split or ())
    return VideoFilter(labels=labels, splits=splits, columns=columns)
