"""SearchIndex: finds videos and moments of a run that are similar to examples.

A whole video is compared by the vector that the run has of it (`VectorTable.pooled`), a moment by
the vectors of its clips. A clip stands for the time up to halfway to its neighbours, so that the
clips of a video cover it.

The score is the mean similarity to the positive examples, minus `NEGATIVE_WEIGHT` times the mean
similarity to the negative ones (Rocchio). With one positive example, it is a cosine.

Up to `EXACT_BYTES` of vectors, all are compared. Beyond that, an approximate index is kept beside
the vectors, if faiss is installed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from clipset.clips.sampling import Window
from clipset.errors import ClipError, SearchError, VideoError
from clipset.features.store import FeatureStore, open_run_store
from clipset.progress import log
from clipset.representation import VectorTable, read_vectors
from clipset.representation.derived import vectors_checksum
from clipset.retrieval.approximate import ApproximateIndex, import_faiss
from clipset.retrieval.index_file import IndexedVideos, open_approximate
from clipset.retrieval.moments import cover_time, merge_clips
from clipset.retrieval.rows import QueryVector, TextDirection, VectorRows

Unit = Literal["video", "moment"]
Kind = Literal["videos", "clips"]
KINDS: tuple[Kind, ...] = ("videos", "clips")
NEGATIVE_WEIGHT = 0.5
MAX_LIMIT = 100_000
VECTORS_FILE = "vectors.safetensors"
EXACT_BYTES = 1_000_000_000  # of vectors that are all compared
FEW_BYTES = 50_000_000  # of allowed vectors that are all compared, with an index, too
MAX_INDEXED_RESULTS = 2000  # rows of one search; with more, all vectors are compared


@dataclass(frozen=True, eq=False, kw_only=True)
class QueryExample:
    """A video, a moment or a text to search by.

    `clips` is the normalised mean of the vectors of its clips. `video` is the vector of a whole
    video; a moment or a text has none. `video_index` and `window` say where in the collection the
    example is: search does not return it.
    """

    clips: Float[np.ndarray, " R"] | None = None
    video: Float[np.ndarray, " Q"] | None = None
    text: TextDirection | None = None
    video_index: int | None = None
    window: Window | None = None

    def __post_init__(self) -> None:
        if (self.clips is None) == (self.text is None):
            raise SearchError("an example has either the vector of its clips or a text")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchHit:
    """A video of the collection, or a moment of it (seconds), and its score."""

    video_index: int
    score: float
    start: float | None = None
    end: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The hits of a search, best first; `is_exact` is False if an index may have missed some."""

    hits: tuple[SearchHit, ...]
    is_exact: bool = True


@dataclass(frozen=True, eq=False, slots=True)
class RankedRows:
    """Rows of a table of vectors, best first."""

    indices: Int[np.ndarray, " K"]
    scores: Float[np.ndarray, " K"]
    is_exact: bool = True


