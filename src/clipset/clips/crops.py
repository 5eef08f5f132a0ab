"""Crops of random and regular clips, as fractions of the frame's height and width."""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
from numpy.random import Generator

from clipset.clips.config import Sampling

Crop: TypeAlias = tuple[float, float, float, float]
"""top, left, bottom, right, as fractions of the frame"""

MAX_TRIES = 10  # draws of a crop that fits into the frame, before the largest one is taken
CROP_SIZE = 224  # pixels of a short-side crop, as in the published code
SHORT_SIDES = (256, 320)  # smallest and largest short side before that crop, in pixels
RATIO = (3 / 4, 4 / 3)  # narrowest and widest aspect ratio of a resized crop


def draw_crop(width: int, height: int, sampling: Sampling, generator: Generator) -> Crop:
    """A crop of random size and position, by the rule of the sampling."""
    if sampling.crop == "short-side":
        return _draw_short_side_crop(width, height, generator)
    if sampling.crop == "frame":
        return _draw_frame_crop(width, height, sampling.crop_scale, generator)
    return _draw_square_crop(width, height, sampling.crop_scale, generator)


def regular_crops(width: int, height: int, sampling: Sampling) -> list[Crop]:
    """Squares as high as the shorter side, spread along the longer one."""
    tall = height > width
    length, side = max(width, height), min(width, height)
    if sampling.grid is None:
        ranges = _even_ranges(length, side, sampling.num_crops)
    else:
        long_side = _scaled_length(length, side, sampling.grid)
        ranges = _whole_pixel_ranges(long_side, sampling.grid, sampling.num_crops)
    return [(low, 0.0, high, 1.0) if tall else (0.0, low, 1.0, high) for low, high in ranges]


def _draw_square_crop(
    width: int, height: int, scale: tuple[float, float], generator: Generator
) -> Crop:
    """A resized crop whose area is relative to the largest square that fits the frame."""
    side = min(width, height)
    area = generator.uniform(*scale) * side * side
    ratio = _draw_ratio(generator)
    crop_width = min(math.sqrt(area * ratio), width)
    crop_height = min(math.sqrt(area / ratio), height)
    top = generator.random() * (height - crop_height)
    left = generator.random() * (width - crop_width)
    return _relative_crop(top, left, crop_height, crop_width, height, width)


def _draw_frame_crop(
    width: int, height: int, scale: tuple[float, float], generator: Generator
) -> Crop:
    """A resized crop whose area is relative to the frame; the largest one if no draw fits."""
    for _ in range(MAX_TRIES):
        area = generator.uniform(*scale) * width * height
        ratio = _draw_ratio(generator)
        crop_width, crop_height = math.sqrt(area * ratio), math.sqrt(area / ratio)
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
    short = round(generator.uniform(*SHORT_SIDES))
    tall = height > width
    long = _scaled_length(max(width, height), min(width, height), short)
    height, width = (long, short) if tall else (short, long)
    top = int(generator.integers(0, max(height - CROP_SIZE, 1)))
    left = int(generator.integers(0, max(width - CROP_SIZE, 1)))
    return _relative_crop(top, left, CROP_SIZE, CROP_SIZE, height, width)


def _draw_ratio(generator: Generator) -> float:
    return math.exp(generator.uniform(math.log(RATIO[0]), math.log(RATIO[1])))


def _relative_crop(
    top: float | int,
    left: float | int,
    crop_height: float | int,
    crop_width: float | int,
    height: int,
    width: int,
) -> Crop:
    """A crop in pixels as fractions of a frame of that height and width."""
    bottom, right = (top + crop_height) / height, (left + crop_width) / width
    return (top / height, left / width, min(bottom, 1.0), min(right, 1.0))


def _scaled_length(length: int, side: int, short: int) -> int:
    """The long side in pixels after the short side is resized to `short`."""
    return math.floor(length / side * short)


def _even_ranges(length: int, side: int, count: int) -> list[tuple[float, float]]:
    positions = np.linspace(0.0, 1.0, count).tolist() if count > 1 else [0.5]
    lows = [position * (length - side) / length for position in positions]
    return [(low, min(low + side / length, 1.0)) for low in lows]


def _whole_pixel_ranges(length: int, side: int, count: int) -> list[tuple[float, float]]:
    """The same, but beginning at whole pixels, rounded up."""
    room, steps = length - side, count - 1
    lows = [-(-index * room // steps) for index in range(count)] if steps else [-(-room // 2)]
    return [(low / length, (low + side) / length) for low in lows]
