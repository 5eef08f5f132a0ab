"""TrainedRun: what a run learned, for videos that it has never seen."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from clipset.clips.windows import WindowGrid
from clipset.config import build, fingerprint
from clipset.data.catalog import Catalog, read_catalog_table
from clipset.errors import OutputError, ProbeError, RunError, VideoError
from clipset.evaluation.config import EvaluateConfig
from clipset.evaluation.task import LabelledVideos
from clipset.features.decode_worker import describe_error
from clipset.features.store import FeatureStore, open_store
from clipset.inference.clips import ClipReader, FailedWindow, SeenVideo, WindowClips
from clipset.inference.head import (
    FORMAT,
    Head,
    fit_head,
    load_head,
    only_row,
    row_called,
    save_head,
)
from clipset.inference.sources import Sources, list_new_videos
from clipset.model.config import ModelConfig
from clipset.model.encoder import SetEncoder
from clipset.progress import bar, say
from clipset.representation import DEFAULT_PARTS, VectorPart, VectorTable, encode_clips
from clipset.runs import read_run
from clipset.sets.reading import read_clips
from clipset.training.checkpoint import ScaleModel, load_model, read_card, read_training
from clipset.training.joint import PretrainingSetup

LONG = 3.0  # a video this many times longer than the usual training video gets a timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """A label and how likely it is."""

    label: str
    probability: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What a piece of a video shows, from `start` to `end` seconds."""

    start: float
    end: float
    label: str
    probability: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a video shows, likeliest first; or the reason why it could not be read.

    A long video has a timeline, too.
    """

    video: str
    guesses: tuple[Guess, ...] = ()
    timeline: tuple[Moment, ...] = ()
    reason: str | None = None

    @property
    def label(self) -> str | None:
        """The likeliest label."""
        return self.guesses[0].label if self.guesses else None

    @property
    def probability(self) -> float | None:
        """How likely it is."""
        return self.guesses[0].probability if self.guesses else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedded(VectorTable):
    """Vectors of new videos; `failed` says of the others why they could not be read."""

    failed: dict[str, str] = field(default_factory=dict)


class TrainedRun:
    """A finished run: `predict` says what new videos show, `embed` gives their vectors.

    The classifier is fitted the first time that it is needed, and kept in the run's folder. It is
    the best row of the run's table on validation videos, or the `row` that is named.
    """

    def __init__(
        self,
        folder: Path,
        *,
        device: str = "auto",
        workers: int | None = None,
        row: str | None = None,
        backbone: str | None = None,
    ) -> None:
        self.folder, self.row = folder, None if row is None else row_called(row)
        self.content = read_run(folder)
        listed = folder / "catalog.csv"
        catalog = read_catalog_table(listed) if listed.is_file() else None
        self.store: FeatureStore = open_store(folder / "store", catalog)
        self.device, self.workers, self.backbone = device, workers, backbone

    @cached_property
    def reader(self) -> ClipReader:
        """What shows new videos to the backbones that the run's model wants to see."""
        return ClipReader(
            self.store.manifest,
            self.shape,
            device=self.device,
            workers=self.workers,
            backbone=self.backbone,
        )

    @property
    def shape(self) -> ModelConfig | None:
        """The shape of the model, if the run has one."""
        return None if self.model is None else self.model.config

    @cached_property
    def model(self) -> ScaleModel | None:
        """The pre-trained model, if the run has one."""
        if not (self.folder / "model" / "model.json").is_file():
            return None
        return load_model(self.folder / "model")

    @property
    def _pretraining(self) -> PretrainingSetup | None:
        """What the model learned from."""
        if self.model is None:
            return None
        return PretrainingSetup(self.store, read_training(self.folder / "model"))

    @cached_property
    def catalog(self) -> Catalog:
        """The run's own videos."""
        return read_catalog_table(self.folder / "catalog.csv")

    @cached_property
    def head(self) -> Head:
        """The classifier: the one in the folder, or a new one if the run has changed since.

        It is the row of the run's table that does best on validation videos, or `row`.
        """
        folder = self.folder / ("head" if self.row is None else f"head-{self.row}")
        recipe = self.content.get("recipe", {})
        config = build(EvaluateConfig, recipe.get("evaluate", {}), f"the recipe of {self.folder}")
        config = only_row(config, self.row)
        seed = int(self.content.get("seed", 0))
        places, classes = self._to_learn_from()
        check = self._to_choose_by(classes)
        identity = fingerprint(
            FORMAT,
            config,
            seed,
            self.store.manifest,
            [self.store.entries[place].checksum for place in (*places, *check)],
            self.catalog.fingerprint,
            "" if self.model is None else read_card(self.folder / "model").fingerprint,
        )
        found = load_head(folder, identity)
        if found is None:
            found = fit_head(
                self._videos(places, classes), classes, self.model, config, seed=seed,
                fingerprint=identity, validation=self._videos(check, classes) if check else None,
                pretraining=self._pretraining,
            )  # fmt: skip
            try:
                save_head(found, folder)
            except OutputError as error:
                say(f"{error.problem}; the classifier is fitted again next time")
        return found

    def predict(
        self,
        videos: Sources,
        *,
        top: int = 5,
        window: float | None = None,
        step: float | None = None,
        timeline: bool | None = None,
    ) -> list[Prediction]:
        """The likeliest labels of each video, and for long ones a timeline.

        A timeline is made of windows of `window` seconds (by default as long as the usual training
        video), `step` seconds apart (by default half a window). Unless `timeline` says otherwise,
        the videos that get one are all if a window or step is given, else the long ones.
        """
        if top < 1:
            raise RunError(f"top must be at least 1, got {top}")
        every = timeline if timeline is not None else (window, step) != (None, None)
        window = self.usual_duration if window is None else window
        step = window / 2 if step is None else step
        grid = WindowGrid(window, step)
        reader, head = self.reader, self.head  # the reader may refuse, before a head is fitted
        seen = reader.read(list_new_videos(videos).videos)
        long = [
            index
            for index, each in enumerate(seen)
            if each.clips is not None
            and (every or (timeline is None and self.is_long(each.duration)))
        ]
        timelines = self._timelines([seen[index] for index in long], head, grid)
        found = dict(zip(long, timelines, strict=True))
        return [
            self._predict(each, head, top, found.get(index, ())) for index, each in enumerate(seen)
        ]

    def embed(self, videos: Sources, *, parts: tuple[VectorPart, ...] = DEFAULT_PARTS) -> Embedded:
        """The vectors of each video that can be read, as the run represents its own videos."""
        encoder = None if self.model is None else self.model.encoder
        return embed_videos(self.reader, encoder, videos, parts=parts)

    @property
    def usual_duration(self) -> float:
        """How long the run's videos are: half of them are longer."""
        return float(np.median(self.store.durations))

    def is_long(self, duration: float) -> bool:
        """Whether a video is much longer than what the run learned from."""
        return duration > max(LONG * self.usual_duration, float(self.store.durations.max()))

    def _predict(
        self, seen: SeenVideo, head: Head, top: int, timeline: tuple[Moment, ...] | str
    ) -> Prediction:
        """What a video shows; whatever goes wrong is the reason of this video alone."""
        if seen.clips is None or isinstance(timeline, str):
            reason = timeline if isinstance(timeline, str) else seen.reason
            return Prediction(video=seen.video.id, reason=reason)
        try:
            found = head.predict(seen.clips)[0]
        except Exception as error:
            return Prediction(video=seen.video.id, reason=describe_error(error))
        order = found.argsort(descending=True, stable=True)[:top].tolist()
        classes = head.card.classes
        guesses = tuple(Guess(label=classes[k], probability=found[k].item()) for k in order)
        return Prediction(video=seen.video.id, guesses=guesses, timeline=timeline)

    def _timelines(
        self, videos: Sequence[SeenVideo], head: Head, grid: WindowGrid
    ) -> list[tuple[Moment, ...] | str]:
        """The timeline of each video, or the reason why it has none."""
        if not videos:
            return []
        moments: list[list[Moment]] = [[] for _ in videos]
        reasons: dict[int, str] = {}
        total = sum(count_windows(each, grid) for each in videos)
        listed = [each.video for each in videos]
        with (
            bar("timelines", total, "windows") as advance,
            closing(self.reader.read_windows(listed, grid)) as windows,
        ):
            for each in windows:
                try:
                    moments[each.index].append(_moment(each, head))
                except Exception as error:
                    reasons.setdefault(each.index, describe_error(error))
                advance()
        return [reasons.get(index, tuple(each)) for index, each in enumerate(moments)]

    def _to_learn_from(self) -> tuple[list[int], tuple[str, ...]]:
        """The places in the store of the labelled training videos, and their classes."""
        known = {video.id: video for video in self.catalog}
        split = "train" if "train" in self.catalog.splits else None
        labels = {
            place: known[id].label
            for place, id in enumerate(self.store.ids)
            if id in known and known[id].label is not None and known[id].split == split
        }
        classes = tuple(sorted({label for label in labels.values() if label is not None}))
        if len(classes) < 2:
            raise ProbeError(
                f"the training videos of {self.folder} have {len(classes)} labels; "
                f"predicting needs at least 2, embedding none"
            )
        return list(labels), classes

    def _to_choose_by(self, classes: tuple[str, ...]) -> list[int]:
        """The places of the split `val`, where the catalog has one beside its test split."""
        if "test" not in self.catalog.splits:
            return []  # then `val` is what the run's table is judged on
        known = {video.id: video for video in self.catalog if video.split == "val"}
        return [
            place
            for place, id in enumerate(self.store.ids)
            if id in known and known[id].label in classes
        ]

    def _videos(self, places: Sequence[int], classes: tuple[str, ...]) -> LabelledVideos:
        known = {video.id: video for video in self.catalog}
        videos = [known[self.store.ids[place]] for place in places]
        numbers = {name: number for number, name in enumerate(classes)}
        rows = np.array(places)
        return LabelledVideos(
            random=read_clips(self.store, "random", rows, self.shape),
            regular=read_clips(self.store, "regular", rows, self.shape),
            classes=torch.tensor([numbers[video.label or ""] for video in videos]),
            groups=tuple(video.group for video in videos),
        )


