"""Windows: intervals of a video, each treated as a video of its own."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from clipset.clips.config import Sampling
from clipset.clips.frame_times import frame_indices_at
from clipset.clips.sampling import ClipPlan, regular_clips
from clipset.decoding.reader import VideoInfo
from clipset.errors import ClipError

MIN_WINDOW_LIMIT = 1000  # windows that a video may have, however few its frames


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """An interval of a video, in seconds."""

    start: float
    end: float


@dataclass(frozen=True, slots=True)
class WindowGrid:
    """Windows of `length` seconds, `step` seconds apart."""

    length: float
    step: float

    def __post_init__(self) -> None:
        if not (0 < self.length < math.inf and 0 < self.step < math.inf):
            raise ClipError(
                f"window and step must be more than 0 s, got {self.length} and {self.step}"
            )

    def count(self, duration: float) -> int:
        """The number of windows of a video of this duration."""
        if duration <= self.length:
            return 1
        steps = (duration - self.length - 1e-9) / self.step
        return max(0, math.ceil(min(steps, 2**62))) + 1

    def bounded(self, duration: float, frames: int) -> WindowGrid:
        """The same grid, or one with larger steps if windows would outnumber the frames."""
        limit = max(frames, MIN_WINDOW_LIMIT)
        if self.count(duration) <= limit:
            return self
        return WindowGrid(self.length, (duration - self.length) / (limit - 1.5))

    def windows(self, duration: float) -> Iterator[Window]:
        """The windows in the order of time; the last one ends with the video."""
        if duration <= self.length:
            yield Window(start=0.0, end=duration)
            return
        latest = duration - self.length
        for index in range(self.count(duration) - 1):
            yield Window(start=index * self.step, end=index * self.step + self.length)
        yield Window(start=latest, end=latest + self.length)


def plan_window(
    info: VideoInfo, window: Window, sampling: Sampling, *, span: float, frames: int
) -> ClipPlan:
    """The regular clips of a window: frame indices of the video, boxes relative to the window."""
    first, last = frame_indices_at(np.array([window.start, window.end]), info.frame_times).tolist()
    interval = VideoInfo(
        width=info.width,
        height=info.height,
        frame_times=info.frame_times[first : last + 1] - window.start,
        duration=window.end - window.start,
        expected_frames=None,
        codec=info.codec,
    )
    plan = regular_clips(interval, sampling, span=span, frames=frames)
    return ClipPlan(boxes=plan.boxes, frame_indices=plan.frame_indices + first)
