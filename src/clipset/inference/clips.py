"""ClipReader: encodes new videos just as the videos of a store were encoded."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import Float
from torch import nn

from clipset.backbones.runtime import Engine, import_openvino, open_engine
from clipset.clips.windows import Window, WindowGrid
from clipset.data.catalog import Video
from clipset.devices import find_device
from clipset.errors import RunError
from clipset.features.config import ExtractConfig
from clipset.features.decode_pool import decode_videos
from clipset.features.encode import ClipRows, EncodedVideo, encode_chunks, encode_videos
from clipset.features.extract import decode_request, plan_store
from clipset.features.ledger import LedgerEntry
from clipset.features.provenance import load_network, name_to_load
from clipset.features.store import Manifest
from clipset.progress import bar, log
from clipset.sets.batch import ClipBatch
from clipset.sets.reading import ModelInput, make_clips


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoClips:
    """The regular clips of a new video, or the reason why it could not be read."""

    video: Video
    clips: ClipBatch | None = None
    duration: float = 0.0
    frames: int = 0  # in the file
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowClips:
    """The regular clips of a window of video `index`."""

    index: int
    window: Window
    clips: ClipBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedWindow:
    """A window of video `index` that could not be read."""

    index: int
    reason: str


class ClipReader:
    """Decodes and encodes new videos; the backbone is loaded with the first one.

    `model` is the model that the clips are for. `backbone` names the store's backbone if that is a
    file or a model of the hub.
    """

    def __init__(
        self,
        manifest: Manifest,
        model: ModelInput | None = None,
        *,
        network: nn.Module | None = None,
        device: str = "auto",
        workers: int | None = None,
        timeout: float | None = None,
        backbone: str | None = None,
    ) -> None:
        self.manifest, self.model, self.device = manifest, model, device
        self.config = ExtractConfig(workers=workers, timeout=timeout)
        self.request = replace(decode_request(manifest), random=False)
        self._network = network
        self._name = "" if network is not None else name_to_load(manifest, backbone)

    @cached_property
    def engine(self) -> Engine:
        """The backbone, ready to run."""
        network = self._network or load_network(self.manifest, self._name)
        engine = self.manifest.made_by.get("engine", "auto")
        openvino = import_openvino()
        cpu = self.device == "auto" or find_device(self.device).type == "cpu"
        if engine == "openvino" and not (openvino and cpu):
            engine = "auto"  # engines agree to a few millionths
        return open_engine(self.manifest.backbone, network, device=self.device, engine=engine)

    def read(self, videos: Sequence[Video]) -> list[VideoClips]:
        """The regular clips of every video, in order."""
        clips: dict[int, VideoClips] = {}
        engine, ids = self.engine, [video.id for video in videos]
        with (
            bar("encoding", len(videos), "videos") as advance,
            decode_videos(
                videos,
                self.request,
                workers=min(self.config.num_workers, len(videos)),
                timeout=self.config.timeout_seconds,
            ) as results,
        ):
            for encoded in encode_videos(engine, results, ids, isolate=True):
                clips[encoded.index] = self._video_clips(videos[encoded.index], encoded)
                advance()
        return [clips[index] for index in range(len(videos))]

    def read_windows(
        self, videos: Sequence[Video], grid: WindowGrid
    ) -> Generator[WindowClips | FailedWindow]:
        """The regular clips of the windows of videos, as if each window were a video of its own.

        Windows of one video come in the order of time, among those of others.
        """
        with decode_videos(
            videos,
            replace(self.request, grid=grid),
            workers=min(self.config.num_workers, len(videos)),
            timeout=self.config.timeout_seconds,
        ) as results:
            ids = [video.id for video in videos]
            for encoded in encode_chunks(self.engine, results, ids, isolate=True):
                yield self._window_clips(encoded)

    def _video_clips(self, video: Video, encoded: EncodedVideo) -> VideoClips:
        rows, facts = encoded.rows, encoded.facts
        if rows is None or facts is None:
            return VideoClips(video=video, reason=encoded.reason)
        if (damage := encoded.update(LedgerEntry(ordinal=0, id=video.id)).damage) is not None:
            log(f"damaged {video.id}: {damage}")
        try:
            clips = self._make_clips(rows, facts.duration)
        except RunError as error:
            return VideoClips(video=video, reason=str(error))
        return VideoClips(
            video=video, clips=clips, duration=facts.duration, frames=facts.frames_found
        )

    def _window_clips(self, encoded: EncodedVideo) -> WindowClips | FailedWindow:
        rows, facts = encoded.rows, encoded.facts
        if rows is None or facts is None or facts.window is None:
            return FailedWindow(index=encoded.index, reason=encoded.reason or "cannot be read")
        window = facts.window
        try:
            clips = self._make_clips(rows, window.end - window.start)
        except RunError as error:
            return FailedWindow(index=encoded.index, reason=str(error))
        return WindowClips(index=encoded.index, window=window, clips=clips)

    def _make_clips(self, rows: ClipRows, duration: float) -> ClipBatch:
        """The clips of one video, as if they were read from a store."""
        features = self._round(rows.features)[None]  # (1, V, D)
        return make_clips(features, rows.boxes[None], np.array([duration]), self.model)

    def _round(self, features: Float[np.ndarray, "V D"]) -> Float[np.ndarray, "V D"]:
        """Features with the precision of the store."""
        with np.errstate(over="ignore"):
            rounded = features.astype(self.manifest.dtype).astype(np.float32)
        if not np.isfinite(rounded).all():
            raise RunError(
                f"a feature of {np.abs(features).max():g} overflows the run's {self.manifest.dtype}"
            )
        return rounded


def open_backbone(config: ExtractConfig, *, device: str = "auto") -> ClipReader:
    """A reader with a backbone, without a run."""
    manifest, network = plan_store(config)
    made_by: dict[str, str] = {} if config.engine == "auto" else {"engine": config.engine}
    return ClipReader(
        replace(manifest, made_by=made_by),
        network=network,
        device=device,
        workers=config.workers,
        timeout=config.timeout,
    )
