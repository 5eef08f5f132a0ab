"""ClipReader: shows new videos to backbones just as the videos of a store were shown to them."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import Float
from torch import nn

from clipset.backbones.registry import BackboneSpec
from clipset.backbones.runtime import Engine, import_openvino, open_engine
from clipset.clips.windows import Window, WindowGrid
from clipset.data.catalog import Video
from clipset.devices import find_device
from clipset.errors import RunError
from clipset.features.config import ExtractConfig
from clipset.features.decode_pool import cut_videos
from clipset.features.encode import Seen, look, look_at_pieces
from clipset.features.extract import count_workers, cut_request, plan
from clipset.features.ledger import Entry
from clipset.features.provenance import load_network, names_to_load
from clipset.features.store import Manifest, made_by_key
from clipset.model.config import ModelConfig
from clipset.progress import bar, say
from clipset.sets.batch import ClipBatch
from clipset.sets.reading import ModelInput, form_for


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenVideo:
    """A new video's regular clips as a model sees them, or the reason why there are none."""

    video: Video
    clips: ClipBatch | None = None
    duration: float = 0.0
    frames: int = 0  # in the file
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowClips:
    """The regular clips of one of the `count` windows of video `index`."""

    index: int
    window: Window
    clips: ClipBatch
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedWindow:
    """Why a window of video `index` could not be read."""

    index: int
    reason: str


class ClipReader:
    """Opens the backbones when the first video comes, and keeps them for the next ones.

    `wanted` says which backbones of the store a model wants to see, and how; the first, if none.
    `backbone` names those of the store where they are files or models of the hub.
    """

    def __init__(
        self,
        manifest: Manifest,
        wanted: ModelInput | None = None,
        *,
        networks: Sequence[nn.Module] = (),
        device: str = "auto",
        workers: int | None = None,
        timeout: float | None = None,
        backbone: str | None = None,
    ) -> None:
        self.manifest, self.device = manifest, device
        self.form = form_for(manifest, wanted)
        self.specs = self.form.specs(manifest)
        self.config = ExtractConfig(workers=workers, timeout=timeout)
        shapes = list(dict.fromkeys((spec.frames, spec.size) for spec in self.specs))
        (frames, size), *more = shapes
        self.request = replace(
            cut_request(manifest),
            frames=frames,
            size=size,
            more=tuple(more),
            random=False,
        )
        self._networks = networks
        indices = [manifest.place_of(spec.name) for spec in self.specs]
        self._names = {} if networks else names_to_load(manifest, backbone, indices)

    @cached_property
    def engines(self) -> list[Engine]:
        """The backbones, ready to run."""
        return [self._open(spec) for spec in self.specs]

    def _open(self, spec: BackboneSpec) -> Engine:
        place = self.manifest.place_of(spec.name)
        if self._networks:
            network = self._networks[place]
        else:
            network = load_network(self.manifest, place, self._names[place])
        engine = self.manifest.made_by.get(made_by_key("engine", spec, place), "auto")
        openvino = import_openvino()
        cpu = self.device == "auto" or find_device(self.device).type == "cpu"
        if engine == "openvino" and not (openvino and cpu):
            engine = "auto"  # engines agree to a few millionths
        return open_engine(spec, network, device=self.device, engine=engine)

    def read(self, videos: Sequence[Video]) -> list[SeenVideo]:
        """The regular clips of every video, in order; one that cannot be read says why."""
        seen: dict[int, SeenVideo] = {}
        engines = self.engines
        with (
            bar("looking", len(videos), "videos") as advance,
            cut_videos(
                videos,
                self.request,
                workers=min(count_workers(self.config), len(videos)),
                timeout=self.config.seconds_per_video,
            ) as outcomes,
        ):
            for each in look(engines, outcomes, [video.id for video in videos], isolate=True):
                seen[each.place] = self._read_one(videos[each.place], each)
                advance()
        return [seen[place] for place in range(len(videos))]

    def _read_one(self, video: Video, seen: Seen) -> SeenVideo:
        """What is known of a video: its clips, or the reason why there are none."""
        if seen.rows is None or seen.facts is None:
            return SeenVideo(video=video, reason=seen.reason)
        if (damage := seen.note(Entry(ordinal=0, id=video.id)).damage) is not None:
            say(f"damaged {video.id}: {damage}")
        rows = [seen.rows.features, *(other.features for other in seen.rows.others)]
        try:
            clips = self._clips(rows, seen.rows.boxes, seen.facts.duration)
        except RunError as error:
            return SeenVideo(video=video, reason=str(error))
        return SeenVideo(
            video=video,
            clips=clips,
            duration=seen.facts.duration,
            frames=seen.facts.frames_found,
        )

    def read_windows(
        self, videos: Sequence[Video], grid: WindowGrid
    ) -> Generator[WindowClips | FailedWindow]:
        """The regular clips of the windows of videos, as if each window were a video of its own.

        Windows of one video come in the order of time, among those of others.
        """
        with cut_videos(
            videos,
            replace(self.request, grid=grid),
            workers=min(count_workers(self.config), len(videos)),
            timeout=self.config.seconds_per_video,
        ) as outcomes:
            ids = [video.id for video in videos]
            for each in look_at_pieces(self.engines, outcomes, ids, isolate=True):
                yield self._window(each)

    def _window(self, seen: Seen) -> WindowClips | FailedWindow:
        if seen.rows is None or seen.facts is None or seen.facts.window is None:
            return FailedWindow(index=seen.place, reason=seen.reason or "cannot be read")
        window = seen.facts.window
        rows = [seen.rows.features, *(other.features for other in seen.rows.others)]
        try:
            clips = self._clips(rows, seen.rows.boxes, window.end - window.start)
        except RunError as error:
            return FailedWindow(index=seen.place, reason=str(error))
        return WindowClips(index=seen.place, window=window, clips=clips, count=seen.facts.pieces)

    def _clips(
        self,
        features: Sequence[Float[np.ndarray, "V _"]],
        boxes: Float[np.ndarray, "V 7"],
        duration: float,
    ) -> ClipBatch:
        """One video's rows as they would come out of a store."""
        stored = [self._stored(each)[None] for each in features]  # each (1, V, D)
        return self.form.clips(stored, boxes[None], np.array([duration]))

    def _stored(self, features: Float[np.ndarray, "V D"]) -> Float[np.ndarray, "V D"]:
        """Features as precise as a store keeps them."""
        with np.errstate(over="ignore"):
            stored = features.astype(self.manifest.dtype).astype(np.float32)
        if not np.isfinite(stored).all():
            raise RunError(f"a feature of {np.abs(features).max():g} does not fit the run's store")
        return stored


def open_backbone(config: ExtractConfig, *, seed: int = 0, device: str = "auto") -> ClipReader:
    """A reader with a backbone by its name, without any run; of several, side by side."""
    manifest, networks = plan(config, seed)
    made_by: dict[str, str] = {} if config.engine == "auto" else {"engine": config.engine}
    names = [spec.name for spec in manifest.backbones]
    return ClipReader(
        replace(manifest, made_by=made_by),
        ModelConfig(features="+".join(names)) if len(names) > 1 else None,
        networks=networks,
        device=device,
        workers=config.workers,
        timeout=config.timeout,
    )
