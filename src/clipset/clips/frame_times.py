"""Start and end times of clips, and the indices of their frames."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int

from clipset.clips.config import Sampling
from clipset.decoding.reader import VideoInfo


def regular_starts(latest: float, times: int, reach_end: bool) -> Float[np.ndarray, " V"]:
    """`times` starts, spread from 0 to the latest one, or at i/n of that range."""
    if not reach_end:
        return np.arange(times) / times * latest
    return np.linspace(0.0, latest, times) if times > 1 else np.array([latest / 2])


def clip_range(
    start: float, info: VideoInfo, sampling: Sampling, span: float
) -> tuple[float, float]:
    """Start and end of a clip in seconds; in a shorter video it ends with the video.

    The end is that of the span (equation 5). As published (timing "frames" without `reach_end`), it
    is the start of the last source frame.
    """
    if sampling.timing == "segments":
        return 0.0, max(info.duration, 1e-3)
    is_published = sampling.timing == "frames" and not sampling.reach_end
    length = max(span - 1 / frame_rate(info), 1e-3) if is_published else span
    return start, min(start + length, max(info.duration, start + 1e-3))


def clip_frame_indices(
    starts: Float[np.ndarray, " V"],
    offsets: Float[np.ndarray, "V T"],
    info: VideoInfo,
    sampling: Sampling,
    span: float,
) -> Int[np.ndarray, "V T"]:
    """Frame indices of each clip: from its start on, or at `offsets` (0 to 1) of each segment."""
    count = offsets.shape[1]
    if sampling.timing == "segments":
        return frame_indices_at(
            (np.arange(count) + offsets) * (info.duration / count), info.frame_times
        )
    if sampling.timing == "frames":
        return _evenly_spaced_frames(starts, info, span, count)
    steps = np.arange(count) * (span / count)
    return frame_indices_at(starts[:, None] + steps, info.frame_times)


def frame_indices_at(
    times: Float[np.ndarray, "*shape"], frame_times: Float[np.ndarray, " N"]
) -> Int[np.ndarray, "*shape"]:
    """Index of the frame on screen at each time: the last that has begun; the last frame stays."""
    # A microsecond of tolerance for rounded timestamps at the very start of a frame.
    indices = np.searchsorted(frame_times, times + 1e-6, side="right") - 1
    return np.clip(indices, 0, len(frame_times) - 1)


def frame_rate(info: VideoInfo) -> float:
    """Frames per second, over the whole video."""
    return len(info.frame_times) / max(info.duration, 1e-3)


def _evenly_spaced_frames(
    starts: Float[np.ndarray, " V"], info: VideoInfo, span: float, count: int
) -> Int[np.ndarray, "V T"]:
    """Evenly spaced from the first to the last source frame of the span, in single precision."""
    rate = frame_rate(info)
    length = max(span * rate - 1, 0.0)
    rows = [torch.linspace(start * rate, start * rate + length, count) for start in starts.tolist()]
    return torch.stack(rows).clamp(0, len(info.frame_times) - 1).long().numpy()
