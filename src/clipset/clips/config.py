"""Settings of clip sampling: how many clips, at which times, with which crops and augmentation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from clipset.errors import ClipError

MAX_COUNT: Final = 100_000  # clips of a video, and pixels of a side


@dataclass(frozen=True, slots=True, kw_only=True)
class Augmentation:
    """Random changes of a clip's colours, the same for all of its frames; none by default."""

    brightness: float = 0.0
    """largest relative change: 0.6 scales the brightness by 0.4 to 1.6 (of 80 % of the clips; so do
    contrast, saturation and hue, in random order)"""
    contrast: float = 0.0
    """largest relative change of the distance to the frame's mean grey"""
    saturation: float = 0.0
    """largest relative change of the distance to the pixel's own grey"""
    hue: float = 0.0
    """largest rotation of the colour circle, at most 0.5 of it"""
    grey_probability: float = 0.0
    """probability of a grey clip"""
    blur_probability: float = 0.0
    """probability of a Gaussian blur with a deviation of 0.1 to 2 pixels"""

    def __post_init__(self) -> None:
        for name in type(self).__dataclass_fields__:
            value, limit = getattr(self, name), 0.5 if name == "hue" else 1
            if not 0 <= value <= limit:
                raise ClipError(f"augmentation: {name} must be 0 to {limit}, got {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How clips are sampled; the same for every video of a store."""

    num_clips: int = 16
    """random clips of each video (2K in the paper; 0: fitted to the videos' durations)"""
    clips_per_minute: float = 0.0
    """random clips for each minute of a long video, where that is more than num_clips"""
    num_times: int = 5
    """regular clips: start times, spread over the video (0: fitted to the videos' durations)"""
    times_per_minute: float = 0.0
    """regular clips: start times for each minute of a long video, where that is more"""
    num_crops: int = 3
    """regular clips: square crops along the longer side, at each start time (0: one)"""
    reach_end: bool = True
    """the last regular clip ends with the video; if not, as published: time i of n starts at i/n of
    the range of starts, and with the timing "frames" boxes end where their last frame begins"""
    timing: Literal["seconds", "frames", "segments"] = "seconds"
    """frames of a clip: those on screen at even steps of its span; evenly spaced source frames,
    the last of the span included; or one of each of T equal segments of the video"""
    crop: Literal["square", "short-side", "frame"] = "square"
    """random clips: a resized crop, its area relative to the largest square; a square crop of
    224 pixels after the short side is resized to 256 to 320 pixels; or a resized crop, its area
    relative to the frame"""
    crop_scale: tuple[float, float] = (0.3, 1.0)
    """random clips, resized crops: smallest and largest relative area"""
    grid: int | None = None
    """regular clips: crops begin at whole pixels (rounded up) of a frame with this short side"""
    flip: bool = True
    """random clips: flip half of them; only where left and right mean the same"""
    augmentation: Augmentation = Augmentation()
    """random clips: changes of their colours"""

    def __post_init__(self) -> None:
        for name in ("num_clips", "num_times", "num_crops", "clips_per_minute", "times_per_minute"):
            value, limit = getattr(self, name), MAX_COUNT if name.startswith("num_") else 10_000
            if not 0 <= value <= limit:
                raise ClipError(f"{name} must be 0 to {limit}, got {value}")
        low, high = self.crop_scale
        if not 0 < low <= high <= 1:
            raise ClipError(f"crop_scale must be 0 < low <= high <= 1, got {low} to {high}")
        if self.grid is not None and not 1 <= self.grid <= MAX_COUNT:
            raise ClipError(f"grid must be 1 to {MAX_COUNT} pixels, or unset, got {self.grid}")
