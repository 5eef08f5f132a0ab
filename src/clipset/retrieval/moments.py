"""The time that clips stand for, and clips that are merged to moments."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

TOUCH_SECONDS = 1e-3  # moments so near to each other touch
EQUAL_SCORES = 0.02  # scores that differ by less are called equal


def cover_time(boxes: Float[np.ndarray, "V 2"], duration: float) -> Float[np.ndarray, "V 2"]:
    """Start and end of clips, extended halfway to their neighbours and to the ends of the video.

    So clips with gaps between them cover the whole video.
    """
    start, end = boxes.T
    starts, ends = np.unique(start), np.unique(end)
    after = np.searchsorted(starts, start, side="right")
    before = np.searchsorted(ends, end) - 1
    following, previous = starts[np.minimum(after, len(starts) - 1)], ends[np.maximum(before, 0)]
    until = np.where(after == len(starts), duration, (end + following) / 2)
    since = np.where(before < 0, 0.0, (start + previous) / 2)
    return np.stack([np.minimum(start, since), np.maximum(end, until)], axis=1)


def merge_clips(
    times: Float[np.ndarray, "V 2"], scores: Float[np.ndarray, " V"]
) -> list[tuple[float, float, float]]:
    """The moments of a video as (start, end, score), best first; no two overlap or touch.

    A moment is a clip with those around it whose scores are nearer to its own than to the mean of
    the video, or equal to it up to `EQUAL_SCORES`. Others that touch it belong to no moment.
    """
    moments: list[list[float]] = []
    mean = float(scores.mean())
    for clip in np.argsort(-scores, kind="stable").tolist():
        start, end = times[clip].tolist()
        score = float(scores[clip])
        touching = [
            moment
            for moment in moments
            if start <= moment[1] + TOUCH_SECONDS and end >= moment[0] - TOUCH_SECONDS
        ]
        if not touching:
            moments.append([start, end, score])
        elif score >= min((touching[0][2] + mean) / 2, touching[0][2] - EQUAL_SCORES):
            first, *others = touching
            first[0] = min(start, *(moment[0] for moment in touching))
            first[1] = max(end, *(moment[1] for moment in touching))
            moments = [moment for moment in moments if moment not in others]
    return [(start, end, score) for start, end, score in moments]
