"""Decodes the clips of one video: scan the file, plan the clips, cut their pixels.

All clips of a video are one chunk, unless their pixels would take too much memory: then there are
several chunks, each of clips that are close in time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from clipset.clips.config import Sampling
from clipset.clips.cut import cut_clips
from clipset.clips.sampling import ClipPlan, regular_clips, sample_random_clips, video_generator
from clipset.clips.windows import Window, WindowGrid, plan_window
from clipset.data.file_state import FileState, read_file_state
from clipset.decoding.damage import check_usable
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
    grid: WindowGrid | None = None  # with it, a chunk has the regular clips of one window

    @property
    def clip_bytes(self) -> int:
        """Memory of the pixels of one clip."""
        return self.frames * 3 * self.size**2


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

    @property
    def num_clips(self) -> int:
        """Number of clips in this chunk."""
        if self.clip_indices is not None:
            return len(self.clip_indices)
        return self.random_count + self.regular_count


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedClips:
    """One chunk of a video's clips; the video's random clips come before its regular ones."""

    facts: VideoFacts
    boxes: Float[np.ndarray, "V 7"]
    times: Float[np.ndarray, "V T"]
    pixels: UInt8[Tensor, "V T 3 S S"]

    def to_buffers(self) -> list[memoryview]:
        """The arrays as raw bytes, for a pipe."""
        arrays = (self.boxes, self.times, self.pixels.numpy())
        return [memoryview(np.ascontiguousarray(array).data).cast("B") for array in arrays]

    @classmethod
    def from_buffer(
        cls, content: bytearray, facts: VideoFacts, request: DecodeRequest
    ) -> DecodedClips:
        """Clips from the bytes of `to_buffers`. Boxes and times are copied to free the pixels."""
        clips, frames, size = facts.num_clips, request.frames, request.size
        boxes = np.frombuffer(content, np.float32, clips * 7).reshape(clips, 7)
        times = np.frombuffer(content, np.float32, clips * frames, boxes.nbytes)
        first_pixel = boxes.nbytes + times.nbytes
        pixels = torch.frombuffer(content, dtype=torch.uint8, offset=first_pixel)
        return cls(
            facts=facts,
            boxes=boxes.copy(),
            times=times.reshape(clips, frames).copy(),
            pixels=pixels.reshape(clips, frames, 3, size, size),
        )


def decode_video(
    video_id: str, path: Path, request: DecodeRequest, *, end: float | None = None
) -> Iterator[DecodedClips]:
    """Decode all clips of a video (up to `end` seconds), chunk by chunk. Raises VideoError."""
    with open_video(path, end=end) as video:
        if request.grid is not None:
            yield from _decode_windows(video, request, request.grid)
            return
        file = read_file_state(path)
        plan, regular_count = _plan_clips(video.info, request, video_id)
        chunks = plan_chunks(plan, request.clip_bytes)
        for chunk, indices in enumerate(chunks):
            yield _decode_chunk(
                video,
                plan if len(chunks) == 1 else plan.only(indices),
                request,
                file=file,
                random_count=len(plan) - regular_count,
                regular_count=regular_count,
                chunk=chunk,
                num_chunks=len(chunks),
                clip_indices=None if len(chunks) == 1 else indices,
            )


def plan_chunks(plan: ClipPlan, clip_bytes: int) -> list[tuple[int, ...]]:
    """The clip indices of each chunk: all clips, or a few at a time, ordered by time."""
    if len(plan) * clip_bytes <= SINGLE_CHUNK_BYTES:
        return [tuple(range(len(plan)))]
    order = np.lexsort((plan.frame_indices[:, -1], plan.frame_indices[:, 0])).tolist()
    size = max(CHUNK_BYTES // clip_bytes, 1)
    return [tuple(order[first : first + size]) for first in range(0, len(order), size)]


def _plan_clips(info: VideoInfo, request: DecodeRequest, video_id: str) -> tuple[ClipPlan, int]:
    """All clips of a video, and the number of regular ones, which come last."""
    shape: dict[str, Any] = {"span": request.span, "frames": request.frames}
    regular = regular_clips(info, request.sampling, **shape)
    if not request.random:
        return regular, len(regular)
    generator = video_generator(request.seed, video_id)
    random = sample_random_clips(info, request.sampling, generator=generator, **shape)
    return random + regular, len(regular)


def _decode_windows(
    video: VideoReader, request: DecodeRequest, grid: WindowGrid
) -> Iterator[DecodedClips]:
    """The regular clips of each window of a video, ordered by time."""
    info = video.info
    grid = grid.bounded(info.duration, len(info.frame_times))
    for chunk, window in enumerate(grid.windows(info.duration)):
        plan = plan_window(info, window, request.sampling, span=request.span, frames=request.frames)
        yield _decode_chunk(
            video,
            plan,
            request,
            random_count=0,
            regular_count=len(plan),
            chunk=chunk,
            num_chunks=grid.count(info.duration),
            window=window,
        )


def _decode_chunk(
    video: VideoReader, plan: ClipPlan, request: DecodeRequest, **chunk_facts: Any
) -> DecodedClips:
    """Cut the pixels of some clips."""
    info = video.info
    pixels = cut_clips(video, plan, request.size)
    video.check_unchanged()  # the recorded file state is that of the file that was read
    facts = VideoFacts(
        duration=info.duration,
        width=info.width,
        height=info.height,
        frames_expected=info.expected_frames,
        frames_found=video.frames_in_file,
        frames_missing=video.frames_missing,
        frames_needed=video.frames_needed,
        claimed_duration=info.claimed_duration,
        **chunk_facts,
    )
    if facts.chunk + 1 == facts.num_chunks:
        check_usable(frames_needed=video.frames_needed, frames_missing=video.frames_missing)
    boxes = np.array([box.as_row() for box in plan.boxes], dtype=np.float32)  # (V, 7)
    times = info.frame_times[plan.frame_indices].astype(np.float32)  # (V, T)
    return DecodedClips(facts=facts, boxes=boxes, times=times, pixels=pixels)
