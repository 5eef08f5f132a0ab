"""What is done to one video before the backbone sees it: scan, choose clips, cut pixels."""

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

WHOLE_BYTES = 64 << 20  # up to this, all clips of a video are cut at once
PIECE_BYTES = 24 << 20  # of a piece, if not


@dataclass(frozen=True, slots=True, kw_only=True)
class CutRequest:
    """How every video of a store is cut."""

    sampling: Sampling
    span: float
    frames: int
    size: int
    seed: int
    random: bool = True  # without, only the regular clips are cut
    grid: WindowGrid | None = None  # with it, the regular clips of each window are a piece

    @property
    def clip_bytes(self) -> int:
        """The memory that the pixels of one clip take."""
        return self.frames * 3 * self.size**2


@dataclass(frozen=True, slots=True, kw_only=True)
class CutFacts:
    """What was found out about a video while it was cut."""

    random_clips: int
    regular_clips: int
    duration: float
    width: int
    height: int
    frames_expected: int | None
    frames_found: int
    frames_missing: int  # in this piece and those before it
    file: FileState | None = None  # what was read
    piece: int = 0
    pieces: int = 1
    clips: tuple[int, ...] | None = None  # those of this piece, if there are several
    frames_needed: int = 0  # by the clips of this piece and those before it
    claimed_duration: float | None = None  # by the file's timestamps, if it cannot be true
    window: Window | None = None  # of which these are the clips

    @property
    def clips_here(self) -> int:
        """How many clips this piece has."""
        return self.random_clips + self.regular_clips if self.clips is None else len(self.clips)


@dataclass(frozen=True, slots=True, kw_only=True)
class CutVideo:
    """The clips of one video, or a piece of them, random ones first."""

    facts: CutFacts
    boxes: Float[np.ndarray, "V 7"]
    times: Float[np.ndarray, "V T"]
    pixels: UInt8[Tensor, "V T 3 S S"]


def cut_video(
    video_id: str, path: Path, request: CutRequest, *, end: float | None = None
) -> Iterator[CutVideo]:
    """Cut all clips of a video (up to `end` seconds), usually in one piece. Raises VideoError.

    If they would take too much memory, they come in pieces, each of clips that are next in time.
    """
    with open_video(path, end=end) as video:
        if request.grid is not None:
            yield from _cut_windows(video, request, request.grid)
            return
        file = read_file_state(path)
        plan, regular = _plan_clips(video.info, request, video_id)
        pieces = clips_of_pieces(plan, request.clip_bytes)
        for piece, clips in enumerate(pieces):
            yield _cut_piece(
                video,
                plan if len(pieces) == 1 else plan.only(clips),
                request,
                file=file,
                random_clips=len(plan) - regular,
                regular_clips=regular,
                piece=piece,
                pieces=len(pieces),
                clips=None if len(pieces) == 1 else clips,
            )


def _cut_windows(video: VideoReader, request: CutRequest, grid: WindowGrid) -> Iterator[CutVideo]:
    """The regular clips of each window of a video, in the order of time."""
    info = video.info
    grid = grid.bounded(info.duration, len(info.frame_times))
    pieces = grid.count(info.duration)
    for piece, window in enumerate(grid.windows(info.duration)):
        plan = plan_window(info, window, request.sampling, span=request.span, frames=request.frames)
        yield _cut_piece(
            video,
            plan,
            request,
            random_clips=0,
            regular_clips=len(plan),
            piece=piece,
            pieces=pieces,
            window=window,
        )


def _plan_clips(info: VideoInfo, request: CutRequest, video_id: str) -> tuple[ClipPlan, int]:
    """All clips of a video, and how many of them, the last ones, are regular."""
    regular = regular_clips(info, request.sampling, span=request.span, frames=request.frames)
    if not request.random:
        return regular, len(regular)
    random = sample_random_clips(
        info,
        request.sampling,
        span=request.span,
        frames=request.frames,
        generator=video_generator(request.seed, video_id),
    )
    return random + regular, len(regular)


def _cut_piece(video: VideoReader, plan: ClipPlan, request: CutRequest, **place: Any) -> CutVideo:
    """The pixels of some clips; `place` says which of the video's clips they are."""
    info = video.info
    pixels = cut_clips(video, plan, request.size)
    video.check_unchanged()  # so that `facts.file` is what was read
    if place["piece"] + 1 == place["pieces"]:
        check_usable(frames_needed=video.frames_needed, frames_missing=video.frames_missing)
    facts = CutFacts(
        duration=info.duration,
        width=info.width,
        height=info.height,
        frames_expected=info.expected_frames,
        frames_found=video.frames_in_file,
        frames_missing=video.frames_missing,
        frames_needed=video.frames_needed,
        claimed_duration=info.claimed_duration,
        **place,
    )
    boxes = np.array([box.as_row() for box in plan.boxes], dtype=np.float32)  # (V, 7)
    times = info.frame_times[plan.frames].astype(np.float32)
    return CutVideo(facts=facts, boxes=boxes, times=times, pixels=pixels)


def clips_of_pieces(plan: ClipPlan, clip_bytes: int) -> list[tuple[int, ...]]:
    """The numbers of the clips of each piece: all in one, or many small ones in order of time."""
    if len(plan) * clip_bytes <= WHOLE_BYTES:
        return [tuple(range(len(plan)))]
    order = np.lexsort((plan.frames[:, -1], plan.frames[:, 0])).tolist()
    most = max(PIECE_BYTES // clip_bytes, 1)
    return [tuple(order[first : first + most]) for first in range(0, len(order), most)]


def to_buffers(cut: CutVideo) -> list[memoryview]:
    """The arrays of a cut video as raw bytes, for a pipe."""
    arrays = (cut.boxes, cut.times, cut.pixels.numpy())
    return [memoryview(np.ascontiguousarray(array).data).cast("B") for array in arrays]


def from_buffer(content: bytearray, facts: CutFacts, request: CutRequest) -> CutVideo:
    """A cut video from the bytes of `to_buffers`."""
    clips, frames, size = facts.clips_here, request.frames, request.size
    boxes = np.frombuffer(content, np.float32, clips * 7).reshape(clips, 7)
    times = np.frombuffer(content, np.float32, clips * frames, boxes.nbytes)
    first = boxes.nbytes + times.nbytes
    pixels = torch.frombuffer(content, dtype=torch.uint8, offset=first)
    return CutVideo(
        facts=facts,
        boxes=boxes.copy(),  # boxes and times are kept, and must not keep the pixels
        times=times.reshape(clips, frames).copy(),
        pixels=pixels.reshape(clips, frames, 3, size, size),
    )
