"""Decodes the clips of one video: scan the file, plan the clips, cut their pixels.

All clips of a video are one chunk, unless their pixels would take too much memory: then there are
several chunks, each of clips that are close in time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy.random import Generator
from torch import Tensor

from clipset.clips.config import Sampling
from clipset.clips.cut import FrameSource, cut_clips
from clipset.clips.sampling import (
    ClipPlan,
    Window,
    WindowGrid,
    plan_window,
    regular_clips,
    sample_random_clips,
    video_generator,
)
from clipset.clips.sprite import SpriteReader
from clipset.data.file_state import FileState, read_file_state
from clipset.decoding.reader import VideoInfo, VideoReader, open_video

SINGLE_CHUNK_BYTES = 64 << 20  # pixels of a video that is decoded in one chunk
CHUNK_BYTES = 24 << 20  # pixels of each of several chunks


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRequest:
    """How the clips of every video are chosen and cut."""

    sampling: Sampling
    span: float  # seconds of a clip
    frames: int
    size: int
    seed: int
    random: bool = True  # False: regular clips only
    regular: bool = True  # False: random clips only
    grid: WindowGrid | None = None  # with it, a chunk has the regular clips of one window
    window: Window | None = None  # only the regular clips of this window
    sprite: bool = False  # the last chunk of a video has its sprite


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoFacts:
    """Properties of a video that are recorded in the ledger, and which of its chunks this is.

    Missing and needed frames are those of this chunk and the chunks before it.
    """

    random_count: int
    regular_count: int
    duration: float
    width: int
    height: int
    frames_expected: int | None
    frames_found: int
    frames_missing: int
    frames_needed: int = 0
    claimed_duration: float | None = None  # the file's own, if it cannot be true
    file: FileState | None = None
    chunk: int = 0
    num_chunks: int = 1
    clip_indices: tuple[int, ...] | None = None  # of this chunk; None: all clips
    window: Window | None = None
    sprite_bytes: int = 0

    @property
    def is_last_chunk(self) -> bool:
        """Whether no more chunks of this video follow."""
        return self.chunk + 1 == self.num_chunks


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedClips:
    """One chunk of a video's clips; the video's random clips come before its regular ones."""

    facts: VideoFacts
    boxes: Float[np.ndarray, "V 7"]
    times: Float[np.ndarray, "V T"]
    pixels: UInt8[Tensor, "V T 3 S S"]
    sprite: bytes = b""  # WebP; empty if there is none

    def to_buffers(self) -> list[memoryview]:
        """The arrays as raw bytes, for a pipe."""
        arrays = (self.boxes, self.times, self.pixels.numpy())
        buffers = [memoryview(np.ascontiguousarray(array).data).cast("B") for array in arrays]
        return [*buffers, memoryview(self.sprite)]

    @classmethod
    def from_buffer(
        cls, content: bytearray, facts: VideoFacts, request: DecodeRequest
    ) -> DecodedClips:
        """Clips from the bytes of `to_buffers`. Boxes and times are copied to free the pixels."""
        num_frames, clip_size = request.frames, request.size
        end = len(content) - facts.sprite_bytes
        num_clips = end // (4 * 7 + 4 * num_frames + num_frames * 3 * clip_size**2)
        boxes = np.frombuffer(content, np.float32, num_clips * 7)
        times = np.frombuffer(content, np.float32, num_clips * num_frames, boxes.nbytes)
        first_pixel = boxes.nbytes + times.nbytes
        pixels = torch.frombuffer(
            content, dtype=torch.uint8, offset=first_pixel, count=end - first_pixel
        )
        return cls(
            facts=facts,
            boxes=boxes.reshape(num_clips, 7).copy(),
            times=times.reshape(num_clips, num_frames).copy(),
            pixels=pixels.reshape(num_clips, num_frames, 3, clip_size, clip_size),
            sprite=bytes(memoryview(content)[end:]),
        )


def decode_video(
    video_id: str, path: Path, request: DecodeRequest, *, end: float | None = None, draw: int = 0
) -> Iterator[DecodedClips]:
    """Decode all clips of a video (up to `end` seconds), chunk by chunk. Raises VideoError.

    Each `draw` has other random clips; those of draw 0 are the ones that are stored.
    """
    generator = video_generator(request.seed, video_id, *([draw] if draw else []))
    with open_video(path, end=end) as video:
        file = read_file_state(path)
        sprite = SpriteReader(video) if request.sprite else None
        for chunk, (clip_plan, facts) in enumerate(_plan_chunks(video.info, request, generator)):
            facts |= {"file": file, "chunk": chunk}
            yield _decode_chunk(video, sprite, clip_plan, request.size, **facts)


def _plan_chunks(
    video_info: VideoInfo, request: DecodeRequest, generator: Generator
) -> Iterator[tuple[ClipPlan, dict[str, Any]]]:
    """The clips of each chunk in order of time, and facts about it."""
    sampling, span, frames = request.sampling, request.span, request.frames
    if request.window is not None or request.grid is not None:
        num_windows, windows = _list_windows(video_info, request)
        for window in windows:
            clip_plan = plan_window(video_info, window, sampling, span, frames)
            facts = {"random_count": 0, "regular_count": len(clip_plan), "num_chunks": num_windows}
            yield clip_plan, facts | {"window": window}
        return
    plans: list[ClipPlan] = []
    counts = {"random_count": 0, "regular_count": 0}
    if request.random:
        plans.append(sample_random_clips(video_info, sampling, span, frames, generator))
        counts["random_count"] = len(plans[-1])
    if request.regular:
        plans.append(regular_clips(video_info, sampling, span, frames))
        counts["regular_count"] = len(plans[-1])
    clip_plan = reduce(add, plans)
    clip_bytes = frames * 3 * request.size**2
    chunk_size = max(CHUNK_BYTES // clip_bytes, 1)
    if len(clip_plan) * clip_bytes <= SINGLE_CHUNK_BYTES or len(clip_plan) <= chunk_size:
        yield clip_plan, counts
        return
    order = np.lexsort((clip_plan.frame_indices[:, -1], clip_plan.frame_indices[:, 0])).tolist()
    chunks = [tuple(order[i : i + chunk_size]) for i in range(0, len(order), chunk_size)]
    for clips in chunks:
        yield clip_plan.select(clips), counts | {"num_chunks": len(chunks), "clip_indices": clips}


def _list_windows(info: VideoInfo, request: DecodeRequest) -> tuple[int, Iterable[Window]]:
    """The number of requested windows, and the windows."""
    if request.window is not None:
        return 1, [request.window.bounded(info.duration)]
    assert request.grid is not None
    grid = request.grid.bounded(info.duration, len(info.frame_times))
    return grid.count(info.duration), grid.windows(info.duration)


def _decode_chunk(
    video: VideoReader,
    sprite: SpriteReader | None,
    clip_plan: ClipPlan,
    clip_size: int,
    **chunk_facts: Any,
) -> DecodedClips:
    """Cut the pixels of some clips; the last chunk has the sprite, too."""
    info = video.info
    source: FrameSource = video if sprite is None else sprite
    pixels = cut_clips(source, clip_plan, clip_size)
    video.file.check_unchanged()  # the recorded file state is that of the file that was read
    facts = VideoFacts(
        duration=info.duration,
        width=info.width,
        height=info.height,
        frames_expected=info.expected_frames,
        frames_found=video.frames_in_file,
        frames_missing=len(video.missing_frames),
        frames_needed=len(video.needed_frames),
        claimed_duration=info.claimed_duration,
        **chunk_facts,
    )
    strip = b""
    if facts.is_last_chunk:
        video.check_usable()
        strip = b"" if sprite is None else sprite.encode()
        facts = replace(facts, sprite_bytes=len(strip))
    boxes = np.array([box.as_row() for box in clip_plan.boxes], dtype=np.float32)  # (V, 7)
    times = info.frame_times[clip_plan.frame_indices].astype(np.float32)  # (V, T)
    return DecodedClips(facts=facts, boxes=boxes, times=times, pixels=pixels, sprite=strip)
