"""ClipReader: shows new videos to backbones just as the videos of a store were shown to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import Float
from torch import nn

from clipset.backbones.engine import Engine, import_openvino, open_engine
from clipset.backbones.registry import BackboneSpec
from clipset.clips.cut import cut_plans
from clipset.clips.sampling import ClipPlan, frames_at, regular_clips
from clipset.devices import find_device
from clipset.errors import ClipError, RunError
from clipset.features.config import ExtractConfig
from clipset.features.cutting import CutRequest
from clipset.features.extract import count_workers, cut_request, plan
from clipset.features.looking import look
from clipset.features.pool import cut_videos
from clipset.features.provenance import load_network, names_to_load
from clipset.features.store import Manifest, made_by_key
from clipset.model.config import ModelConfig
from clipset.progress import bar
from clipset.sets.clips import VideoClips
from clipset.sets.reading import ModelInput, form_for
from clipset.videos.catalog import Video
from clipset.videos.decode import VideoInfo, open_video
from clipset.videos.torchcodec import DecoderName, find_decoder, import_torchcodec


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenVideo:
    """A new video's regular clips as a model sees them, or the reason why there are none."""

    video: Video
    clips: VideoClips | None = None
    duration: float = 0.0
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A piece of a video, in seconds."""

    start: float
    end: float


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
            cut_request(manifest, _decoder_for(manifest)),
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
            for each in look(engines, outcomes, [video.id for video in videos]):
                video = videos[each.place]
                if each.rows is None or each.facts is None:
                    seen[each.place] = SeenVideo(video=video, reason=each.reason)
                else:
                    rows = [each.rows.features, *(other.features for other in each.rows.others)]
                    clips = self._clips(rows, each.rows.boxes, each.facts.duration)
                    seen[each.place] = SeenVideo(
                        video=video, clips=clips, duration=each.facts.duration
                    )
                advance()
        return [seen[place] for place in range(len(videos))]

    def read_windows(self, video: Video, windows: Sequence[Window]) -> Iterator[VideoClips]:
        """The regular clips of pieces of a video, as if each piece were a video of its own."""
        decoder = self.request.decoder
        with open_video(video.path, end=video.end, decoder=decoder) as reader:
            for window in windows:
                plans = {
                    shape: plan_window(reader.info, window, replace(self.request, frames=shape[0]))
                    for shape in self.request.shapes
                }
                cut = cut_plans(reader, [(each, size) for (_, size), each in plans.items()])
                pixels = dict(zip(plans, cut, strict=True))
                features = [
                    engine.features(pixels[engine.spec.frames, engine.spec.size]).numpy()
                    for engine in self.engines
                ]
                first = plans[self.request.shapes[0]]
                boxes = np.array([box.as_row() for box in first.boxes], dtype=np.float32)  # (V, 7)
                yield self._clips(features, boxes, window.end - window.start)

    def _clips(
        self,
        features: Sequence[Float[np.ndarray, "V _"]],
        boxes: Float[np.ndarray, "V 7"],
        duration: float,
    ) -> VideoClips:
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


def _decoder_for(manifest: Manifest) -> DecoderName:
    """The decoder of a store if it is here: the other one's colours are almost the same."""
    kept = manifest.decoder
    return "torchcodec" if kept == "torchcodec" and import_torchcodec() is not None else "pyav"


def plan_window(info: VideoInfo, window: Window, request: CutRequest) -> ClipPlan:
    """The regular clips of a piece of a video: frames of the whole, boxes within the piece."""
    first, last = frames_at(np.array([window.start, window.end]), info.frame_times).tolist()
    piece = VideoInfo(
        width=info.width,
        height=info.height,
        frame_times=info.frame_times[first : last + 1] - window.start,
        duration=window.end - window.start,
        expected_frames=None,
        codec=info.codec,
    )
    inner = regular_clips(piece, request.sampling, span=request.span, frames=request.frames)
    return ClipPlan(boxes=inner.boxes, frames=inner.frames + first)


def spread_windows(duration: float, window: float, step: float) -> list[Window]:
    """Pieces of equal length, `step` apart; the last one ends with the video."""
    if not (0 < window < float("inf") and 0 < step < float("inf")):
        raise ClipError(f"window and step must be more than 0 s, got {window} and {step}")
    if duration <= window:
        return [Window(start=0.0, end=duration)]
    latest = duration - window
    starts = [*np.arange(0.0, latest - 1e-9, step).tolist(), latest]
    return [Window(start=start, end=start + window) for start in starts]


def open_backbone(config: ExtractConfig, *, seed: int = 0, device: str = "auto") -> ClipReader:
    """A reader with a backbone by its name, without any run; of several, side by side."""
    manifest, networks = plan(config, seed)
    wanted = {"engine": config.engine, "decoder": find_decoder(config.decoder)}
    made_by: dict[str, str] = {what: name for what, name in wanted.items() if name != "auto"}
    names = [spec.name for spec in manifest.backbones]
    return ClipReader(
        replace(manifest, made_by=made_by),
        ModelConfig(features="+".join(names)) if len(names) > 1 else None,
        networks=networks,
        device=device,
        workers=config.workers,
        timeout=config.timeout,
    )
