"""The one place where stored boxes (seconds, fractions) become the numbers that the model sees."""

from __future__ import annotations

from typing import Literal

import numpy as np
from jaxtyping import Float

BoxCoordinates = Literal["paper", "official"]


def model_boxes(
    boxes: Float[np.ndarray, "B V 7"],
    durations: Float[np.ndarray, " B"],
    kind: BoxCoordinates = "paper",
) -> Float[np.ndarray, "B V X"]:
    """Stored boxes as a model wants them (`ModelConfig.box_coordinates`)."""
    return official_boxes(boxes) if kind == "official" else paper_boxes(boxes, durations)


def paper_boxes(
    boxes: Float[np.ndarray, "B V 7"], durations: Float[np.ndarray, " B"]
) -> Float[np.ndarray, "B V 6"]:
    """Equation 5: where a clip begins and ends in x, y and t, relative to the video's own size.

    The paper's X runs along the height and Y along the width, so the order is top, left, start,
    bottom, right, end. The flip is not among them.
    """
    start, end, top, left, bottom, right, _ = np.moveaxis(boxes.astype(np.float32), -1, 0)
    length = np.maximum(durations.astype(np.float32), 1e-6)[:, None]  # (B, 1)
    return np.stack([top, left, start / length, bottom, right, end / length], axis=-1)


def official_boxes(boxes: Float[np.ndarray, "B V 7"]) -> Float[np.ndarray, "B V 7"]:
    """Where clips are relative to the extent of all V clips of their video, as published.

    The order is flip (1 or -1), top, left, bottom, right, start, end. On each axis the smallest
    start becomes 0 and the largest end 1, so the unit in which boxes are stored does not matter.
    """
    start, end, top, left, bottom, right, flipped = np.moveaxis(boxes.astype(np.float32), -1, 0)
    tops, bottoms = _within_extent(top, bottom)
    lefts, rights = _within_extent(left, right)
    starts, ends = _within_extent(start, end)
    flips = np.where(flipped > 0, np.float32(1), np.float32(-1))
    return np.stack([flips, tops, lefts, bottoms, rights, starts, ends], axis=-1)


def _within_extent(
    low: Float[np.ndarray, "B V"], high: Float[np.ndarray, "B V"]
) -> tuple[Float[np.ndarray, "B V"], Float[np.ndarray, "B V"]]:
    """Both ends of the clips on one axis, with the extent of each video's clips as 0 to 1."""
    first = low.min(axis=1, keepdims=True)  # (B, 1)
    extent = np.maximum(high.max(axis=1, keepdims=True) - first, np.float32(1e-9))
    return (low - first) / extent, (high - first) / extent
