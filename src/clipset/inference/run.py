"""TrainedRun: a finished run predicts the classes of new videos, and embeds them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from clipset.clips.sampling import Window, WindowGrid
from clipset.config import build, fingerprint
from clipset.data.catalog import Catalog, Video
from clipset.errors import ConfigError, OutputError, ProbeError, VideoError
from clipset.features.config import ExtractConfig
from clipset.features.extract import plan_store
from clipset.features.store import FeatureStore, open_run_store
from clipset.features.verify import check_rows
from clipset.inference import DEFAULT_TOP
from clipset.inference.clips import ClipReader, Sources, VideoClips, list_new_videos
from clipset.inference.head import (
    FORMAT,
    LABELS,
    Head,
    find_probe,
    fit_head,
    labels_fingerprint,
    load_head,
    save_head,
)
from clipset.model.config import ModelConfig
from clipset.model.encoder import SetEncoder
from clipset.probes.config import EvaluateConfig
from clipset.probes.task import open_labelled
from clipset.process.worker import as_video_error
from clipset.progress import bar, log
from clipset.representation import (
    DEFAULT_PARTS,
    VectorPart,
    VectorTable,
    encode_clips,
    pad_clips,
    part_widths,
)
from clipset.runs import read_run
from clipset.text import counted
from clipset.training.checkpoint import ScaleModel, load_model, training_settings
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


@dataclass(eq=False, kw_only=True)
class TrainedRun:
    """A finished run: `predict` gives the classes of new videos, `embed` their vectors.

    The classifier is fitted when it is first needed, and saved in the run's folder. It is the best
    probe of the run on validation videos, or the `probe` that is named: `labels` is the head that
    was exported from the page, which is also the one of a run whose videos have no labels.
    """

    folder: Path
    device: str = "auto"
    workers: int | None = None
    probe: str | None = None
    backbone: str | None = None

    def __post_init__(self) -> None:
        if self.probe not in (None, LABELS):
            find_probe(self.probe)
        self.content = read_run(self.folder)
        self.store: FeatureStore = open_run_store(self.folder)

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
        model_folder = self.folder / "model"
        return load_model(model_folder) if (model_folder / "model.json").is_file() else None

    @property
    def catalog(self) -> Catalog:
        """The run's own videos."""
        return self.store.catalog

    @cached_property
    def head(self) -> Head:
        """The classifier: the saved one, or a new one if the run has changed since."""
        splits = self.catalog.splits
        train_videos = self._labelled_videos("train" if "train" in splits else None)
        classes = tuple(sorted({video.label or "" for video in train_videos.values()}))
        labels_head = self._load_labels_head(has_labels=len(classes) > 1)
        if labels_head is not None:
            return labels_head
        recipe = self.content.get("recipe", {})
        config = build(EvaluateConfig, recipe.get("evaluate", {}), f"the recipe of {self.folder}")
        head_folder = self.folder / "head"
        if self.probe is not None:
            head_folder = self.folder / f"head-{self.probe}"
            config = replace(config, probes=(find_probe(self.probe),))
        seed = int(self.content.get("seed", 0))
        if len(classes) < 2:
            raise ProbeError(self._describe_missing_labels(len(classes)))
        val_videos = {}
        if "test" in splits:  # else the probes are tested on `val`
            labelled = self._labelled_videos("val").items()
            val_videos = {index: video for index, video in labelled if video.label in classes}
        rows = [self.store.entries[index].fingerprint for index in (*train_videos, *val_videos)]
        pretraining, model_fingerprint = None, ""
        if self.model is not None:
            model_fingerprint = self.model.card.fingerprint
            pretraining = PretrainingSetup(self.store, training_settings(self.model.card))
        identity = fingerprint(
            FORMAT, config, seed, self.store.manifest, rows, self.catalog.fingerprint,
            model_fingerprint,
        )  # fmt: skip
        head = load_head(head_folder, identity)
        if head is not None:
            return head
        check_rows(self.store)
        class_index = {label: index for index, label in enumerate(classes)}
        open_videos = partial(
            open_labelled, self.store, class_index=class_index, model=self.architecture
        )
        head = fit_head(
            open_videos(train_videos), classes, self.model, config, seed=seed, fingerprint=identity,
            validation=open_videos(val_videos) if val_videos else None, pretraining=pretraining,
        )  # fmt: skip
        try:
            save_head(head, head_folder)
        except OutputError as error:
            log(f"{error.problem}; the classifier is fitted again next time")
        return head

    def _describe_missing_labels(self, num_labels: int) -> str:
        """Why the run has no classifier."""
        if not num_labels and any(video.target is not None for video in self.catalog):
            return (
                f"the videos of {self.folder} have targets (numbers); predicting needs labels, and "
                f"`clipset embed --run {self.folder}` gives vectors for a regression of your own"
            )
        return (
            f"the training videos of {self.folder} have {counted(num_labels, 'label')}; "
            f"predicting needs at least 2, embedding none"
        )

    def _load_labels_head(self, *, has_labels: bool) -> Head | None:
        """The head that was exported from the page, if it is requested or there is no other."""
        if self.probe not in (None, LABELS) or (self.probe is None and has_labels):
            return None
        head = load_head(self.folder / f"head-{LABELS}", labels_fingerprint(self.store.manifest))
        if head is not None:
            log(f"predicting with the head {head.card.reason}")
        elif self.probe == LABELS:
            raise ProbeError(
                f"{self.folder} has no head of labels for its features; label its videos with "
                f"`clipset serve` and export them"
            )
        return head

    def _labelled_videos(self, split: str | None) -> dict[int, Video]:
        """The labelled videos of a split, by their index in the store."""
        by_id = {v.id: v for v in self.catalog if v.split == split and v.label is not None}
        return {index: by_id[id] for index, id in enumerate(self.store.ids) if id in by_id}

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
        if top < 1 or top % 1:
            raise ConfigError(f"top must be a whole number of at least 1, got {top}")
        durations = self.store.durations
        median_duration = float(np.median(durations))
        min_duration = max(LONG_FACTOR * median_duration, float(durations.max()))
        if timeline is not None or window is not None or step is not None:
            min_duration = np.inf if timeline is False else -1.0  # of none, or of every video
        window = median_duration if window is None else window
        window_grid = WindowGrid(window, window / 2 if step is None else step)
        catalog = list_new_videos(videos)
        reader, head = self.reader, self.head  # the reader may refuse, before a head is fitted
        new_videos = reader.read(catalog.videos)
        readable = [video for video in new_videos if video.clips is not None]
        long_videos = [video for video in readable if video.duration > min_duration]
        timelines = self._timelines(long_videos, head, window_grid)
        return [_predict(new, head, top, timelines.get(new.video.id, ())) for new in new_videos]

    def _timelines(
        self, videos: Sequence[VideoClips], head: Head, window_grid: WindowGrid
    ) -> dict[str, tuple[Moment, ...] | str]:
        """The timeline of each video by its id, or the reason why it has none."""
        if not videos:
            return {}
        moments: dict[str, list[Moment]] = {video.video.id: [] for video in videos}
        reasons: dict[str, str] = {}
        num_windows = sum(count_windows(video, window_grid) for video in videos)
        with (
            bar("timelines", num_windows, "windows") as advance,
            closing(self.reader.read_windows([v.video for v in videos], window_grid)) as windows,
        ):
            for window in windows:
                try:
                    moments[window.video.id].append(_predict_window(window, head))
                except Exception as error:
                    reasons.setdefault(window.video.id, str(as_video_error(error)))
                advance()
        return {id: reasons.get(id, tuple(video_moments)) for id, video_moments in moments.items()}

    def embed(
        self,
        videos: Sources,
        *,
        parts: tuple[VectorPart, ...] = DEFAULT_PARTS,
        window: Window | None = None,
    ) -> VectorTable:
        """The vectors of each readable video, as the run embeds its own videos.

        With a window, only that part of each, as if it were a video of its own.
        """
        encoder = None if self.model is None else self.model.encoder
        return embed_videos(self.reader, encoder, videos, parts=parts, window=window)


