"""Crops of random and regular clips, as fractions of the frame's height and width."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from clipset.clips.config import Sampling

MAX_TRIES = 10  # draws of a crop that fits into the frame, before the largest one is taken
CROP_SIZE = 224  # pixels of a short-side crop, as in the published code
SHORT_SIDES = (256, 320)  # smallest and largest short side before that crop, in pixels
RATIO = (3 / 4, 4 / 3)  # narrowest and widest aspect ratio of a resized crop

Pixels = float | int  # whole ones or not


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
