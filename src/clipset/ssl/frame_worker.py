"""The worker process that reads the frames of videos; FrameReader in frames.py drives it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from clipset.clips.sampling import frame_indices_at
from clipset.decoding.reader import open_video
from clipset.process.worker import Answer, answer_messages

FrameTask = tuple[bytes, float | None]
"""The path and the end of a video."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameRequest:
    """Which frames of every video are read: one each `interval` seconds, scaled down."""

    short_side: int
    interval: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameFacts:
    """The times and the size of the frames, whose pixels follow."""

    times: list[float]
    duration: float
    height: int
    width: int


def make_reader(setup: bytes) -> Callable[[bytes], Answer]:
    """Reads one video after the other."""
    request = msgspec.json.decode(setup, type=FrameRequest)

    def read(line: bytes) -> Answer:
        path, end = msgspec.json.decode(line, type=FrameTask)
        with open_video(Path(os.fsdecode(path)), end=end) as video:
            info = video.info
            wanted = np.arange(0.0, max(info.duration, request.interval), request.interval)
            indices = np.unique(frame_indices_at(wanted, info.frame_times))
            short_side = request.short_side
            frames = [f for _, f in video.frames(indices.tolist(), short_side=short_side)]
            video.check_usable()
        facts = FrameFacts(
            times=info.frame_times[indices].tolist(),
            duration=info.duration,
            height=frames[0].shape[0],
            width=frames[0].shape[1],
        )
        return facts, [memoryview(frame.data).cast("B") for frame in frames]

    return read


if __name__ == "__main__":
    answer_messages(make_reader)