def _predict(
    video: VideoClips, head: Head, top: int, timeline: tuple[Moment, ...] | str
) -> Prediction:
    """The prediction of one video; an error is the reason of this video alone."""
    video_id = video.video.id
    if isinstance(timeline, str):
        return Prediction(video=video_id, reason=timeline)
    if video.clips is None:
        return Prediction(video=video_id, reason=video.reason)
    try:
        probabilities = head.predict(video.clips)[0]
    except Exception as error:
        return Prediction(video=video_id, reason=str(as_video_error(error)))
    class_order = probabilities.argsort(descending=True, stable=True)[:top].tolist()
    classes = tuple(
        ClassProbability(label=head.card.classes[k], probability=probabilities[k].item())
        for k in class_order
    )
    return Prediction(video=video_id, classes=classes, timeline=timeline)


def _predict_window(window: VideoClips, head: Head) -> Moment:
    """The most probable label of a window."""
    if window.clips is None or window.window is None:
        raise VideoError(window.reason or "cannot be read")
    probability, class_index = head.predict(window.clips)[0].max(dim=0)
    return Moment(
        start=window.window.start,
        end=window.window.end,
        label=head.card.classes[int(class_index)],
        probability=probability.item(),
    )


def count_windows(video: VideoClips, window_grid: WindowGrid) -> int:
    """The number of windows of a video, with a note if there are fewer than requested."""
    num_requested = window_grid.count(video.duration)
    num_windows = window_grid.bounded(video.duration, video.frames).count(video.duration)
    if num_windows < num_requested:
        log(
            f"{video.video.id}: {num_windows:,} windows instead of {num_requested:,}: "
            f"it has {video.frames:,} frames, and more windows would show nothing new"
        )
    return num_windows


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
    `probe` is the probe to predict with (default: the best on validation videos), or `labels`.
    `backbone` names the run's backbone if that is a file or a model of the hub, which a run's
    folder is not trusted to say.
    """
    return TrainedRun(
        folder=Path(folder), device=device, workers=workers, probe=probe, backbone=backbone
    )


def embed_with_backbone(
    config: ExtractConfig, videos: Sources, *, device: str = "auto"
) -> VectorTable:
    """The backbone's features of new videos, without a run; clips fit the videos."""
    manifest, network = plan_store(config, list_new_videos(videos).videos)
    made_by: dict[str, str] = {} if config.engine == "auto" else {"engine": config.engine}
    clip_reader = ClipReader(
        replace(manifest, made_by=made_by), network=network, device=device,
        workers=config.workers, timeout=config.timeout,
    )  # fmt: skip
    return embed_videos(clip_reader, None, videos)


