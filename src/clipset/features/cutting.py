"""What is done to one video before the backbone sees it: scan, choose clips, cut pixels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from clipset.clips.config import Sampling
from clipset.clips.cut import cut_clips
from clipset.clips.sampling import ClipPlan, regular_clips, sample_random_clips, video_generator
from clipset.videos.decode import open_video

WHOLE_BYTES = 128 << 20  # up to this, all clips of a video are cut at once
PIECE_BYTES = 48 << 20  # of a piece, if not


@dataclass(frozen=True, slots=True, kw_only=True)
class CutRequest:
    """How every video of a store is cut."""

    sampling: Sampling
    span: float
    frames: int
    size: int
    seed: int


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
    frames_missing: int
    fingerprint: tuple[int, int, int] = (0, 0, 0)
    piece: int = 0
    pieces: int = 1
    clips: tuple[int, ...] | None = None  # those of this piece, if there are several

    @property
    def clips_here(self) -> int:
        """How many clips this piece has."""
        return self.random_clips + self.regular_clips if self.clips is None else len(self.clips)


@dataclass(frozen=True, slots=True, kw_only=True)
class CutVideo:
    """The clips of one video, or a piece of them, random ones first, ready for a backbone."""

    facts: CutFacts
    boxes: Float[np.ndarray, "V 7"]
    times: Float[np.ndarray, "V T"]
    pixels: UInt8[Tensor, "V T 3 S S"]


def cut_video(
    video_id: str, path: Path, request: CutRequest, *, end: float | None = None, piece: int = 0
) -> CutVideo:
    """Decode a video once (up to `end` seconds) and cut all its clips. Raises VideoError.

    If they would take too much memory, the clips are cut in pieces, each of those that are next in
    time; then this is one of them.
    """
    with open_video(path, end=end) as video:
        info = video.info
        random = sample_random_clips(
            info,
            request.sampling,
            span=request.span,
            frames=request.frames,
            generator=video_generator(request.seed, video_id),
        )
        regular = regular_clips(info, request.sampling, span=request.span, frames=request.frames)
        whole = random + regular
        pieces = clips_of_pieces(whole, request.frames * 3 * request.size**2)
        plan = whole if len(pieces) == 1 else whole.only(pieces[piece])
        pixels = cut_clips(video, plan, request.size)
        facts = CutFacts(
            random_clips=len(random),
            regular_clips=len(regular),
            duration=info.duration,
            width=info.width,
            height=info.height,
            frames_expected=info.expected_frames,
            frames_found=video.frames_in_file,
            frames_missing=video.frames_missing,
            fingerprint=video.fingerprint,
            piece=piece,
            pieces=len(pieces),
            clips=None if len(pieces) == 1 else pieces[piece],
        )
        boxes = np.array([box.as_row() for box in plan.boxes], dtype=np.float32)  # (V, 7)
        times = info.frame_times[plan.frames].astype(np.float32)  # (V, T)
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
    clips = facts.clips_here
    split = clips * 7 * 4
    times_end = split + clips * request.frames * 4
    shape = (clips, request.frames, 3, request.size, request.size)
    boxes = np.frombuffer(content, np.float32, clips * 7).reshape(clips, 7)
    times = np.frombuffer(content, np.float32, clips * request.frames, split).reshape(clips, -1)
    return CutVideo(
        facts=facts,
        boxes=boxes.copy(),  # these are kept, and must not keep the pixels
        times=times.copy(),
        pixels=torch.frombuffer(content, dtype=torch.uint8, offset=times_end).reshape(shape),
    )
