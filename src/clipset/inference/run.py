"""TrainedRun: a finished run predicts the classes of new videos, and embeds them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from clipset.clips.windows import WindowGrid
from clipset.config import build, fingerprint
from clipset.data.catalog import Catalog, read_catalog_table
from clipset.errors import OutputError, ProbeError, RunError, VideoError
from clipset.features.decode_worker import describe_error
from clipset.features.store import FeatureStore, open_store
from clipset.inference import DEFAULT_TOP
from clipset.inference.clips import ClipReader, FailedWindow, VideoClips, WindowClips
from clipset.inference.head import FORMAT, Head, find_probe, fit_head, load_head, save_head
from clipset.inference.sources import Sources, list_new_videos
from clipset.model.config import ModelConfig
from clipset.model.encoder import SetEncoder
from clipset.probes.config import EvaluateConfig
from clipset.probes.task import LabelledVideos
from clipset.progress import bar, log
from clipset.representation import DEFAULT_PARTS, VectorPart, VectorTable, encode_clips
from clipset.runs import read_run
from clipset.sets.reading import read_clips
from clipset.training.checkpoint import ScaleModel, load_model, read_card, read_training
from clipset.training.joint import PretrainingSetup

LONG_FACTOR = 3.0  # a video this many times longer than the median training video gets a timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassProbability:
    """A label and its probability."""

    label: str
    probability: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The most probable label of a window of a video, from `start` to `end` seconds."""

    start: float
    end: float
    label: str
    probability: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The most probable classes of a video, or the reason why it could not be read.

    A long video has a timeline, too.
    """

    video: str
    classes: tuple[ClassProbability, ...] = ()
    timeline: tuple[Moment, ...] = ()
    reason: str | None = None

    @property
    def label(self) -> str | None:
        """The most probable label."""
        return self.classes[0].label if self.classes else None

    @property
    def probability(self) -> float | None:
        """Its probability."""
        return self.classes[0].probability if self.classes else None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewVectors(VectorTable):
    """Vectors of new videos; `failed` holds the reasons of unreadable ones."""

    failed: dict[str, str] = field(default_factory=dict)


class TrainedRun:
    """A finished run: `predict` gives the classes of new videos, `embed` their vectors.

    The classifier is fitted when it is first needed, and saved in the run's folder. It is the best
    probe of the run on validation videos, or the `probe` that is named.
    """

    def __init__(
        self,
        folder: Path,
        *,
        device: str = "auto",
        workers: int | None = None,
        probe: str | None = None,
        backbone: str | None = None,
    ) -> None:
        self.folder, self.probe = folder, None if probe is None else find_probe(probe)
        self.content = read_run(folder)
        table = folder / "catalog.csv"
        catalog = read_catalog_table(table) if table.is_file() else None
        self.store: FeatureStore = open_store(folder / "store", catalog)
        self.device, self.workers, self.backbone = device, workers, backbone

    @cached_property
    def reader(self) -> ClipReader:
        """Encodes new videos with the run's backbone."""
        return ClipReader(
            self.store.manifest,
            self.architecture,
            device=self.device,
            workers=self.workers,
            backbone=self.backbone,
        )

    @property
    def architecture(self) -> ModelConfig | None:
        """The architecture of the model, if the run has one."""
        return None if self.model is None else self.model.config

    @cached_property
    def model(self) -> ScaleModel | None:
        """The pre-trained model, if the run has one."""
        if not (self.folder / "model" / "model.json").is_file():
            return None
        return load_model(self.folder / "model")

    @cached_property
    def catalog(self) -> Catalog:
        """The run's own videos."""
        return read_catalog_table(self.folder / "catalog.csv")

    @cached_property
    def head(self) -> Head:
        """The classifier: the saved one, or a new one if the run has changed since."""
        folder = self.folder / ("head" if self.probe is None else f"head-{self.probe}")
        recipe = self.content.get("recipe", {})
        config = build(EvaluateConfig, recipe.get("evaluate", {}), f"the recipe of {self.folder}")
        if self.probe is not None:
            config = replace(config, probes=(self.probe,))
        seed = int(self.content.get("seed", 0))
        train, classes = self._training_videos()
        validation = self._validation_videos(classes)
        identity = fingerprint(
            FORMAT,
            config,
            seed,
            self.store.manifest,
            [self.store.entries[index].checksum for index in (*train, *validation)],
            self.catalog.fingerprint,
            "" if self.model is None else read_card(self.folder / "model").fingerprint,
        )
        head = load_head(folder, identity)
        if head is None:
            head = fit_head(
                self._read_labelled(train, classes), classes, self.model, config, seed=seed,
                fingerprint=identity, pretraining=self._pretraining,
                validation=self._read_labelled(validation, classes) if validation else None,
            )  # fmt: skip
            try:
                save_head(head, folder)
            except OutputError as error:
                log(f"{error.problem}; the classifier is fitted again next time")
        return head

    def predict(
        self,
        videos: Sources,
        *,
        top: int = DEFAULT_TOP,
        window: float | None = None,
        step: float | None = None,
        timeline: bool | None = None,
    ) -> list[Prediction]:
        """The `top` most probable classes of each video, and a timeline of long ones.

        A timeline consists of windows of `window` seconds (default: the median duration of the
        run's videos), `step` seconds apart (default: half a window). `timeline` requests one for
        every video, or for none; by default every video if a window or step is given, else the
        long ones.
        """
        if top < 1:
            raise RunError(f"top must be at least 1, got {top}")
        every = timeline if timeline is not None else (window, step) != (None, None)
        window = self.median_duration if window is None else window
        step = window / 2 if step is None else step
        grid = WindowGrid(window, step)
        reader, head = self.reader, self.head  # the reader may refuse, before a head is fitted
        new_videos = reader.read(list_new_videos(videos).videos)
        indices = [
            index
            for index, video in enumerate(new_videos)
            if video.clips is not None
            and (every or (timeline is None and self.is_long(video.duration)))
        ]
        timelines = self._timelines([new_videos[index] for index in indices], head, grid)
        by_index = dict(zip(indices, timelines, strict=True))
        return [
            self._predict(video, head, top, by_index.get(index, ()))
            for index, video in enumerate(new_videos)
        ]

    def embed(
        self, videos: Sources, *, parts: tuple[VectorPart, ...] = DEFAULT_PARTS
    ) -> NewVectors:
        """The vectors of each readable video, as the run embeds its own videos."""
        encoder = None if self.model is None else self.model.encoder
        return embed_videos(self.reader, encoder, videos, parts=parts)

    @property
    def median_duration(self) -> float:
        """The median duration of the run's videos, in seconds."""
        return float(np.median(self.store.durations))

    def is_long(self, duration: float) -> bool:
        """Whether a video is much longer than those of the run."""
        longest = float(self.store.durations.max())
        return duration > max(LONG_FACTOR * self.median_duration, longest)

    def _predict(
        self, video: VideoClips, head: Head, top: int, timeline: tuple[Moment, ...] | str
    ) -> Prediction:
        """The prediction of one video; an error is the reason of this video alone."""
        name = video.video.id
        if video.clips is None or isinstance(timeline, str):
            reason = timeline if isinstance(timeline, str) else video.reason
            return Prediction(video=name, reason=reason)
        try:
            probabilities = head.predict(video.clips)[0]
        except Exception as error:
            return Prediction(video=name, reason=describe_error(error))
        order = probabilities.argsort(descending=True, stable=True)[:top].tolist()
        classes = tuple(
            ClassProbability(label=head.card.classes[k], probability=probabilities[k].item())
            for k in order
        )
        return Prediction(video=name, classes=classes, timeline=timeline)

    def _timelines(
        self, videos: Sequence[VideoClips], head: Head, grid: WindowGrid
    ) -> list[tuple[Moment, ...] | str]:
        """The timeline of each video, or the reason why it has none."""
        if not videos:
            return []
        moments: list[list[Moment]] = [[] for _ in videos]
        reasons: dict[int, str] = {}
        total = sum(count_windows(video, grid) for video in videos)
        with (
            bar("timelines", total, "windows") as advance,
            closing(self.reader.read_windows([v.video for v in videos], grid)) as windows,
        ):
            for window in windows:
                try:
                    moments[window.index].append(_moment(window, head))
                except Exception as error:
                    reasons.setdefault(window.index, describe_error(error))
                advance()
        return [reasons.get(index, tuple(own)) for index, own in enumerate(moments)]

    @property
    def _pretraining(self) -> PretrainingSetup | None:
        if self.model is None:
            return None
        return PretrainingSetup(self.store, read_training(self.folder / "model"))

    def _training_videos(self) -> tuple[list[int], tuple[str, ...]]:
        """The indices in the store of the labelled training videos, and their classes."""
        by_id = {video.id: video for video in self.catalog}
        split = "train" if "train" in self.catalog.splits else None
        labels = {
            index: by_id[id].label
            for index, id in enumerate(self.store.ids)
            if id in by_id and by_id[id].label is not None and by_id[id].split == split
        }
        classes = tuple(sorted({label for label in labels.values() if label is not None}))
        if len(classes) < 2:
            raise ProbeError(
                f"the training videos of {self.folder} have {len(classes)} labels; "
                f"predicting needs at least 2, embedding none"
            )
        return list(labels), classes

    def _validation_videos(self, classes: tuple[str, ...]) -> list[int]:
        """The indices of the split `val`, if it is not what the run's probes are tested on."""
        if "test" not in self.catalog.splits:
            return []
        by_id = {video.id: video for video in self.catalog if video.split == "val"}
        return [
            index
            for index, id in enumerate(self.store.ids)
            if id in by_id and by_id[id].label in classes
        ]

    def _read_labelled(self, indices: Sequence[int], classes: tuple[str, ...]) -> LabelledVideos:
        by_id = {video.id: video for video in self.catalog}
        videos = [by_id[self.store.ids[index]] for index in indices]
        class_index = {name: index for index, name in enumerate(classes)}
        rows = np.array(indices)
        return LabelledVideos(
            random=read_clips(self.store, "random", rows, self.architecture),
            regular=read_clips(self.store, "regular", rows, self.architecture),
            classes=torch.tensor([class_index[video.label or ""] for video in videos]),
            groups=tuple(video.group for video in videos),
        )


