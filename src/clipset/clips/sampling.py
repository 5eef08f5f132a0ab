"""Which clips of a video are looked at: random ones to learn from, regular ones to judge by."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from numpy.random import Generator

from clipset.clips.box import ClipBox
from clipset.clips.config import Sampling
from clipset.videos.decode import VideoInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipPlan:
    """What has to be cut from one video: V boxes, and the T frames that each one shows."""

    boxes: tuple[ClipBox, ...]
    frames: Int[np.ndarray, "V T"]

    def __len__(self) -> int:
        return len(self.boxes)

    def __add__(self, other: ClipPlan) -> ClipPlan:
        frames = np.concatenate([self.frames, other.frames])  # (V + V', T)
        return ClipPlan(boxes=self.boxes + other.boxes, frames=frames)


def video_generator(seed: int, video_id: str) -> Generator:
    """The chance of one video: depends on the seed and the id, never on the order of the work."""
    digest = hashlib.sha256(video_id.encode("utf-8", errors="surrogateescape")).digest()
    return np.random.default_rng([seed, int.from_bytes(digest[:8], "big")])


def sample_random_clips(
    info: VideoInfo, sampling: Sampling, *, span: float, frames: int, generator: Generator
) -> ClipPlan:
    """Clips at uniformly random times, each with its own random crop and flip."""
    boxes = []
    for _ in range(sampling.clips):
        start = generator.uniform(0.0, 1.0) * max(info.duration - span, 0.0)
        top, left, bottom, right = _random_crop(info, sampling, generator)
        flipped = bool(generator.random() < 0.5) and sampling.flip
        boxes.append(
            ClipBox(
                start=start,
                end=_end(start, span, info),
                top=top,
                left=left,
                bottom=bottom,
                right=right,
                flipped=flipped,
            )
        )
    return ClipPlan(boxes=tuple(boxes), frames=_frames_of(boxes, info, span, frames))


def regular_clips(info: VideoInfo, sampling: Sampling, *, span: float, frames: int) -> ClipPlan:
    """`times` x `places` clips that cover the video: the same ones on every call."""
    latest = max(info.duration - span, 0.0)
    starts = np.linspace(0.0, latest, sampling.times) if sampling.times > 1 else [latest / 2]
    crops = _regular_crops(info, sampling.places)
    boxes = [
        ClipBox(
            start=float(start),
            end=_end(float(start), span, info),
            top=top,
            left=left,
            bottom=bottom,
            right=right,
        )
        for start in starts
        for top, left, bottom, right in crops
    ]
    return ClipPlan(boxes=tuple(boxes), frames=_frames_of(boxes, info, span, frames))


def frames_at(
    times: Float[np.ndarray, "*shape"], frame_times: Float[np.ndarray, " N"]
) -> Int[np.ndarray, "*shape"]:
    """The frame on the screen at each time: the last one that has begun; the last frame stays."""
    # A millionth of a second forgives the rounding of timestamps that fall on a frame's very start.
    found = np.searchsorted(frame_times, times + 1e-6, side="right") - 1
    return np.clip(found, 0, len(frame_times) - 1)


def _frames_of(
    boxes: list[ClipBox], info: VideoInfo, span: float, frames: int
) -> Int[np.ndarray, "V T"]:
    starts = np.array([box.start for box in boxes])[:, None]  # (V, 1)
    return frames_at(starts + np.arange(frames) * (span / frames), info.frame_times)  # (V, T)


def _end(start: float, span: float, info: VideoInfo) -> float:
    """A clip of a video shorter than the span ends with the video."""
    return min(start + span, max(info.duration, start + 1e-3))


def _random_crop(
    info: VideoInfo, sampling: Sampling, generator: Generator
) -> tuple[float, float, float, float]:
    """A crop of random area and shape at a random place: top, left, bottom, right as fractions."""
    side = min(info.width, info.height)
    area = generator.uniform(*sampling.area) * side * side
    low, high = math.log(sampling.aspect[0]), math.log(sampling.aspect[1])
    aspect = math.exp(generator.uniform(low, high))
    width = min(math.sqrt(area * aspect), info.width)
    height = min(math.sqrt(area / aspect), info.height)
    top = generator.random() * (info.height - height)
    left = generator.random() * (info.width - width)
    return (
        top / info.height,
        left / info.width,
        min((top + height) / info.height, 1.0),
        min((left + width) / info.width, 1.0),
    )


def _regular_crops(info: VideoInfo, places: int) -> list[tuple[float, float, float, float]]:
    """Squares as high as the shorter side, spread along the longer one."""
    side = min(info.width, info.height)
    shares = np.linspace(0.0, 1.0, places).tolist() if places > 1 else [0.5]
    tall = info.height > info.width
    length = info.height if tall else info.width
    crops = []
    for share in shares:
        low = share * (length - side) / length
        high = min(low + side / length, 1.0)
        crops.append((low, 0.0, high, 1.0) if tall else (0.0, low, 1.0, high))
    return crops
