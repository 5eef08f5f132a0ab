"""Queries as people write them: a video of the collection, a file, or a moment of one."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from clipset.clips.sampling import Window
from clipset.data.catalog import Catalog, Video
from clipset.errors import ClipError, SearchError
from clipset.inference.run import TrainedRun
from clipset.retrieval.index import QueryExample, SearchIndex
from clipset.text import name_text

_SPAN = re.compile(r"(.+)@([0-9]*\.?[0-9]+)-([0-9]*\.?[0-9]+)", re.DOTALL)
MAX_COMPARED_IDS = 20_000  # ids that are compared with an unknown one


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchQuery:
    """The name of a video or file, and the part of it that is meant; None for all of it."""

    name: str
    window: Window | None = None


def parse_query(text: str) -> SearchQuery:
    """`clip.mp4`, or `clip.mp4@12.5-16` for the seconds 12.5 to 16 of it."""
    match = _SPAN.fullmatch(text)
    if match is None:
        return SearchQuery(name=text)
    try:
        window = Window(start=float(match[2]), end=float(match[3]))
    except ClipError:
        raise SearchError(
            f"the moment {match[2]}-{match[3]} s of {match[1]} must end after it starts"
        ) from None
    return SearchQuery(name=match[1], window=window)


class QueryReader:
    """Turns queries into examples; new files are encoded by the run, which is opened for them."""

    def __init__(self, index: SearchIndex, open_run: Callable[[], TrainedRun]) -> None:
        self.index, self._open_run = index, open_run

    def read(self, text: str) -> QueryExample:
        """The example that a text names: an id of the collection, or a file, or a moment of one.

        A file of the collection is not encoded again.
        """
        query = SearchQuery(name=text)
        if self._find(text) is None and not _is_file(text):
            query = parse_query(text)
        video_index, window = self._find(query.name), query.window
        if video_index is None:
            return self._encode(query)
        if window is None:
            return self.index.video_example(video_index)
        return self.index.moment_example(video_index, window.start, window.end)

    def _find(self, name: str) -> int | None:
        """The index of a video by its id or by its file."""
        if (video_index := self._indices.get(name)) is not None:
            return video_index
        return self._files.get(str(Path(name).absolute()))

    @cached_property
    def _indices(self) -> dict[str, int]:
        return {video_id: index for index, video_id in enumerate(self.index.ids)}

    @cached_property
    def _files(self) -> dict[str, int]:
        indices = self._indices
        paths = {str(video.path): indices.get(video.id) for video in self.index.store.catalog}
        return {path: index for path, index in paths.items() if index is not None}

    def _encode(self, query: SearchQuery) -> QueryExample:
        """A file that is not of the collection."""
        name = query.name
        if not _is_file(name):
            raise SearchError(f"no video and no file is called {name!r}{self._hint(name)}")
        video = Video(id=name_text(name), path=Path(name))
        videos = Catalog(name="query", videos=(video,))
        table = self._open_run().embed(videos, window=query.window)
        if not table.video_ids:
            raise SearchError(f"{video.id}: {table.failed[video.id]}")
        return self.index.new_example(table, whole=query.window is None)

    def _hint(self, name: str) -> str:
        ids = self.index.ids[:MAX_COMPARED_IDS]
        near = difflib.get_close_matches(name, ids, n=3, cutoff=0.5)
        if near:
            return f"; did you mean {' or '.join(near)}?"
        return f"; an id of this run is {ids[0]!r}"


def _is_file(name: str) -> bool:
    return os.path.isfile(name)  # noqa: PTH113 (never raises)