def count_windows(video: VideoClips, grid: WindowGrid) -> int:
    """The number of windows of a video, with a note if there are fewer than requested."""
    requested = grid.count(video.duration)
    count = grid.bounded(video.duration, video.frames).count(video.duration)
    if count < requested:
        log(
            f"{video.video.id}: {count:,} windows instead of {requested:,}: "
            f"it has {video.frames:,} frames, and more windows would show nothing new"
        )
    return count


def _moment(window: WindowClips | FailedWindow, head: Head) -> Moment:
    """The most probable label of a window."""
    if isinstance(window, FailedWindow):
        raise VideoError(window.reason)
    probability, index = head.predict(window.clips)[0].max(dim=0)
    return Moment(
        start=window.window.start,
        end=window.window.end,
        label=head.card.classes[int(index)],
        probability=probability.item(),
    )


def load_run(
    folder: str | Path,
    *,
    device: str = "auto",
    workers: int | None = None,
    probe: str | None = None,
    backbone: str | None = None,
) -> TrainedRun:
    """A finished run, ready for new videos.

    `workers` processes decode (default: as many as cores, at most 8; 0: decode in this process).
    `probe` is the probe to predict with (default: the best on validation videos). `backbone` names
    the run's backbone if that is a file or a model of the hub, which a run's folder is not trusted
    to say.
    """
    return TrainedRun(Path(folder), device=device, workers=workers, probe=probe, backbone=backbone)


