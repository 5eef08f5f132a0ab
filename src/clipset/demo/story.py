"""What happens when in a demo video, and how it is filmed; only the order knows the class."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.random import Generator

KINDS = ("ball", "star", "rain", "wheel")
# Every kind stands twice in every place, every ordered pair of neighbours occurs twice, and each
# order comes with its reverse: what touches what, and what stands at the ends, says little.
CLASSES = (
    "ball-star-wheel-rain",
    "rain-wheel-star-ball",
    "ball-wheel-star-rain",
    "rain-star-wheel-ball",
    "star-rain-ball-wheel",
    "wheel-ball-rain-star",
    "star-ball-rain-wheel",
    "wheel-rain-ball-star",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happens in a video, from `start` to `end` seconds."""

    kind: str
    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Shoot:
    """All about a video but its class and its pictures."""

    width: int
    height: int
    rate: int
    """frames a second"""
    frames: int
    cuts: tuple[float, float, float]
    """where one event gives way to the next, in seconds"""
    fade: float
    """how long that takes; 0 is a hard cut"""
    noise: float
    """the sensor's, as a deviation on the scale 0..255"""
    drift: int
    """how far the camera strays to each side, in pixels"""
    sway: tuple[float, float]
    """how often it does, sideways and up and down, in turns a second"""

    @property
    def duration(self) -> float:
        """Seconds."""
        return self.frames / self.rate


def draw_shoot(rng: Generator) -> Shoot:
    """Size, rate, length, cuts and camera of one video."""
    short = 2 * int(rng.integers(60, 85))
    long = min(320, 2 * round(short * rng.choice([1, 4 / 3, 3 / 2, 16 / 9]) / 2))
    width, height = (long, short) if rng.random() < 0.7 else (short, long)
    rate = int(rng.choice([15, 20, 24, 25, 30]))
    frames = round(rng.uniform(6, 12) * rate)
    lengths = rng.uniform(0.85, 1.15, len(KINDS))  # of the events, in proportion
    first, second, third = np.round(np.cumsum(lengths)[:3] / lengths.sum() * frames) / rate
    return Shoot(
        width=width,
        height=height,
        rate=rate,
        frames=frames,
        cuts=(float(first), float(second), float(third)),
        fade=float(rng.choice([0.0, rng.uniform(0.2, 0.5)])),
        noise=float(rng.uniform(0.3, 1.5)),
        drift=round(short * rng.uniform(0, 0.06)),
        sway=(float(rng.uniform(0.05, 0.2)), float(rng.uniform(0.05, 0.2))),
    )


def video_generator(seed: int, index: int, *more: int) -> Generator:
    """The chance of one video, or of one thing in it: no other video has a part in it."""
    return np.random.default_rng([seed, index, *more])


def class_of(index: int) -> str:
    """Videos take turns through the classes."""
    return CLASSES[index % len(CLASSES)]


def video_id(index: int) -> str:
    """Where a video lies in the folder of the rendering."""
    return f"{class_of(index)}/{index // len(CLASSES):03d}.mp4"


def timeline(seed: int, index: int) -> tuple[Event, ...]:
    """What happens when in a video of the demo."""
    return events_of(draw_shoot(video_generator(seed, index)), class_of(index))


def events_of(shoot: Shoot, label: str) -> tuple[Event, ...]:
    """The events of a class, in its order, between the cuts of a shoot."""
    spans = pairwise((0.0, *shoot.cuts, shoot.duration))
    return tuple(
        Event(kind=kind, start=start, end=end)
        for kind, (start, end) in zip(label.split("-"), spans, strict=True)
    )
