"""How clips are chosen, and the three named ways to choose them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from clipset.config import near_names
from clipset.errors import ClipError

MANY: Final = 100_000  # clips of a video, and pixels of a window, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Colours:
    """How the colours of random clips are changed; as it stands, they are left alone."""

    brightness: float = 0.0
    """largest change, as a share: 0.6 makes a clip 0.4 to 1.6 times as bright"""
    contrast: float = 0.0
    """largest change of the distance to the frame's mean grey, as a share"""
    saturation: float = 0.0
    """largest change of the distance to the pixel's own grey, as a share"""
    hue: float = 0.0
    """largest turn of the colour circle, at most 0.5 of it"""
    jitter_chance: float = 0.8
    """how often the four above are changed; each time together, in random order"""
    grey_chance: float = 0.0
    """how often a clip loses its colours"""
    blur_chance: float = 0.0
    """how often a clip is blurred"""
    blur: tuple[float, float] = (0.1, 2.0)
    """least and most deviation of the blur, in pixels of the clip"""

    def __post_init__(self) -> None:
        limits = {"hue": 0.5}
        for name in (
            *("brightness", "contrast", "saturation", "hue"),
            *("jitter_chance", "grey_chance", "blur_chance"),
        ):
            if not 0 <= getattr(self, name) <= limits.get(name, 1):
                allowed = f"0 to {limits.get(name, 1)}"
                raise ClipError(f"colours: {name} must be {allowed}, got {getattr(self, name)}")
        if not 0 < self.blur[0] <= self.blur[1] <= 100:
            raise ClipError(f"colours: blur must be 0 < low <= high <= 100, got {self.blur}")

    @property
    def jitters(self) -> bool:
        """Whether brightness, contrast, saturation or hue may change."""
        return self.jitter_chance > 0 and any(
            (self.brightness, self.contrast, self.saturation, self.hue)
        )

    @property
    def change(self) -> bool:
        """Whether anything may change."""
        return self.jitters or self.grey_chance > 0 or self.blur_chance > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How clips are chosen; the same for every video of a store."""

    clips: int = 16
    """random clips of each video (2K in the paper)"""
    clips_per_minute: float = 0.0
    """random clips for each minute of a long video, where that is more than `clips`"""
    times: int = 5
    """regular clips: places in time, spread over the video"""
    times_per_minute: float = 0.0
    """regular clips: places in time for each minute of a long video, where that is more"""
    places: int = 3
    """regular clips: square crops along the longer side, at each time"""
    reach_end: bool = True
    """regular clips: the last one ends with the video; if not, time i of n starts at i/n of the
    range of starts, and the last one stops short"""
    timing: Literal["seconds", "frames", "segments"] = "seconds"
    """which frames a clip shows: those on the screen at even steps of its span; every so many
    source frames, the last of the span included; or one of each of T equal parts of the video"""
    crop: Literal["square", "short-side", "frame"] = "square"
    """random clips: a resized crop with an area relative to the largest square; a square window
    in a frame whose short side varies; or a resized crop with an area relative to the frame"""
    area: tuple[float, float] = (0.3, 1.0)
    """random clips, resized crops: smallest and largest area of the crop, as a share"""
    aspect: tuple[float, float] = (3 / 4, 4 / 3)
    """random clips, resized crops: narrowest and widest shape of the crop"""
    short_side: tuple[int, int] = (256, 320)
    """random clips, short-side crops: shortest and longest short side, in pixels"""
    window: int = 224
    """random clips, short-side crops: side of the window, in pixels"""
    grid: int | None = None
    """regular clips: crops begin at whole pixels (rounded up) of a frame with this short side"""
    flip: bool = True
    """random clips: mirror half of them; turn off where left and right mean something"""
    colours: Colours = Colours()
    """random clips: how their colours are changed"""

    def __post_init__(self) -> None:
        for name in ("clips", "times", "places", "window"):
            if not 1 <= getattr(self, name) <= MANY:
                raise ClipError(f"{name} must be 1 to {MANY}, got {getattr(self, name)}")
        for name in ("clips_per_minute", "times_per_minute"):
            if not 0 <= getattr(self, name) <= 10_000:
                raise ClipError(f"{name} must be 0 to 10000, got {getattr(self, name)}")
        if not 0 < self.area[0] <= self.area[1] <= 1:
            raise ClipError(f"area must be two shares 0 < low <= high <= 1, got {self.area}")
        if not 0 < self.aspect[0] <= self.aspect[1] < math.inf:
            raise ClipError(f"aspect must be two ratios 0 < low <= high, got {self.aspect}")
        if not self.window <= self.short_side[0] <= self.short_side[1] <= MANY:
            raise ClipError(
                f"short_side must be two sizes {self.window} (the window) <= low <= high, "
                f"got {self.short_side}"
            )
        if self.grid is not None and not 1 <= self.grid <= MANY:
            raise ClipError(f"grid must be 1 to {MANY} pixels, or left out, got {self.grid}")


STRONG_COLOURS: Final = Colours(
    brightness=0.6, contrast=0.6, saturation=0.6, hue=0.15, grey_chance=0.2, blur_chance=0.5
)
"""The colour changes of the published code's second set of augmentations (not its default)."""

OFFICIAL: Final = Sampling(timing="frames", crop="short-side", grid=256, reach_end=False)
"""What the published code does."""

PAPER: Final = Sampling(timing="frames", crop="short-side", grid=256, reach_end=True)
"""What the paper says; where it is silent, what the published code does."""

RECOMMENDED: Final = Sampling()
"""What we do unless told otherwise."""

PRESETS: Final = {"paper": PAPER, "official": OFFICIAL, "recommended": RECOMMENDED}


def preset(name: str) -> Sampling:
    """One of the three named ways to choose clips: paper, official or recommended."""
    if name not in PRESETS:
        raise ClipError(f"unknown sampling preset {name!r}; {near_names(name, PRESETS)}")
    return PRESETS[name]
