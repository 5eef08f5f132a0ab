"""Predictions of a run's classifier for its own videos, and over the time of one of them."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from jaxtyping import Float

from clipset.evaluation.results import ProbeResult, read_predictions, read_records
from clipset.inference.head import Head
from clipset.inference.run import ClassProbability, Moment
from clipset.report.content import group_results
from clipset.representation.encode import cut_windows, read_spans
from clipset.sets.reading import read_clips
from clipset.web.run_data import RunData

MAX_FIT_VIDEOS = 2_000  # a classifier that is not stored is fitted for runs up to this size
CLASSIFY_CHUNK = 256  # videos that are classified at once
MIN_WINDOWS = 4  # of the timeline of a video
NUM_CLASSES = 5  # that a video lists


class RunPredictions:
    """Labels by the stored results of the run first, then by its classifier."""

    def __init__(self, run: RunData) -> None:
        self.run = run
        self.classes: tuple[str, ...] = ()
        self.probabilities: Float[np.ndarray, "N C"] | None = None  # NaN where there are none
        self.head: Head | None = None

    def read_stored(self) -> None:
        """The predictions of the headline's probe for the test videos."""
        results = read_records(self.run.folder / "results.json", ProbeResult)
        predictions = read_predictions(self.run.folder / "predictions.safetensors")
        panels = group_results(results)
        if not predictions.classes or not panels:
            return
        outputs = predictions.outputs[panels[0].main_result.key].mean(axis=0)  # (M, C)
        index = {video_id: i for i, video_id in enumerate(self.run.store.ids)}
        probabilities = np.full((len(self.run), outputs.shape[1]), np.nan, dtype=np.float32)
        rows = [index[video_id] for video_id in predictions.ids]
        probabilities[rows] = outputs
        self._publish(predictions.classes, probabilities)

    def compute(self) -> None:
        """The predictions of the classifier for all videos; none of a run without labels."""
        trained = self.run.trained
        is_stored = (trained.folder / "head" / "head.json").is_file()
        if len(trained.catalog.classes) < 2 or (not is_stored and len(self.run) > MAX_FIT_VIDEOS):
            return
        head = trained.head
        probabilities = np.empty((len(self.run), len(head.card.classes)), dtype=np.float32)
        for low in range(0, len(self.run), CLASSIFY_CHUNK):
            videos = np.arange(low, min(low + CLASSIFY_CHUNK, len(self.run)))
            clips = read_clips(self.run.store, "regular", videos, trained.architecture)
            probabilities[videos] = head.predict(clips).numpy()
        self.head = head
        self._publish(head.card.classes, probabilities)

    def _publish(self, classes: tuple[str, ...], probabilities: Float[np.ndarray, "N C"]) -> None:
        self.classes, self.probabilities = classes, probabilities
        known = np.isfinite(probabilities).all(axis=1)
        best = np.where(known, np.nan_to_num(probabilities).argmax(axis=1), -1)
        confidences = np.nan_to_num(probabilities).max(axis=1).astype(np.float64).round(4)
        self.run.set_predictions(
            [None if index < 0 else classes[index] for index in best.tolist()],
            [c if k else None for c, k in zip(confidences.tolist(), known.tolist(), strict=True)],
        )

    def top_classes(self, video_index: int) -> list[ClassProbability]:
        """The most probable classes of a video."""
        if self.probabilities is None or not np.isfinite(self.probabilities[video_index]).all():
            return []
        row = self.probabilities[video_index]
        order = np.argsort(-row, kind="stable")[:NUM_CLASSES].tolist()
        return [
            ClassProbability(label=self.classes[k], probability=round(float(row[k]), 4))
            for k in order
        ]

    def timeline(self, video_index: int) -> list[Moment]:
        """The most probable label of each window of a video, by its stored clips.

        A window has the median duration of the run's videos, or a quarter of the video's.
        """
        if self.head is None:
            return []
        head, model = self.head, self.run.trained.architecture
        duration = float(self.run.store.durations[video_index])
        window = min(self.median_duration, duration / MIN_WINDOWS)
        spans = cut_windows(self.run.store, window, [video_index])[1:]
        if len(spans) < 2:
            return []
        probabilities = head.predict(read_spans(self.run.store, spans, model))
        values, indices = probabilities.max(dim=1)
        return [
            Moment(
                start=round(span.start, 3),
                end=round(span.end, 3),
                label=head.card.classes[index],
                probability=round(value, 4),
            )
            for span, value, index in zip(spans, values.tolist(), indices.tolist(), strict=True)
        ]

    @cached_property
    def median_duration(self) -> float:
        """Of the run's videos, in seconds."""
        return float(np.median(self.run.store.durations))