def count_windows(seen: SeenVideo, grid: WindowGrid) -> int:
    """How many windows a video gets; says so if that is fewer than requested."""
    requested = grid.count(seen.duration)
    count = grid.bounded(seen.duration, seen.frames).count(seen.duration)
    if count < requested:
        say(
            f"{seen.video.id}: {count:,} windows instead of {requested:,}: "
            f"it has {seen.frames:,} frames, and more windows would show nothing new"
        )
    return count


def _moment(each: WindowClips | FailedWindow, head: Head) -> Moment:
    """The likeliest label of a window."""
    if isinstance(each, FailedWindow):
        raise VideoError(each.reason)
    probability, index = head.predict(each.clips)[0].max(dim=0)
    return Moment(
        start=each.window.start,
        end=each.window.end,
        label=head.card.classes[int(index)],
        probability=probability.item(),
    )


def load_run(
    folder: str | Path,
    *,
    device: str = "auto",
    workers: int | None = None,
    row: str | None = None,
    backbone: str | None = None,
) -> TrainedRun:
    """A finished run, ready for new videos.

    `workers` processes decode (as many as cores, at most 8; 0: decode in this process). `row` names
    a row of the probes' table to predict by (the best on validation videos if not given).
    `backbone` names the run's backbone where that is a file or a model of the hub: what a run says
    about that is not trusted.
    """
    return TrainedRun(Path(folder), device=device, workers=workers, row=row, backbone=backbone)


