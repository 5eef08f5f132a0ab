"""Where in the frame clips are: random and regular crops as fractions of height and width."""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
from numpy.random import Generator

from clipset.clips.config import Sampling

Crop: TypeAlias = tuple[float, float, float, float]
"""top, left, bottom, right, as fractions of the frame"""

TRIES = 10  # draws of a crop that fits into the frame, before the largest one is taken


def draw_crop(width: int, height: int, sampling: Sampling, generator: Generator) -> Crop:
    """A crop of random size at a random place, by the rule of the sampling."""
    if sampling.crop == "short-side":
        return _draw_window(width, height, sampling, generator)
    if sampling.crop == "frame":
        return _draw_share_of_frame(width, height, sampling, generator)
    return _draw_share_of_square(width, height, sampling, generator)


def regular_crops(width: int, height: int, sampling: Sampling) -> list[Crop]:
    """Squares as high as the shorter side, spread along the longer one."""
    tall = height > width
    length, side = max(width, height), min(width, height)
    if sampling.grid is None:
        ranges = _even_ranges(length, side, sampling.places)
    else:
        long_side = _scaled(length, side, sampling.grid)
        ranges = _whole_pixel_ranges(long_side, sampling.grid, sampling.places)
    return [(low, 0.0, high, 1.0) if tall else (0.0, low, 1.0, high) for low, high in ranges]


def _draw_share_of_square(
    width: int, height: int, sampling: Sampling, generator: Generator
) -> Crop:
    """A crop whose area is a share of the largest square that fits the frame."""
    side = min(width, height)
    area = generator.uniform(*sampling.area) * side * side
    aspect = _draw_aspect(sampling, generator)
    wide = min(math.sqrt(area * aspect), width)
    high = min(math.sqrt(area / aspect), height)
    top = generator.random() * (height - high)
    left = generator.random() * (width - wide)
    return _crop(top, left, high, wide, height, width)


def _draw_share_of_frame(width: int, height: int, sampling: Sampling, generator: Generator) -> Crop:
    """A crop whose area is a share of the frame; the largest one if none of some draws fits."""
    for _ in range(TRIES):
        area = generator.uniform(*sampling.area) * width * height
        aspect = _draw_aspect(sampling, generator)
        wide, high = math.sqrt(area * aspect), math.sqrt(area / aspect)
        if wide <= width and high <= height:
            top = generator.random() * (height - high)
            left = generator.random() * (width - wide)
            return _crop(top, left, high, wide, height, width)
    wide = min(width, height * sampling.aspect[1])
    high = min(height, width / sampling.aspect[0])
    return _crop((height - high) / 2, (width - wide) / 2, high, wide, height, width)


def _draw_window(width: int, height: int, sampling: Sampling, generator: Generator) -> Crop:
    """A square window at whole pixels of the frame with its short side at a random length.

    As published, the last of the possible offsets is never drawn.
    """
    short = round(generator.uniform(*sampling.short_side))
    tall = height > width
    long = _scaled(max(width, height), min(width, height), short)
    height, width = (long, short) if tall else (short, long)
    top = int(generator.integers(0, max(height - sampling.window, 1)))
    left = int(generator.integers(0, max(width - sampling.window, 1)))
    return _crop(top, left, sampling.window, sampling.window, height, width)


def _draw_aspect(sampling: Sampling, generator: Generator) -> float:
    low, high = math.log(sampling.aspect[0]), math.log(sampling.aspect[1])
    return math.exp(generator.uniform(low, high))


def _crop(
    top: float | int,
    left: float | int,
    high: float | int,
    wide: float | int,
    height: int,
    width: int,
) -> Crop:
    """A crop in pixels as fractions of a frame of that height and width."""
    return (
        top / height,
        left / width,
        min((top + high) / height, 1.0),
        min((left + wide) / width, 1.0),
    )


def _scaled(length: int, side: int, short: int) -> int:
    """The long side in pixels when the short side is scaled to `short`."""
    return math.floor(length / side * short)


def _even_ranges(length: int, side: int, places: int) -> list[tuple[float, float]]:
    shares = np.linspace(0.0, 1.0, places).tolist() if places > 1 else [0.5]
    lows = [share * (length - side) / length for share in shares]
    return [(low, min(low + side / length, 1.0)) for low in lows]


def _whole_pixel_ranges(length: int, side: int, places: int) -> list[tuple[float, float]]:
    """The same, but beginning at whole pixels, rounded up."""
    room = length - side
    steps = places - 1
    lows = [-(-place * room // steps) for place in range(places)] if steps else [-(-room // 2)]
    return [(low / length, (low + side) / length) for low in lows]
