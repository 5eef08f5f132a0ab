"""ClipReader: shows new videos to a backbone just as the videos of a store were shown to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float
from torch import nn

from clipset.backbones.engine import Engine, import_openvino, open_engine
from clipset.backbones.registry import load_as
from clipset.clips.cut import cut_clips
from clipset.clips.sampling import ClipPlan, frames_at, regular_clips
from clipset.devices import find_device
from clipset.errors import ClipError, RunError
from clipset.features.config import ExtractConfig
from clipset.features.cutting import CutRequest
from clipset.features.extract import count_workers, cut_request, plan
from clipset.features.looking import look
from clipset.features.pool import cut_videos
from clipset.features.store import Manifest
from clipset.features.writer import difference
from clipset.progress import bar
from clipset.sets.boxes import paper_boxes
from clipset.sets.clips import VideoClips
from clipset.videos.catalog import Video
from clipset.videos.decode import VideoInfo, open_video

IMPORTED = "imported"  # what a store of imported features calls its backbone


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenVideo:
    """A new video's regular clips as the backbone saw them, or the reason why there are none."""

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
    """Opens its backbone when the first video comes, and keeps it for the next ones."""

    def __init__(
        self,
        manifest: Manifest,
        *,
        network: nn.Module | None = None,
        device: str = "auto",
        workers: int | None = None,
        timeout: float = 300.0,
    ) -> None:
        self.manifest, self.device = replace(manifest, others=()), device
        self.config = ExtractConfig(workers=workers, timeout=timeout)
        self.request = replace(cut_request(self.manifest), random=False)
        self._network = network

    @cached_property
    def engine(self) -> Engine:
        """The backbone of the manifest, ready to run."""
        wanted = self.manifest.backbone
        network = self._network or load_same_backbone(self.manifest)
        engine = self.manifest.made_by.get("engine", "auto")
        openvino = import_openvino()
        cpu = self.device == "auto" or find_device(self.device).type == "cpu"
        if engine == "openvino" and not (openvino and cpu):
            engine = "auto"  # engines agree to a few millionths
        return open_engine(wanted, network, device=self.device, engine=engine)

    def read(self, videos: Sequence[Video]) -> list[SeenVideo]:
        """The regular clips of every video, in order; one that cannot be read says why."""
        seen: dict[int, SeenVideo] = {}
        engine = self.engine
        with (
            bar("looking", len(videos), "videos") as advance,
            cut_videos(
                videos,
                self.request,
                workers=min(count_workers(self.config), len(videos)),
                timeout=self.config.timeout,
            ) as outcomes,
        ):
            for each in look(engine, outcomes, [video.id for video in videos]):
                video = videos[each.place]
                if each.rows is None or each.facts is None:
                    seen[each.place] = SeenVideo(video=video, reason=each.reason)
                else:
                    clips = self._clips(each.rows.features, each.rows.boxes, each.facts.duration)
                    seen[each.place] = SeenVideo(
                        video=video, clips=clips, duration=each.facts.duration
                    )
                advance()
        return [seen[place] for place in range(len(videos))]

    def read_windows(self, video: Video, windows: Sequence[Window]) -> Iterator[VideoClips]:
        """The regular clips of pieces of a video, as if each piece were a video of its own."""
        with open_video(video.path, end=video.end) as reader:
            for window in windows:
                wanted = plan_window(reader.info, window, self.request)
                pixels = cut_clips(reader, wanted, self.request.size)
                boxes = np.array([box.as_row() for box in wanted.boxes], dtype=np.float32)  # (V, 7)
                features = self.engine.features(pixels).numpy()
                yield self._clips(features, boxes, window.end - window.start)

    def _clips(
        self,
        features: Float[np.ndarray, "V D"],
        boxes: Float[np.ndarray, "V 7"],
        duration: float,
    ) -> VideoClips:
        """One video's rows as they would come out of a store."""
        with np.errstate(over="ignore"):
            stored = features.astype(self.manifest.dtype).astype(np.float32)
        if not np.isfinite(stored).all():
            raise RunError(f"a feature of {np.abs(features).max():g} does not fit the run's store")
        places = paper_boxes(boxes[None], np.array([duration]))  # (1, V, 6)
        return VideoClips(torch.from_numpy(stored)[None], torch.from_numpy(places))


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
    """A reader with a backbone by its name, without any run."""
    manifest, networks = plan(config, seed)
    made_by: dict[str, str] = {} if config.engine == "auto" else {"engine": config.engine}
    return ClipReader(
        replace(manifest, made_by=made_by),
        network=networks[0],
        device=device,
        workers=config.workers,
        timeout=config.timeout,
    )


def load_same_backbone(manifest: Manifest) -> nn.Module:
    """The network that made a store; an error says in what the one that is here differs."""
    wanted = manifest.backbone
    if wanted.name == IMPORTED:
        raise RunError(
            "the run's features were imported: no backbone is known that could make more"
        )
    spec, network = load_as(wanted, manifest.given_name(0))
    if spec != wanted:
        found = replace(manifest, backbone=spec)
        raise RunError(f"the run's store was made {difference(manifest, found)}")
    return network
