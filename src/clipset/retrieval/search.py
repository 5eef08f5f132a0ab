"""VideoSearch: a run opened for searching, by examples, moments and text."""

from __future__ import annotations

import difflib
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import get_args

import numpy as np
from jaxtyping import Bool

from clipset.clips.sampling import Window
from clipset.config import did_you_mean
from clipset.data.catalog import Catalog, Video
from clipset.errors import ClipError, ConfigError, SearchError
from clipset.inference.run import TrainedRun, load_run
from clipset.retrieval.filters import allowed_videos
from clipset.retrieval.index import (
    QueryExample,
    SearchIndex,
    SearchResult,
    Unit,
    check_limit,
    open_index,
)
from clipset.retrieval.text import TextTower
from clipset.text import name_text

DEFAULT_TOP = 10
MAX_COMPARED_IDS = 20_000  # ids that are compared with an unknown one
Words = str | Path | Sequence[str | Path]
Where = Mapping[str, str | Sequence[str | None] | None]
_MOMENT = re.compile(r"(.+)@([0-9]*\.?[0-9]+)-([0-9]*\.?[0-9]+)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundVideo:
    """A video of the run, or a moment of it from `start` to `end` seconds, and its score."""

    video: str
    path: Path
    score: float
    label: str | None = None
    split: str | None = None
    start: float | None = None
    end: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchAnswer:
    """What was found, best first; `is_exact` is False if an index may have missed some."""

    results: tuple[FoundVideo, ...]
    is_exact: bool
    seconds: float


class VideoSearch:
    """The videos of a run, opened once for many searches.

    New files are encoded by the run's backbone, which is loaded with the first of them.
    """

    def __init__(
        self,
        run: str | Path,
        *,
        device: str = "auto",
        workers: int | None = None,
        backbone: str | None = None,
        index: SearchIndex | None = None,
    ) -> None:
        """`index` is that of the run, if it is open already."""
        self.folder, self.index = Path(run), open_index(run) if index is None else index
        self.device, self.workers, self.backbone = device, workers, backbone

    @cached_property
    def trained(self) -> TrainedRun:
        """The run itself, which encodes new files."""
        return load_run(
            self.folder, device=self.device, workers=self.workers, backbone=self.backbone
        )

    @cached_property
    def text_tower(self) -> TextTower:
        """Turns texts into directions; an error if the backbone cannot."""
        if self.index.table.parts and self.index.table.parts[0] != "clip":
            raise SearchError("the vectors of the run do not begin with the backbone's features")
        return TextTower(self.index.store.manifest, self.backbone)

    @cached_property
    def _videos(self) -> list[Video]:
        by_id = {video.id: video for video in self.index.store.catalog}
        return [by_id[video_id] for video_id in self.index.ids]

    @cached_property
    def _indices(self) -> dict[str, int]:
        """The index of each video by its file and, above all, by its id."""
        files = {str(video.path): index for index, video in enumerate(self._videos)}
        return files | {video_id: index for index, video_id in enumerate(self.index.ids)}

    def text_example(self, text: str) -> QueryExample:
        """A text as an example."""
        return QueryExample(text=self.text_tower.encode(text))

    def read_example(self, text: str) -> QueryExample:
        """The example that a text names: a video of the run by id or file, a file, or a moment.

        A file of the run is not encoded again.
        """
        name, window = text, None
        if self._find(text) is None and not _is_file(text):
            name, window = parse_query(text)
        video_index = self._find(name)
        if video_index is None:
            return self._encode(name, window)
        if window is None:
            return self.index.video_example(video_index)
        return self.index.moment_example(video_index, window.start, window.end)

    def _find(self, name: str) -> int | None:
        return self._indices.get(name, self._indices.get(str(Path(name).absolute())))

    def _encode(self, name: str, window: Window | None) -> QueryExample:
        """A file that is not of the run."""
        if not _is_file(name):
            ids = self.index.ids[:MAX_COMPARED_IDS]
            near = difflib.get_close_matches(name, ids, n=3, cutoff=0.5)
            hint = did_you_mean(near) if near else f"an id is {ids[0]!r}"
            if "@" in name:
                hint = "a moment is START-END in seconds, such as clip.mp4@12.5-16"
            raise SearchError(f"no video and no file is called {name!r}; {hint}")
        video = Video(id=name_text(name), path=Path(name))
        table = self.trained.embed(Catalog(name="query", videos=(video,)), window=window)
        if not table.video_ids:
            raise SearchError(f"{video.id}: {table.failed[video.id]}")
        return self.index.new_example(table, whole=window is None)

    def search(
        self,
        examples: Words = (),
        *,
        unlike: Words = (),
        text: str | None = None,
        unit: Unit = "video",
        where: Where | None = None,
        top: int | None = None,
    ) -> SearchAnswer:
        """The videos or moments most similar to examples and a text, and least to others.

        An example is a video of the run (by id or file), a new file, or a moment of one, such as
        `clip.mp4@12.5-16`. `where` allows values of columns of the catalog.
        """
        began = time.perf_counter()
        if not _as_list(examples) and text is None:
            raise SearchError("give an example to search by: a video, a file, a moment or a text")
        check_search(unit, top)
        count = DEFAULT_TOP if top is None else top
        allowed = self.filter_videos(where or {})
        positive = [self.read_example(str(word)) for word in _as_list(examples)]
        negative = [self.read_example(str(word)) for word in _as_list(unlike)]
        if text is not None:
            positive.append(self.text_example(text))
        result = self.find(positive, negative, unit=unit, allowed=allowed, top=count)
        return SearchAnswer(
            results=tuple(
                FoundVideo(
                    video=(video := self._videos[hit.video_index]).id, path=video.path,
                    label=video.label, split=video.split,
                    score=hit.score, start=hit.start, end=hit.end,
                )
                for hit in result.hits
            ),
            is_exact=result.is_exact,
            seconds=round(time.perf_counter() - began, 4),
        )  # fmt: skip

    def filter_videos(self, where: Where) -> Bool[np.ndarray, " N"] | None:
        """Which videos have allowed values in all of the columns; None if no column is named."""
        allowed = {
            name: (values,) if values is None or isinstance(values, str) else tuple(values)
            for name, values in where.items()
        }
        return allowed_videos(self.index.store, allowed) if allowed else None

    def find(
        self,
        positive: Sequence[QueryExample],
        negative: Sequence[QueryExample] = (),
        *,
        unit: Unit = "video",
        allowed: Bool[np.ndarray, " N"] | None = None,
        top: int = DEFAULT_TOP,
        prepare: bool = True,
    ) -> SearchResult:
        """Search by examples that are read already.

        With `prepare`, the index of a large collection is opened or built first.
        """
        if prepare:
            examples = (*positive, *negative)
            by_video = unit == "video" and all(example.video is not None for example in examples)
            self.index.prepare("videos" if by_video else "clips")
        return self.index.search(positive, negative, unit=unit, allowed=allowed, limit=top)


def check_search(unit: str, top: int | None) -> None:
    """Refuse a search for something else than videos or moments, or for an odd number of them."""
    if unit not in get_args(Unit):
        raise ConfigError(f"unit must be {' or '.join(get_args(Unit))}, got {unit!r}")
    if top is not None:
        check_limit(top)


def parse_query(text: str) -> tuple[str, Window | None]:
    """`clip.mp4`, or `clip.mp4@12.5-16` for the seconds 12.5 to 16 of it."""
    match = _MOMENT.fullmatch(text)
    if match is None:
        return text, None
    name, start, end = match.groups()
    try:
        return name, Window(start=float(start), end=float(end))
    except ClipError:
        raise SearchError(
            f"the moment {start}-{end} s of {name} must end after it starts"
        ) from None


def _is_file(name: str) -> bool:
    return os.path.isfile(name)  # noqa: PTH113 (never raises)


def _as_list(words: Words) -> list[str | Path]:
    return [words] if isinstance(words, str | Path) else list(words)