def embed_videos(
    reader: ClipReader,
    encoder: SetEncoder | None,
    videos: Sources,
    *,
    parts: tuple[VectorPart, ...] = DEFAULT_PARTS,
) -> Embedded:
    """The vectors of new videos; without an encoder, the backbone's features alone."""
    seen = reader.read(list_new_videos(videos).videos)
    good = [(each.video, each.clips) for each in seen if each.clips is not None]
    failed = {each.video.id: each.reason or "" for each in seen if each.clips is None}
    durations = {each.video.id: each.duration for each in seen}
    counts = {clips.features.shape[1] for _, clips in good}
    if len(counts) > 1:
        raise RunError(
            f"the videos have {min(counts)} to {max(counts)} clips, not one number; "
            f"embed videos of different lengths one by one"
        )
    vectors = [
        clips.features if encoder is None else encode_clips(encoder, clips, parts)
        for _, clips in good
    ]
    empty = np.zeros((0, 0, 0), dtype=np.float32)
    return Embedded(
        video_ids=tuple(video.id for video, _ in good),
        labels=tuple(video.label for video, _ in good),
        splits=tuple(video.split for video, _ in good),
        vectors=torch.cat(vectors).numpy() if vectors else empty,
        starts=tuple(0.0 for _ in good),
        ends=tuple(durations[video.id] for video, _ in good),
        windows=tuple(None for _ in good),
        parts=("clip",) if encoder is None else parts,
        failed=failed,
    )