def embed_videos(
    reader: ClipReader,
    encoder: SetEncoder | None,
    videos: Sources,
    *,
    parts: tuple[VectorPart, ...] = DEFAULT_PARTS,
) -> NewVectors:
    """The vectors of new videos; without an encoder, the backbone's features alone."""
    new_videos = reader.read(list_new_videos(videos).videos)
    readable = [(new.video, new.clips) for new in new_videos if new.clips is not None]
    failed = {new.video.id: new.reason or "" for new in new_videos if new.clips is None}
    durations = {new.video.id: new.duration for new in new_videos}
    counts = {clips.features.shape[1] for _, clips in readable}
    if len(counts) > 1:
        raise RunError(
            f"the videos have {min(counts)} to {max(counts)} clips, not one number; "
            f"embed videos of different lengths one by one"
        )
    vectors = [
        clips.features if encoder is None else encode_clips(encoder, clips, parts)
        for _, clips in readable
    ]
    empty = np.zeros((0, 0, 0), dtype=np.float32)
    return NewVectors(
        video_ids=tuple(video.id for video, _ in readable),
        labels=tuple(video.label for video, _ in readable),
        splits=tuple(video.split for video, _ in readable),
        vectors=torch.cat(vectors).numpy() if vectors else empty,
        starts=tuple(0.0 for _ in readable),
        ends=tuple(durations[video.id] for video, _ in readable),
        windows=tuple(None for _ in readable),
        parts=("clip",) if encoder is None else parts,
        failed=failed,
    )
