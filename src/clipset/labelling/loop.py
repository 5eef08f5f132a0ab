"""LabelLoop: labels of a run's videos, a classifier of them, and what to label next."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import RLock

import numpy as np

from clipset.errors import LabelError
from clipset.inference.head import LABELS
from clipset.labelling.export import LabelExport, export_head, export_labels
from clipset.labelling.head import RidgeHead, fit_ridge
from clipset.labelling.log import LabelEvent, LabelLog, clean_label
from clipset.labelling.queue import HELD_OUT_EVERY, Queue, QueueItem
from clipset.labelling.score import LearnerState, score_correct
from clipset.labelling.vectors import CompactVectors, open_components
from clipset.labelling.views import (
    NearestVideos,
    ViewItem,
    ViewName,
    find_doubtful,
    find_duplicates,
    find_neighbours,
    find_outliers,
)
from clipset.representation import VectorTable, read_vectors
from clipset.text import path_text

FOLDER = "labels"
SPAN_TOLERANCE = 0.1  # seconds that a span may end after the video, as players round
CURVE_STEP = 5
MAX_HEADS = 24  # that are kept in memory
Examples = tuple[tuple[int, str], ...]  # video index and label, in the order of labelling


@dataclass(frozen=True, kw_only=True)
class LabelPredictions:
    """The most probable class of each video and its probability; None without a head."""

    classes: tuple[str, ...]
    labels: tuple[str | None, ...]
    confidences: tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanLabel:
    """The label of a part of a video, in seconds."""

    video_index: int
    start: float
    end: float
    label: str


class LabelLoop:
    """The labels of a run's videos, and a classifier that learns from them.

    Videos are addressed by their index in the run's vectors. Labels of the catalog are not used.
    Of the videos in the order in which they are labelled, every fifth is held out for the score.
    A head needs two classes. `table` are the run's vectors, if they are open already. All methods
    may be called from several threads.
    """

    def __init__(self, run_folder: str | Path, table: VectorTable | None = None) -> None:
        self.run_folder = Path(run_folder)
        self.folder = self.run_folder / FOLDER
        self.table = table or read_vectors(self.run_folder / "vectors")
        self.log = LabelLog(self.folder)
        self._video_indices = {id: index for index, id in enumerate(self.table.video_ids)}
        self._mutex = RLock()
        self._heads: dict[Examples, RidgeHead] = {}
        self._seconds = 0.0

    def close(self) -> None:
        """Let other processes write labels."""
        self.log.close()

    @cached_property
    def components(self) -> CompactVectors:
        """The vectors to learn from."""
        return open_components(self.table.pooled, self.run_folder / "vectors", self.folder)

    # Labels

    @property
    def labels(self) -> dict[int, str]:
        """The label of each labelled video, in the order in which they were first labelled."""
        return dict(self._examples())

    @property
    def classes(self) -> tuple[str, ...]:
        """The distinct labels of videos and spans, sorted."""
        with self._mutex:
            state = self.log.state
            return tuple(sorted({*state.labels.values(), *state.spans.values()}))

    @property
    def spans(self) -> list[SpanLabel]:
        """The labels of parts of videos."""
        with self._mutex:
            return [
                SpanLabel(video_index=self._video_indices[id], start=start, end=end, label=label)
                for (id, start, end), label in self.log.state.spans.items()
                if id in self._video_indices
            ]

    @property
    def skipped(self) -> list[int]:
        """Videos that the queue does not show any more."""
        with self._mutex:
            ids = list(self.log.state.skipped)
        return [self._video_indices[id] for id in ids if id in self._video_indices]

    @property
    def held_out(self) -> list[int]:
        """Labelled videos that are never trained on."""
        return [video for video, _ in self._examples(held_out=True)]

    def add(
        self, video_index: int, label: str, start: float | None = None, end: float | None = None
    ) -> None:
        """Label a video, or the seconds from `start` to `end` of it."""
        id, label = self._video_id(video_index), clean_label(label)
        with self._writing():
            if start is not None or end is not None:
                self._check_span(video_index, end)
                event = LabelEvent(action="span", video=id, label=label, start=start, end=end)
            else:
                is_held_out = len(self.log.state.held_out) % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
                event = LabelEvent(action="label", video=id, label=label, held_out=is_held_out)
            self.log.append(event)

    def remove(
        self, video_index: int, start: float | None = None, end: float | None = None
    ) -> None:
        """Remove the label of a video, or of the seconds from `start` to `end` of it."""
        event = LabelEvent(action="remove", video=self._video_id(video_index), start=start, end=end)
        with self._writing():
            state = self.log.state
            if (event.span not in state.spans) if event.span else (event.video not in state.labels):
                what = "label" if event.span is None else f"span from {start} to {end} s"
                raise LabelError(f"the video {event.video!r} has no {what} to remove")
            self.log.append(event)

    def skip(self, video_index: int) -> None:
        """Show a video no more in the queue."""
        event = LabelEvent(action="skip", video=self._video_id(video_index))
        with self._writing():
            self.log.append(event)

    def undo(self) -> None:
        """Take back the last label, span, removal or skip."""
        with self._writing():
            if not self.log.history:
                raise LabelError("there is nothing to undo")
            self.log.append(LabelEvent(action="undo"))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._mutex:
            self.log.refresh()
            yield

    def _video_id(self, video_index: int) -> str:
        count = len(self.table.video_ids)
        if not 0 <= video_index < count:
            raise LabelError(f"a video is a number from 0 to {count - 1}, got {video_index}")
        return self.table.video_ids[video_index]

    def _check_span(self, video_index: int, end: float | None) -> None:
        duration = self.table.ends[video_index] if self.table.ends else None
        if end is not None and duration is not None and end > duration + SPAN_TOLERANCE:
            raise LabelError(f"the video has {duration:.2f} s; a span cannot end at {end} s")

    # Learning

    def _examples(self, *, held_out: bool | None = None) -> Examples:
        """Labelled videos; those held out or not, or all."""
        with self._mutex:  # no label is half applied
            state = self.log.state
            return tuple(
                (self._video_indices[id], label)
                for id, label in state.labels.items()
                if id in self._video_indices and held_out in (None, state.held_out[id])
            )

    @property
    def head(self) -> RidgeHead | None:
        """The classifier of all labels that are not held out; None with fewer than two classes."""
        with self._mutex:
            return self._fit(self._examples(held_out=False))

    def _fit(self, examples: Examples) -> RidgeHead | None:
        """A head; the last ones are kept."""
        if len({label for _, label in examples}) < 2:
            return None
        if examples not in self._heads:
            began = time.perf_counter()
            while len(self._heads) > MAX_HEADS:
                self._heads.pop(next(iter(self._heads)))
            videos, labels = zip(*examples, strict=True)
            self._heads[examples] = fit_ridge(self.components.values[list(videos)], labels)
            self._seconds = time.perf_counter() - began
        return self._heads[examples]

    def predictions(self) -> LabelPredictions:
        """The predictions of the head for every video."""
        head, count = self.head, len(self.table.video_ids)
        if head is None:
            nothing = (None,) * count
            return LabelPredictions(classes=self.classes, labels=nothing, confidences=nothing)
        probabilities = head.predict(self.components.values)
        indices = probabilities.argmax(axis=1).tolist()
        return LabelPredictions(
            classes=self.classes,
            labels=tuple(head.classes[index] for index in indices),
            confidences=tuple(probabilities.max(axis=1).tolist()),
        )

    def queue(self, limit: int = 12) -> list[QueueItem]:
        """The next videos to label, each with the reason why."""
        used = np.zeros(len(self.components), dtype=bool)  # computed while others may label
        with self._mutex:
            used[[*self.labels, *self.skipped]] = True
            return self._queue.select(
                limit,
                covered=[*dict(self._examples(held_out=False)), *self.skipped],
                used=used,
                num_labels=len(self.log.state.held_out),
                head=self.head,
            )

    @cached_property
    def _queue(self) -> Queue:
        return Queue(self.components.values)

    def view(self, name: ViewName) -> list[ViewItem]:
        """Doubtful labels, groups of duplicates, or outliers; the most striking ones first."""
        if name == "duplicates":
            return find_duplicates(self._neighbours, self.table.pooled)
        if name == "outliers":
            return find_outliers(self._neighbours)
        with self._mutex:
            head = self.head
            if head is None:
                return []
            trained, held_out = self._examples(held_out=False), self._examples(held_out=True)
            outputs = head.predict(self.components.values[[video for video, _ in held_out]])
            probabilities = np.concatenate([head.left_out, outputs])
            return find_doubtful([*trained, *held_out], head.classes, probabilities)

    @cached_property
    def _neighbours(self) -> NearestVideos:
        with self._mutex:
            return find_neighbours(self._queue.directions)

    def score(self) -> LearnerState:
        """The accuracy on the held-out labels, now and after fewer labels."""
        with self._mutex:
            all_labels, held_out = self._examples(), self._examples(held_out=True)
            trained, held_out_set = self._examples(held_out=False), set(held_out)
            curve = []
            for count in _curve_counts(len(all_labels)) if held_out else ():
                head = self._fit(tuple(e for e in all_labels[:count] if e not in held_out_set))
                if head is not None:
                    videos, labels = zip(*held_out, strict=True)
                    outputs = head.predict(self.components.values[list(videos)])
                    predicted = [head.classes[index] for index in outputs.argmax(axis=1)]
                    correct = sum(a == b for a, b in zip(predicted, labels, strict=True))
                    curve.append(score_correct(count, correct, len(labels)))
            now = curve[-1] if curve else None
            return LearnerState(
                num_labels=len(all_labels),
                num_held_out=len(held_out),
                num_trained=len(trained),
                score=None if now is None else now.score,
                low=None if now is None else now.low,
                high=None if now is None else now.high,
                curve=tuple(curve),
                seconds=self._seconds,
            )

    def export(self) -> LabelExport:
        """Write the labels and spans as tables, and the head for `clipset predict`."""
        with self._mutex:
            state, head = self.log.state, self.head
            if not state.labels and not state.spans:
                raise LabelError("there are no labels to export; label a video first")
            catalog, spans = export_labels(self.run_folder, self.folder, state.labels, state.spans)
            run = shlex.quote(path_text(self.run_folder))
            if head is None:
                command = f"clipset run {shlex.quote(path_text(catalog))} --out {run}-labelled"
                return LabelExport(catalog=catalog, spans=spans, head=None, command=command)
            folder = export_head(self.run_folder, head, self.components, self.table.parts)
            command = f"clipset predict VIDEOS --run {run} --probe {LABELS}"
            return LabelExport(catalog=catalog, spans=spans, head=folder, command=command)


def _curve_counts(num_labels: int) -> list[int]:
    """Up to about ten numbers of labels, the same ones again as the number grows."""
    step = CURVE_STEP
    while num_labels > 10 * step:
        step *= 2
    return sorted({*range(step, num_labels, step), num_labels})