class SearchIndex:
    """The vectors of a run's videos and of their clips, for searching."""

    def __init__(self, run_folder: Path, store: FeatureStore, table: VectorTable) -> None:
        counts = store.regular.count
        num_clips = table.vectors.shape[1]
        valid = np.arange(num_clips) < counts[:, None]  # (N, V)
        stored = valid if table.valid is None else table.valid
        if table.video_ids != store.ids or not np.array_equal(stored, valid):
            raise SearchError(
                f"the vectors in {run_folder} are not of the videos in its store; "
                f"run `clipset run` again"
            )
        self.run_folder, self.store, self.table = run_folder, store, table
        widths = table.part_widths or (table.vectors.shape[2],)
        clip_rows = table.vectors.reshape(-1, table.vectors.shape[2])
        self.videos = VectorRows(rows=table.pooled, part_widths=table.pooled.shape[1:])
        self.clips = VectorRows(rows=clip_rows, part_widths=widths)
        self._valid = valid
        self._valid_rows: Bool[np.ndarray, " M"] = valid.ravel()
        self._approximate: dict[Kind, ApproximateIndex] = {}

    def __len__(self) -> int:
        return len(self.store)

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the videos."""
        return self.store.ids

    @cached_property
    def clip_times(self) -> Float[np.ndarray, "N V 2"]:
        """Start and end of the time that each clip stands for; 0 for padding."""
        table = self.store.regular
        times = np.zeros((*self.table.vectors.shape[:2], 2))
        for index, (first, count) in enumerate(zip(table.first, table.count, strict=True)):
            boxes = table.boxes[first : first + count, :2].astype(np.float64)
            times[index, :count] = cover_time(boxes, float(self.store.durations[index]))
        return times

    def prepare(self, kind: Kind) -> None:
        """Open, update or build the approximate index of a large collection.

        Searches before that, and without faiss, compare all vectors.
        """
        rows, valid = self.clips, self._valid
        if kind == "videos":
            rows, valid = self.videos, np.ones((len(self), 1), np.bool_)
        if rows.num_bytes <= EXACT_BYTES or kind in self._approximate:
            return
        if import_faiss() is None:
            log(
                f"all {rows.num_bytes / 1e9:.1f} GB of vectors are compared in every search; "
                f"pip install 'clipset[search]' makes it fast"
            )
            return
        folder = self.run_folder / "vectors"
        videos = IndexedVideos(rows=rows, valid=valid, source=vectors_checksum(folder))
        index = open_approximate(folder / f"index-{kind}.safetensors", videos)
        if index is not None:
            self._approximate[kind] = index

    def video_example(self, video_index: int) -> QueryExample:
        """A whole video of the collection as an example."""
        return QueryExample(
            clips=self.mean_clip(self.table.vectors[video_index, : self._count(video_index)]),
            video=np.asarray(self.table.pooled[video_index]),
            video_index=video_index,
        )

    def moment_example(self, video_index: int, start: float, end: float) -> QueryExample:
        """A moment of a video of the collection: the clips that are centred in it.

        If there are none, the clip that stands for its middle.
        """
        times = self.clip_times[video_index, : self._count(video_index)]
        try:
            window = Window(start=start, end=end)
            window = window.bounded(float(self.store.durations[video_index]))
        except (ClipError, VideoError) as error:
            raise SearchError(f"{self.ids[video_index]}: {error}") from None
        middles = times.mean(axis=1)
        inside = (middles >= window.start) & (middles <= window.end)
        if not inside.any():
            distances = np.abs(middles - (window.start + window.end) / 2)
            inside = distances == distances.min()
        clips = self.mean_clip(self.table.vectors[video_index, : len(times)][inside])
        return QueryExample(clips=clips, video_index=video_index, window=window)

    def new_example(self, table: VectorTable, *, whole: bool = True) -> QueryExample:
        """The only video of a table as an example; `whole`: not a moment of a video."""
        if table.vectors.shape[2] != self.clips.rows.shape[1]:
            raise SearchError(
                f"the example has vectors of {table.vectors.shape[2]} numbers, those of "
                f"{self.run_folder} have {self.clips.rows.shape[1]}"
            )
        clips = self.mean_clip(table.vectors[0])
        return QueryExample(clips=clips, video=table.pooled[0] if whole else None)

    def mean_clip(self, vectors: Float[np.ndarray, "K R"]) -> Float[np.ndarray, " R"]:
        """The normalised mean of the vectors of some clips."""
        mean = self.clips.normalise(np.asarray(vectors)).mean(axis=0)
        return self.clips.normalise(mean)

    def search(
        self,
        positive: Sequence[QueryExample],
        negative: Sequence[QueryExample] = (),
        *,
        unit: Unit = "video",
        allowed: Bool[np.ndarray, " N"] | None = None,
        limit: int = 10,
    ) -> SearchResult:
        """The `limit` videos or moments with the highest scores, without the examples themselves.

        With whole videos as examples, videos are compared by their own vectors. Otherwise a video
        has the score of its best moment, and its hit has the times of that.
        """
        if not positive:
            raise SearchError("a search needs at least one positive example")
        check_limit(limit)
        examples = [*positive, *negative]
        allowed = np.ones(len(self), np.bool_) if allowed is None else allowed.copy()
        if unit == "video":
            allowed[[e.video_index for e in examples if e.video_index is not None]] = False
        if unit == "video" and all(example.video is not None for example in examples):
            vectors = [self.videos.normalise(e.video) for e in examples if e.video is not None]
            query = QueryVector(vector=_combine(vectors, len(positive)))
            best = self._best_rows("videos", query, allowed, limit)
            ranked = zip(best.indices.tolist(), best.scores.tolist(), strict=True)
            hits = tuple(SearchHit(video_index=index, score=score) for index, score in ranked)
            return SearchResult(hits=hits, is_exact=best.is_exact)
        query = self._clip_query(positive, negative)
        rows = self._valid_rows & np.repeat(allowed, self.clip_times.shape[1])
        for example in examples if unit == "moment" else ():
            if example.video_index is not None:
                rows[self._own_rows(example)] = False
        return self._search_moments(query, rows, limit, by_video=unit == "video")

    def clip_similarity(
        self,
        video_index: int,
        positive: Sequence[QueryExample],
        negative: Sequence[QueryExample] = (),
    ) -> list[SearchHit]:
        """The score of each moment of a video, in the order of time; of crops, the best."""
        query = self._clip_query(positive, negative)
        count, width = self._count(video_index), self.clip_times.shape[1]
        scores = self.clips.scores(query, video_index * width + np.arange(count))
        best: dict[tuple[float, float], float] = {}
        times = map(tuple, self.clip_times[video_index, :count].tolist())
        for time, score in zip(times, scores.tolist(), strict=True):
            best[time] = max(score, best.get(time, -np.inf))
        return [
            SearchHit(video_index=video_index, score=score, start=start, end=end)
            for (start, end), score in sorted(best.items())
        ]

    def _count(self, video_index: int) -> int:
        if not 0 <= video_index < len(self):
            raise SearchError(
                f"the collection has the videos 0 to {len(self) - 1}, got {video_index}"
            )
        return int(self.store.regular.count[video_index])

    def _clip_query(
        self, positive: Sequence[QueryExample], negative: Sequence[QueryExample]
    ) -> QueryVector:
        """The query for clips; one of the positive examples may be a text."""
        examples = [*positive, *negative]
        texts = [example.text for example in positive if example.text is not None]
        if len(texts) > 1 or any(example.text is not None for example in negative):
            raise SearchError("a search takes one text, as a positive example")
        zeros = np.zeros(self.clips.rows.shape[1], np.float32)
        vectors = [zeros if example.clips is None else example.clips for example in examples]
        return QueryVector(
            vector=_combine(vectors, len(positive)),
            text=texts[0] if texts else None,
            text_weight=1 / len(positive),
        )

    def _own_rows(self, example: QueryExample) -> Int[np.ndarray, " K"]:
        """The clips that stand for a part of an example."""
        index = example.video_index or 0
        width = self.clip_times.shape[1]
        start, end = self.clip_times[index].T
        overlaps = np.ones(width, np.bool_)
        if example.window is not None:
            overlaps = (start < example.window.end) & (end > example.window.start)
        rows: Int[np.ndarray, " K"] = index * width + np.flatnonzero(overlaps)
        return rows

    def _best_rows(
        self, kind: Kind, query: QueryVector, allowed: Bool[np.ndarray, " M"], count: int
    ) -> RankedRows:
        """The rows with the highest scores among the allowed ones, best first.

        They are found by an approximate index if there is one and it is worth it.
        """
        rows = self.videos if kind == "videos" else self.clips
        indices = np.flatnonzero(allowed)
        index, vector = self._approximate.get(kind), rows.linear_query(query)
        is_large = len(indices) * rows.num_bytes > FEW_BYTES * len(rows)
        if index is not None and vector is not None and is_large and count <= MAX_INDEXED_RESULTS:
            is_all = len(indices) == len(index.row_indices)
            candidates = index.find_candidates(vector, count, None if is_all else allowed)
            if len(candidates) >= min(count, len(indices)):
                candidates = np.sort(candidates)  # of equal ones, the first
                best = rank_rows(candidates, rows.scores(query, candidates), count)
                return replace(best, is_exact=False)
        if len(indices) < len(rows) / 4:  # reading some costs more for each than reading all
            return rank_rows(indices, rows.scores(query, indices), count)
        scores = rows.scores(query)
        return rank_rows(indices, scores if allowed.all() else scores[indices], count)

    def _search_moments(
        self, query: QueryVector, allowed: Bool[np.ndarray, " M"], limit: int, *, by_video: bool
    ) -> SearchResult:
        """The best moments: clips of a high score, with those around them.

        All clips of a video that has a high score are looked at, so that a moment does not depend
        on `limit`.
        """
        num_clips, count = self.clip_times.shape[1], 4 * limit
        while True:
            best = self._best_rows("clips", query, allowed, count)
            is_last = len(best.indices) < count
            hits = self._moments_of(np.unique(best.indices // num_clips), query, allowed)
            if by_video:
                first = {hit.video_index: hit for hit in reversed(hits)}
                hits = list(first.values())
            hits.sort(key=lambda hit: (-hit.score, hit.video_index, hit.start))
            if not is_last:  # others could be better than the rest
                hits = [hit for hit in hits if hit.score >= best.scores[-1]]
            if is_last or len(hits) >= limit:
                return SearchResult(hits=tuple(hits[:limit]), is_exact=best.is_exact)
            count *= 4

    def _moments_of(
        self,
        videos: Int[np.ndarray, " K"],
        query: QueryVector,
        allowed: Bool[np.ndarray, " M"],
    ) -> list[SearchHit]:
        """The moments of some videos, those of one video best first."""
        num_clips = self.clip_times.shape[1]
        rows = (videos[:, None] * num_clips + np.arange(num_clips)).ravel()
        rows = rows[allowed[rows]]
        scores, times = self.clips.scores(query, rows), self.clip_times.reshape(-1, 2)[rows]
        borders = np.flatnonzero(np.diff(rows // num_clips)) + 1
        return [
            SearchHit(video_index=video_index, start=start, end=end, score=score)
            for video_index, own_times, own_scores in zip(
                videos.tolist(), np.split(times, borders), np.split(scores, borders), strict=True
            )
            for start, end, score in merge_clips(own_times, own_scores)
        ]


def check_limit(limit: int) -> None:
    """Refuse a number of results that no search can have."""
    if not 1 <= limit <= MAX_LIMIT or int(limit) != limit:
        raise SearchError(f"the number of results must be 1 to {MAX_LIMIT:,}, got {limit}")


def rank_rows(
    indices: Int[np.ndarray, " K"], scores: Float[np.ndarray, " K"], count: int
) -> RankedRows:
    """The `count` rows with the highest scores; of equal ones, the first."""
    if count < len(scores):
        least = np.partition(scores, len(scores) - count)[len(scores) - count]
        best = np.flatnonzero(scores >= least)
        indices, scores = indices[best], scores[best]
    order = np.argsort(-scores, kind="stable")[:count]
    return RankedRows(indices[order], scores[order])


def open_index(run_folder: str | Path) -> SearchIndex:
    """The search index of a finished run."""
    folder = Path(run_folder)
    if not (folder / "vectors" / VECTORS_FILE).is_file():
        tasks = sorted(path.parent.parent.name for path in folder.glob(f"*/vectors/{VECTORS_FILE}"))
        if tasks:
            first = folder / tasks[0]
            raise SearchError(f"{folder} has {len(tasks)} tasks; search in one, such as {first}")
        raise SearchError(f"{folder} has no vectors to search; run `clipset run` first")
    return SearchIndex(folder, open_run_store(folder), read_vectors(folder / "vectors"))


def _combine(vectors: Sequence[Float[np.ndarray, " R"]], num_positive: int) -> np.ndarray:
    """The mean of the positive examples minus a fraction of the mean of the negative ones."""
    query = np.mean(vectors[:num_positive], axis=0)
    if len(vectors) > num_positive:
        query = query - NEGATIVE_WEIGHT * np.mean(vectors[num_positive:], axis=0)
    return np.asarray(query, np.float32)
