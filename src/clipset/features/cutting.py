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
from clipset.clips.sampling import regular_clips, sample_random_clips, video_generator
from clipset.videos.decode import open_video


@dataclass(frozen=True, slots=True, kw_only=True)
class CutRequest:
    """How every video of a store is cut."""

    sampling: Sampling
    span: float
    frames: int
    size: int
    seed: int
    random: bool = True  # without, only the regular clips are cut


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


@dataclass(frozen=True, slots=True, kw_only=True)
class CutVideo:
    """The clips of one video, random ones first, ready for a backbone."""

    facts: CutFacts
    boxes: Float[np.ndarray, "V 7"]
    times: Float[np.ndarray, "V T"]
    pixels: UInt8[Tensor, "V T 3 S S"]


def cut_video(
    video_id: str, path: Path, request: CutRequest, *, end: float | None = None
) -> CutVideo:
    """Decode a video once (up to `end` seconds) and cut all its clips. Raises VideoError."""
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
        plan = random + regular if request.random else regular
        pixels = cut_clips(video, plan, request.size)
        facts = CutFacts(
            random_clips=len(plan) - len(regular),
            regular_clips=len(regular),
            duration=info.duration,
            width=info.width,
            height=info.height,
            frames_expected=info.expected_frames,
            frames_found=video.frames_in_file,
            frames_missing=video.frames_missing,
        )
        boxes = np.array([box.as_row() for box in plan.boxes], dtype=np.float32)  # (V, 7)
        times = info.frame_times[plan.frames].astype(np.float32)  # (V, T)
    return CutVideo(facts=facts, boxes=boxes, times=times, pixels=pixels)


def to_buffers(cut: CutVideo) -> list[memoryview]:
    """The arrays of a cut video as raw bytes, for a pipe."""
    arrays = (cut.boxes, cut.times, cut.pixels.numpy())
    return [memoryview(np.ascontiguousarray(array).data).cast("B") for array in arrays]


def from_buffer(content: bytearray, facts: CutFacts, request: CutRequest) -> CutVideo:
    """A cut video from the bytes of `to_buffers`."""
    clips = facts.random_clips + facts.regular_clips
    split = clips * 7 * 4
    times_end = split + clips * request.frames * 4
    shape = (clips, request.frames, 3, request.size, request.size)
    return CutVideo(
        facts=facts,
        boxes=np.frombuffer(content, np.float32, clips * 7).reshape(clips, 7),
        times=np.frombuffer(content, np.float32, clips * request.frames, split).reshape(clips, -1),
        pixels=torch.frombuffer(content, dtype=torch.uint8, offset=times_end).reshape(shape),
    )
