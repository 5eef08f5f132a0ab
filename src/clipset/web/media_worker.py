"""The worker process that makes pictures and previews of videos; media.py starts and drives it."""

from __future__ import annotations

import os
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Literal

import av
import msgspec
import numpy as np
from jaxtyping import Float, Int, UInt8
from numpy import ndarray
from PIL import Image

from clipset.clips.sprite import (
    SPRITE_FRAMES,
    SPRITE_SIZE,
    encode_strip,
    even_times,
    scale_down,
)
from clipset.decoding.reader import VideoReader, open_video
from clipset.errors import VideoError
from clipset.process.worker import Answer, answer_messages

MediaKind = Literal["thumbnail", "sprite", "preview"]
THUMBNAIL_SIZE = (320, 240)  # pixels, at most
WEBP_METHOD = 3  # of 0 (fast) to 6 (small files)
PREVIEW_SHORT_SIDE = 320  # pixels
PREVIEW_RATE = 30  # frames a second, at most
PREVIEW_SECONDS = 300.0  # at most
MOMENT_SECONDS = 8.0  # of a preview that starts at a given time
PREVIEW_TIME_BASE = Fraction(1, 1000)
X264_OPTIONS = {"preset": "veryfast", "crf": "28", "g": "30", "threads": "1"}


class MediaTask(msgspec.Struct):
    """What to make of which video; a preview is written to the file `out`.

    A preview begins at `start`; a thumbnail is the frame at `start`, the middle one without it.
    """

    kind: MediaKind | Literal["duration"]
    path: bytes
    end: float | None = None
    start: float | None = None
    out: bytes = b""


def make_media(line: bytes) -> Answer:
    """Pictures are answered as bytes, the duration of the video as value."""
    task = msgspec.json.decode(line, type=MediaTask)
    with open_video(Path(os.fsdecode(task.path)), end=task.end) as video:
        content = b""
        if task.kind == "thumbnail":
            middle = even_times(video.info.duration, 1)
            times = middle if task.start is None else np.array([task.start])
            content = encode_strip(_read_frames(video, times, THUMBNAIL_SIZE), method=WEBP_METHOD)
        elif task.kind == "sprite":
            times = even_times(video.info.duration, SPRITE_FRAMES)
            content = encode_strip(_read_frames(video, times, SPRITE_SIZE), method=WEBP_METHOD)
        elif task.kind == "preview":
            _write_preview(video, task.start, os.fsdecode(task.out))
        return video.info.duration, [memoryview(content)]


def _read_frames(
    video: VideoReader, times: Float[ndarray, " frames"], size: tuple[int, int]
) -> list[Image.Image]:
    """The frames that are shown at these times, scaled down to fit."""
    frame_times = video.info.frame_times
    indices = np.maximum(np.searchsorted(frame_times, times, side="right") - 1, 0)
    fitting_side = min(max(size), *(s * 2 for s in size))  # scaled by FFmpeg, then by Pillow
    frames = dict(video.frames(np.unique(indices).tolist(), short_side=fitting_side))
    images = {index: scale_down(pixels, size) for index, pixels in frames.items()}
    return [images[index] for index in indices.tolist()]


def _write_preview(video: VideoReader, start: float | None, out: str) -> None:
    """An H.264 file of the frames from `start` on, with the index first, so that it streams."""
    with av.open(out, "w", format="mp4", container_options={"movflags": "faststart"}) as container:
        stream = container.add_stream("libx264", rate=PREVIEW_RATE, options=X264_OPTIONS)
        stream.pix_fmt = "yuv420p"
        stream.codec_context.time_base = PREVIEW_TIME_BASE
        indices = _preview_indices(video, start)
        times = np.round(video.info.frame_times[indices] / float(PREVIEW_TIME_BASE)).astype(int)
        frames = video.frames(indices.tolist(), short_side=PREVIEW_SHORT_SIDE)
        for (_, pixels), time in zip(frames, (times - times[0]).tolist(), strict=True):
            even = _pad_to_even(pixels)  # as yuv420p needs it
            if not stream.codec_context.is_open:
                stream.height, stream.width = even.shape[:2]
            frame = av.VideoFrame.from_ndarray(even, format="rgb24")
            frame.pts, frame.time_base = time, PREVIEW_TIME_BASE
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def _preview_indices(video: VideoReader, start: float | None) -> Int[ndarray, " frames"]:
    """The frames of a preview, at most PREVIEW_RATE a second."""
    times = video.info.frame_times
    first = 0.0 if start is None else start
    if first >= video.info.duration:
        raise VideoError(f"starts at {first:g} s, but the video has {video.info.duration:g} s")
    last = first + (PREVIEW_SECONDS if start is None else MOMENT_SECONDS)
    inside = np.flatnonzero((times >= first) & (times < last))
    if not len(inside):
        return np.array([np.searchsorted(times, first, side="right") - 1])
    ticks = np.floor(times[inside] * PREVIEW_RATE * 1.001)
    return inside[np.unique(ticks, return_index=True)[1]]


def _pad_to_even(pixels: UInt8[ndarray, "H W 3"]) -> UInt8[ndarray, "h w 3"]:
    height, width = pixels.shape[:2]
    return np.pad(pixels, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")


def make_handler(_setup: bytes) -> Callable[[bytes], Answer]:
    """Messages are tasks; there is no setup."""
    return make_media


if __name__ == "__main__":
    answer_messages(make_handler)