def embed_videos(
    reader: ClipReader,
    encoder: SetEncoder | None,
    videos: Sources,
    *,
    parts: tuple[VectorPart, ...] = DEFAULT_PARTS,
    window: Window | None = None,
) -> VectorTable:
    """The vectors of new videos; without an encoder, the backbone's features alone.

    With a window, only that part of each, as if it were a video of its own.
    """
    source_videos = list_new_videos(videos).videos
    if window is None:
        new_videos = reader.read(source_videos)
    else:
        new_videos = list(reader.read_windows(source_videos, window))
    readable = [(new.video, new.clips) for new in new_videos if new.clips is not None]
    parts = ("clip",) if encoder is None else parts
    window_start = 0.0 if window is None else window.start
    vectors, valid = pad_clips([encode_clips(encoder, clips, parts)[0] for _, clips in readable])
    return VectorTable(
        video_ids=tuple(video.id for video, _ in readable),
        labels=tuple(video.label for video, _ in readable),
        splits=tuple(video.split for video, _ in readable),
        vectors=vectors.numpy(),
        valid=None if valid is None else valid.numpy(),
        starts=(window_start,) * len(readable),
        ends=tuple(window_start + new.duration for new in new_videos if new.clips is not None),
        windows=(None,) * len(readable),
        parts=parts,
        part_widths=part_widths(reader.manifest.backbone.dim, encoder, parts),
        failed={new.video.id: new.reason or "" for new in new_videos if new.clips is None},
    )
