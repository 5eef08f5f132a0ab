"""Content of a demo video: events, cut times, camera. Only the order of events is the class."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.random import Generator

EVENT_KINDS = ("ball", "star", "rain", "wheel")
# Balanced: each kind is twice at each position, each ordered pair of neighbours occurs twice, and
# each order comes with its reverse. So a pair of events, or the first and the last, says little.
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
    """One event of a video, from `start` to `end` seconds."""

    kind: str
    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoSpec:
    """Size, timing and camera of a video; independent of its class."""

    width: int
    height: int
    frame_rate: int
    num_frames: int
    cut_times: tuple[float, float, float]
    """seconds between the four events"""
    fade_seconds: float
    """length of a cross-fade; 0 is a hard cut"""
    noise_std: float
    """sensor noise on the scale 0..255"""
    camera_drift: int
    """largest shift of the camera to each side, in pixels"""
    drift_frequency: tuple[float, float]
    """of the drift in x and y, in Hz"""

    @property
    def duration(self) -> float:
        """Seconds."""
        return self.num_frames / self.frame_rate


def sample_video_spec(rng: Generator) -> VideoSpec:
    """Random size, frame rate, duration, cuts and camera of one video."""
    short = 2 * int(rng.integers(60, 85))
    long = min(320, 2 * round(short * rng.choice([1, 4 / 3, 3 / 2, 16 / 9]) / 2))
    width, height = (long, short) if rng.random() < 0.7 else (short, long)
    frame_rate = int(rng.choice([15, 20, 24, 25, 30]))
    num_frames = round(rng.uniform(6, 12) * frame_rate)
    lengths = rng.uniform(0.85, 1.15, len(EVENT_KINDS))  # relative lengths of the events
    cuts = np.round(np.cumsum(lengths)[:3] / lengths.sum() * num_frames) / frame_rate
    first, second, third = cuts.tolist()
    return VideoSpec(
        width=width,
        height=height,
        frame_rate=frame_rate,
        num_frames=num_frames,
        cut_times=(first, second, third),
        fade_seconds=float(rng.choice([0.0, rng.uniform(0.2, 0.5)])),
        noise_std=float(rng.uniform(0.3, 1.5)),
        camera_drift=round(short * rng.uniform(0, 0.06)),
        drift_frequency=(float(rng.uniform(0.05, 0.2)), float(rng.uniform(0.05, 0.2))),
    )


def demo_rng(seed: int, index: int, *stream: int) -> Generator:
    """Random numbers of one video, or of one object in it; independent of all other videos."""
    return np.random.default_rng([seed, index, *stream])


def class_of(index: int) -> str:
    """The class of a video; the classes take turns."""
    return CLASSES[index % len(CLASSES)]


def demo_video_id(index: int) -> str:
    """The path of a video inside the demo's folder."""
    return f"{class_of(index)}/{index // len(CLASSES):03d}.mp4"


def list_events(spec: VideoSpec, class_name: str) -> tuple[Event, ...]:
    """The events of a class in order, between the cuts of a video."""
    spans = pairwise((0.0, *spec.cut_times, spec.duration))
    return tuple(
        Event(kind=kind, start=start, end=end)
        for kind, (start, end) in zip(class_name.split("-"), spans, strict=True)
    )
