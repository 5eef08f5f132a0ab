"""The one place where stored boxes (seconds, fractions) become the numbers that the model sees."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float


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
