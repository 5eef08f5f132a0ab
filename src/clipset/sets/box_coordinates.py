"""Box coordinates of the model, from stored boxes in seconds and fractions of the frame."""

from __future__ import annotations

from typing import Literal

import numpy as np
from jaxtyping import Float

BoxCoordinates = Literal["paper", "official"]


def model_boxes(
    boxes: Float[np.ndarray, "B V 7"],
    durations: Float[np.ndarray, " B"],
    coordinates: BoxCoordinates = "paper",
) -> Float[np.ndarray, "B V X"]:
    """Stored boxes in the coordinates of a model (`ModelConfig.box_coordinates`)."""
    return official_boxes(boxes) if coordinates == "official" else paper_boxes(boxes, durations)


def paper_boxes(
    boxes: Float[np.ndarray, "B V 7"], durations: Float[np.ndarray, " B"]
) -> Float[np.ndarray, "B V 6"]:
    """Equation 5: start and end of a clip in x, y and t, relative to the video's size.

    The paper's X runs along the height and Y along the width, so the order is top, left, start,
    bottom, right, end. They do not include the flip.
    """
    start, end, top, left, bottom, right, _ = np.moveaxis(boxes.astype(np.float32), -1, 0)
    length = np.maximum(durations.astype(np.float32), 1e-6)[:, None]  # (B, 1)
    return np.stack([top, left, start / length, bottom, right, end / length], axis=-1)


def official_boxes(boxes: Float[np.ndarray, "B V 7"]) -> Float[np.ndarray, "B V 7"]:
    """Boxes relative to the extent of all V clips of their video, as in the published code.

    The order is flip (1 or -1), top, left, bottom, right, start, end. On each axis the smallest
    start becomes 0 and the largest end 1, so the unit of the stored boxes does not matter.
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
    """Both ends of the clips on one axis, scaled so that the extent of each video is 0 to 1."""
    first = low.min(axis=1, keepdims=True)  # (B, 1)
    extent = np.maximum(high.max(axis=1, keepdims=True) - first, np.float32(1e-9))
    return (low - first) / extent, (high - first) / extent
