"""Plans of the clips of a video: random ones for training, regular ones for evaluation.

A clip begins somewhere in the video, and its frames are those on screen at times from there on.
Its crop is a part of the frame. Windows are intervals of a video, each treated as a video of its
own.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.random import Generator

from clipset.clips.box import ClipBox
from clipset.clips.colour import ColourChange, draw_colour_change
from clipset.clips.config import Augmentation, Sampling
from clipset.decoding.reader import VideoInfo
from clipset.errors import ClipError, VideoError

END_TOLERANCE = 0.5  # seconds: players show rounded times
MIN_WINDOW_LIMIT = 1000  # windows that a video may have, however few its frames
MAX_TRIES = 10  # draws of a crop that fits into the frame, before the largest one is taken
CROP_SIZE = 224  # pixels of a short-side crop, as in the published code
SHORT_SIDES = (256, 320)  # smallest and largest short side before that crop, in pixels
RATIO = (3 / 4, 4 / 3)  # narrowest and widest aspect ratio of a resized crop
Pixels = int | float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipPlan:
    """The clips to cut from one video: V boxes, and the indices of the T frames of each.

    `colour_changes` has one entry for each clip; without any, no clip changes.
    """

    boxes: tuple[ClipBox, ...]
    frame_indices: Int[np.ndarray, "V T"]
    colour_changes: tuple[ColourChange | None, ...] = ()

    def __post_init__(self) -> None:
        changes = self.colour_changes or (None,) * len(self.boxes)
        if len(changes) != len(self.boxes):
            raise ClipError(
                f"a plan of {len(self.boxes)} clips needs as many colour changes or none, "
                f"got {len(changes)}"
            )
        object.__setattr__(self, "colour_changes", changes)

    def __len__(self) -> int:
        return len(self.boxes)

    def __add__(self, other: ClipPlan) -> ClipPlan:
        return ClipPlan(
            boxes=self.boxes + other.boxes,
            frame_indices=np.concatenate([self.frame_indices, other.frame_indices]),
            colour_changes=self.colour_changes + other.colour_changes,
        )

    def select(self, clip_indices: Sequence[int]) -> ClipPlan:
        """The plan of some of the clips, by index."""
        return ClipPlan(
            boxes=tuple(self.boxes[clip_index] for clip_index in clip_indices),
            frame_indices=self.frame_indices[list(clip_indices)],
            colour_changes=tuple(self.colour_changes[clip_index] for clip_index in clip_indices),
        )


def video_generator(seed: int, video_id: str, *draw: int) -> Generator:
    """The generator of one video: it depends on the seed and the id, not on the order of work.

    Without more numbers, it draws the clips that are stored; with others, other ones.
    """
    digest = hashlib.sha256(video_id.encode("utf-8", errors="surrogateescape")).digest()
    return np.random.default_rng([seed, int.from_bytes(digest[:8], "big"), *draw])


def sample_random_clips(
    info: VideoInfo, sampling: Sampling, span: float, frames: int, generator: Generator
) -> ClipPlan:
    """Clips at uniformly random times, each with its own random crop, flip and colour change."""
    num_clips = max(sampling.num_clips, math.ceil(sampling.clips_per_minute * info.duration / 60))
    start_times, boxes = [], []
    for _ in range(num_clips):
        start_times.append(generator.uniform(0.0, 1.0) * max(info.duration - span, 0.0))
        crop = draw_crop(info.width, info.height, sampling, generator)
        is_flipped = bool(generator.random() < 0.5) and sampling.flip
        start, end = _clip_range(start_times[-1], info, sampling, span)
        boxes.append(ClipBox(start=start, end=end, **crop._asdict(), flipped=is_flipped))
    shape = (num_clips, frames)
    offsets = generator.random(shape) if sampling.timing == "segments" else np.zeros(shape)
    colour_changes: tuple[ColourChange, ...] = ()
    if sampling.augmentation != Augmentation():
        colour_changes = tuple(draw_colour_change(sampling.augmentation, generator) for _ in boxes)
    return ClipPlan(
        boxes=tuple(boxes),
        frame_indices=_clip_frame_indices(np.array(start_times), offsets, info, sampling, span),
        colour_changes=colour_changes,
    )


def regular_clips(info: VideoInfo, sampling: Sampling, span: float, frames: int) -> ClipPlan:
    """`num_times` x `num_crops` clips that cover the video; the same on every call.

    With segments, every clip covers the whole video, and the times are offsets within a segment:
    one time is its middle, two are a quarter and three quarters, and so on.
    """
    num_times = max(sampling.num_times, math.ceil(sampling.times_per_minute * info.duration / 60))
    latest = max(info.duration - span, 0.0)
    if not sampling.reach_end:
        starts = np.arange(num_times) / num_times * latest
    else:
        starts = np.linspace(0.0, latest, num_times) if num_times > 1 else np.array([latest / 2])
    crops = regular_crops(info.width, info.height, sampling)
    ranges = [_clip_range(start, info, sampling, span) for start in starts.tolist()]
    boxes = tuple(
        ClipBox(start=start, end=end, **crop._asdict()) for start, end in ranges for crop in crops
    )
    offsets = np.repeat((np.arange(num_times) + 0.5)[:, None] / num_times, frames, axis=1)
    frame_indices = _clip_frame_indices(starts, offsets, info, sampling, span)  # (times, T)
    return ClipPlan(boxes=boxes, frame_indices=np.repeat(frame_indices, len(crops), axis=0))


def _clip_range(
    start: float, info: VideoInfo, sampling: Sampling, span: float
) -> tuple[float, float]:
    """Start and end of a clip in seconds; in a shorter video it ends with the video.

    The end is that of the span (equation 5). As published (timing "frames" without `reach_end`), it
    is the start of the last source frame.
    """
    if sampling.timing == "segments":
        return 0.0, max(info.duration, 1e-3)
    is_published = sampling.timing == "frames" and not sampling.reach_end
    length = max(span - 1 / frame_rate(info), 1e-3) if is_published else span
    return start, min(start + length, max(info.duration, start + 1e-3))


def _clip_frame_indices(
    start_times: Float[np.ndarray, " V"],
    offsets: Float[np.ndarray, "V T"],
    info: VideoInfo,
    sampling: Sampling,
    span: float,
) -> Int[np.ndarray, "V T"]:
    """Frame indices of each clip: from its start on, or at `offsets` (0 to 1) of each segment."""
    num_frames = offsets.shape[1]
    if sampling.timing == "segments":
        times = (np.arange(num_frames) + offsets) * (info.duration / num_frames)
        return frame_indices_at(times, info.frame_times)
    if sampling.timing == "seconds":
        times = start_times[:, None] + np.arange(num_frames) * (span / num_frames)
        return frame_indices_at(times, info.frame_times)
    # evenly spaced from the first to the last source frame of the span, in single precision
    source_rate = frame_rate(info)
    length = max(span * source_rate - 1, 0.0)
    first_frames = [start * source_rate for start in start_times.tolist()]
    rows = [torch.linspace(first, first + length, num_frames) for first in first_frames]
    return torch.stack(rows).clamp(0, len(info.frame_times) - 1).long().numpy()


def frame_indices_at(
    times: Float[np.ndarray, "*shape"], frame_times: Float[np.ndarray, " N"]
) -> Int[np.ndarray, "*shape"]:
    """Index of the frame on screen at each time: the last that has begun; the last frame stays."""
    # A microsecond of tolerance for rounded timestamps at the very start of a frame.
    indices = np.searchsorted(frame_times, times + 1e-6, side="right") - 1
    return np.clip(indices, 0, len(frame_times) - 1)


def frame_rate(info: VideoInfo) -> float:
    """Frames per second, over the whole video."""
    return len(info.frame_times) / max(info.duration, 1e-3)


class Crop(NamedTuple):
    """A part of the frame, in fractions of its height and width."""

    top: float
    left: float
    bottom: float
    right: float


def draw_crop(width: int, height: int, sampling: Sampling, generator: Generator) -> Crop:
    """A crop of random size and position, by the rule of the sampling."""
    if sampling.crop == "short-side":
        return _draw_short_side_crop(width, height, generator)
    is_square = sampling.crop == "square"
    full_width, full_height = (min(width, height),) * 2 if is_square else (width, height)
    for _ in range(MAX_TRIES):
        area = generator.uniform(*sampling.crop_scale) * full_width * full_height
        aspect_ratio = math.exp(generator.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
        crop_width, crop_height = math.sqrt(area * aspect_ratio), math.sqrt(area / aspect_ratio)
        if is_square:  # its longer side may be longer than the frame's shorter one
            crop_width, crop_height = min(crop_width, width), min(crop_height, height)
        if crop_width <= width and crop_height <= height:
            top = generator.random() * (height - crop_height)
            left = generator.random() * (width - crop_width)
            return _relative_crop(top, left, crop_height, crop_width, height, width)
    crop_width, crop_height = min(width, height * RATIO[1]), min(height, width / RATIO[0])
    top, left = (height - crop_height) / 2, (width - crop_width) / 2
    return _relative_crop(top, left, crop_height, crop_width, height, width)


def _draw_short_side_crop(width: int, height: int, generator: Generator) -> Crop:
    """A square at whole pixels of the frame after its short side is resized to a random length.

    As in the published code, the last of the possible offsets is never drawn.
    """
    short_side = round(generator.uniform(*SHORT_SIDES))
    long_side = math.floor(max(width, height) / min(width, height) * short_side)
    height, width = (long_side, short_side) if height > width else (short_side, long_side)
    top = int(generator.integers(0, max(height - CROP_SIZE, 1)))
    left = int(generator.integers(0, max(width - CROP_SIZE, 1)))
    return _relative_crop(top, left, CROP_SIZE, CROP_SIZE, height, width)


def _relative_crop(
    top: Pixels, left: Pixels, crop_height: Pixels, crop_width: Pixels, height: int, width: int
) -> Crop:
    """A crop in pixels as fractions of a frame of that height and width."""
    bottom, right = (top + crop_height) / height, (left + crop_width) / width
    return Crop(top / height, left / width, min(bottom, 1.0), min(right, 1.0))


def regular_crops(width: int, height: int, sampling: Sampling) -> list[Crop]:
    """Squares as high as the shorter side, spread along the longer one.

    With a grid, they begin at whole pixels (rounded up) of a frame with that short side.
    """
    long_side, short_side, num_crops = max(width, height), min(width, height), sampling.num_crops
    if sampling.grid is None:
        positions = np.linspace(0.0, 1.0, num_crops).tolist() if num_crops > 1 else [0.5]
        low_edges = [position * (long_side - short_side) / long_side for position in positions]
        crop_ranges = [(low, min(low + short_side / long_side, 1.0)) for low in low_edges]
    else:
        long_side, short_side = math.floor(long_side / short_side * sampling.grid), sampling.grid
        room, steps = long_side - short_side, num_crops - 1
        pixels = [-(-i * room // steps) for i in range(num_crops)] if steps else [-(-room // 2)]
        crop_ranges = [(pixel / long_side, (pixel + short_side) / long_side) for pixel in pixels]
    if height > width:
        return [Crop(low, 0.0, high, 1.0) for low, high in crop_ranges]
    return [Crop(0.0, low, 1.0, high) for low, high in crop_ranges]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """An interval of a video, in seconds."""

    start: float
    end: float

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end < math.inf:
            raise ClipError(
                f"a window must begin at 0 s or later and end after that, "
                f"got {self.start:g}-{self.end:g}"
            )

    def bounded(self, duration: float) -> Window:
        """The same window, which may end up to `END_TOLERANCE` seconds after the video."""
        if self.start >= duration or self.end > duration + END_TOLERANCE:
            raise VideoError(
                f"{self.start:g}-{self.end:g} s is outside the video of {duration:.2f} s"
            )
        return Window(start=self.start, end=min(self.end, duration))


@dataclass(frozen=True, slots=True)
class WindowGrid:
    """Windows of `length` seconds, `step` seconds apart."""

    length: float
    step: float

    def __post_init__(self) -> None:
        if not (0 < self.length < math.inf and 0 < self.step < math.inf):
            raise ClipError(
                f"window and step must be more than 0 s, got {self.length:g} and {self.step:g}"
            )

    def count(self, duration: float) -> int:
        """The number of windows of a video of this duration."""
        if duration <= self.length:
            return 1
        steps = (duration - self.length - 1e-9) / self.step
        return max(0, math.ceil(min(steps, 2**62))) + 1

    def bounded(self, duration: float, num_frames: int) -> WindowGrid:
        """The same grid, or one with larger steps if windows would outnumber the frames."""
        max_windows = max(num_frames, MIN_WINDOW_LIMIT)
        if self.count(duration) <= max_windows:
            return self
        return WindowGrid(self.length, (duration - self.length) / (max_windows - 1.5))

    def windows(self, duration: float) -> Iterator[Window]:
        """The windows in the order of time; the last one ends with the video."""
        if duration <= self.length:
            yield Window(start=0.0, end=duration)
            return
        latest_start = duration - self.length
        for index in range(self.count(duration) - 1):
            yield Window(start=index * self.step, end=index * self.step + self.length)
        yield Window(start=latest_start, end=latest_start + self.length)


def plan_window(
    info: VideoInfo, window: Window, sampling: Sampling, span: float, frames: int
) -> ClipPlan:
    """The regular clips of a window: frame indices of the video, boxes relative to the window."""
    first, last = frame_indices_at(np.array([window.start, window.end]), info.frame_times).tolist()
    window_info = VideoInfo(
        width=info.width,
        height=info.height,
        frame_times=info.frame_times[first : last + 1] - window.start,
        duration=window.end - window.start,
    )
    clip_plan = regular_clips(window_info, sampling, span, frames)
    return ClipPlan(boxes=clip_plan.boxes, frame_indices=clip_plan.frame_indices + first)
