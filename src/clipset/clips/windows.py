"""Windows: pieces of a video in time, each treated as a video of its own."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from clipset.clips.config import Sampling
from clipset.clips.frame_times import frames_at
from clipset.clips.sampling import ClipPlan, regular_clips
from clipset.decoding.reader import VideoInfo
from clipset.errors import ClipError

FREE_WINDOWS = 1000  # a video with fewer frames may have this many windows


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A piece of a video, in seconds."""

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
        """How many windows a video of this duration has."""
        if duration <= self.length:
            return 1
        steps = (duration - self.length - 1e-9) / self.step
        return max(0, math.ceil(min(steps, 2**62))) + 1

    def bounded(self, duration: float, frames: int) -> WindowGrid:
        """The same grid, or one with larger steps if windows would outnumber the frames.

        A window without a frame of its own shows nothing new.
        """
        most = max(frames, FREE_WINDOWS)
        if self.count(duration) <= most:
            return self
        return WindowGrid(self.length, (duration - self.length) / (most - 1.5))

    def windows(self, duration: float) -> Iterator[Window]:
        """The windows, one at a time; the last one ends with the video."""
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
    """The regular clips of a window: frames of the whole video, boxes within the window."""
    first, last = frames_at(np.array([window.start, window.end]), info.frame_times).tolist()
    piece = VideoInfo(
        width=info.width,
        height=info.height,
        frame_times=info.frame_times[first : last + 1] - window.start,
        duration=window.end - window.start,
        expected_frames=None,
        codec=info.codec,
    )
    inner = regular_clips(piece, sampling, span=span, frames=frames)
    return ClipPlan(boxes=inner.boxes, frames=inner.frames + first)
