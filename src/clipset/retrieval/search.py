"""VideoSearch: a run opened for searching, by examples, moments and text."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from clipset.data.catalog import Video
from clipset.errors import SearchError
from clipset.inference.run import TrainedRun
from clipset.representation import VectorTable
from clipset.retrieval.filters import VideoFilter
from clipset.retrieval.index import (
    QueryExample,
    SearchIndex,
    SearchResult,
    Unit,
    open_index,
)
from clipset.retrieval.query import QueryReader
from clipset.retrieval.text import TextTower

DEFAULT_TOP = 10
Words = str | Path | Sequence[str | Path]
Where = Mapping[str, str | Sequence[str | None] | None]


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
        run: str | Path | TrainedRun,
        *,
        device: str = "auto",
        workers: int | None = None,
        backbone: str | None = None,
        vectors: VectorTable | None = None,
    ) -> None:
        folder = run.folder if isinstance(run, TrainedRun) else Path(run)
        if isinstance(run, TrainedRun) and vectors is not None:
            self.index = SearchIndex(folder, run.store, vectors)
        else:
            self.index = open_index(folder)
        self.folder, self.device, self._workers = folder, device, workers
        self._trained = run if isinstance(run, TrainedRun) else None
        self.backbone = run.backbone if isinstance(run, TrainedRun) else backbone

    @cached_property
    def trained(self) -> TrainedRun:
        """The run itself, which encodes new files."""
        return self._trained or TrainedRun(
            folder=self.folder, device=self.device, workers=self._workers, backbone=self.backbone
        )

    @cached_property
    def reader(self) -> QueryReader:
        """Turns names of videos, files and moments into examples."""
        return QueryReader(self.index, lambda: self.trained)

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

    def text_example(self, text: str) -> QueryExample:
        """A text as an example."""
        return QueryExample(text=self.text_tower.encode(text))

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
        positive = [self.reader.read(str(word)) for word in _as_list(examples)]
        negative = [self.reader.read(str(word)) for word in _as_list(unlike)]
        if not positive and text is None:
            raise SearchError("give an example to search by: a video, a file, a moment or a text")
        columns = {
            name: (values,) if values is None or isinstance(values, str) else tuple(values)
            for name, values in (where or {}).items()
        }
        allowed, count = VideoFilter(columns=columns), DEFAULT_TOP if top is None else top
        result = self.find(positive, negative, text=text, unit=unit, allowed=allowed, top=count)
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

    def find(
        self,
        positive: Sequence[QueryExample],
        negative: Sequence[QueryExample] = (),
        *,
        text: str | None = None,
        unit: Unit = "video",
        allowed: VideoFilter | None = None,
        top: int = DEFAULT_TOP,
        prepare: bool = True,
    ) -> SearchResult:
        """Search by examples that are read already.

        With `prepare`, the index of a large collection is opened or built first.
        """
        mask = None
        if allowed is not None and not allowed.is_empty:
            mask = allowed.mask(self.index.store)
        positive = [*positive, *([] if text is None else [self.text_example(text)])]
        if prepare:
            examples = (*positive, *negative)
            by_video = unit == "video" and all(example.video is not None for example in examples)
            self.index.prepare("videos" if by_video else "clips")
        return self.index.search(positive, negative, unit=unit, allowed=mask, limit=top)


def _as_list(words: Words) -> list[str | Path]:
    return [words] if isinstance(words, str | Path) else list(words)
