"""Which clips of a video are looked at: random ones to learn from, regular ones to judge by."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int
from numpy.random import Generator

from clipset.clips.box import ClipBox
from clipset.clips.colour import ColourChange, draw_colour_change
from clipset.clips.config import Sampling
from clipset.clips.crops import Crop, draw_crop, regular_crops
from clipset.clips.frame_times import clip_frames, clip_range, frames_at, regular_starts
from clipset.decoding.reader import VideoInfo
from clipset.errors import ClipError

__all__ = [
    "ClipPlan",
    "frames_at",
    "regular_clips",
    "sample_random_clips",
    "video_generator",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipPlan:
    """What has to be cut from one video: V boxes, and the T frames that each one shows.

    `colours` says for each clip how its colours are changed, or is empty if none are.
    """

    boxes: tuple[ClipBox, ...]
    frames: Int[np.ndarray, "V T"]
    colours: tuple[ColourChange | None, ...] = ()

    def __post_init__(self) -> None:
        if self.colours and len(self.colours) != len(self.boxes):
            raise ClipError(
                f"a plan of {len(self.boxes)} clips needs as many colour changes or none, "
                f"got {len(self.colours)}"
            )

    def __len__(self) -> int:
        return len(self.boxes)

    def __add__(self, other: ClipPlan) -> ClipPlan:
        frames = np.concatenate([self.frames, other.frames])  # (V + V', T)
        colours: tuple[ColourChange | None, ...] = ()
        if self.colours or other.colours:
            colours = self._all_colours() + other._all_colours()
        return ClipPlan(boxes=self.boxes + other.boxes, frames=frames, colours=colours)

    def only(self, clips: Sequence[int]) -> ClipPlan:
        """The plan of some of the clips."""
        colours = tuple(self.colours[clip] for clip in clips) if self.colours else ()
        boxes = tuple(self.boxes[clip] for clip in clips)
        return ClipPlan(boxes=boxes, frames=self.frames[list(clips)], colours=colours)

    def _all_colours(self) -> tuple[ColourChange | None, ...]:
        return self.colours or (None,) * len(self)


def video_generator(seed: int, video_id: str) -> Generator:
    """The chance of one video: depends on the seed and the id, never on the order of the work."""
    digest = hashlib.sha256(video_id.encode("utf-8", errors="surrogateescape")).digest()
    return np.random.default_rng([seed, int.from_bytes(digest[:8], "big")])


def sample_random_clips(
    info: VideoInfo, sampling: Sampling, *, span: float, frames: int, generator: Generator
) -> ClipPlan:
    """Clips at uniformly random times, each with its own random crop, flip and colours."""
    starts, boxes = [], []
    for _ in range(_count(sampling.clips, sampling.clips_per_minute, info)):
        start = generator.uniform(0.0, 1.0) * max(info.duration - span, 0.0)
        crop = draw_crop(info.width, info.height, sampling, generator)
        flipped = bool(generator.random() < 0.5) and sampling.flip
        starts.append(start)
        boxes.append(_box(clip_range(start, info, sampling, span), crop, flipped))
    shape = (len(boxes), frames)
    within = generator.random(shape) if sampling.timing == "segments" else np.zeros(shape)
    colours: Iterable[ColourChange | None] = ()
    if sampling.colours.change:
        colours = [draw_colour_change(sampling.colours, generator) for _ in boxes]
    return ClipPlan(
        boxes=tuple(boxes),
        frames=clip_frames(np.array(starts), within, info, sampling, span),
        colours=tuple(colours),
    )


def regular_clips(info: VideoInfo, sampling: Sampling, *, span: float, frames: int) -> ClipPlan:
    """`times` x `places` clips that cover the video: the same ones on every call.

    By segments, every clip covers the whole video, and times differ in where in its segment a
    frame is: one time in the middle, two at a quarter and three quarters, and so on.
    """
    times = _count(sampling.times, sampling.times_per_minute, info)
    starts = regular_starts(max(info.duration - span, 0.0), times, sampling.reach_end)
    crops = regular_crops(info.width, info.height, sampling)
    boxes = [
        _box(clip_range(start, info, sampling, span), crop, False)
        for start in starts.tolist()
        for crop in crops
    ]
    within = np.repeat((np.arange(times) + 0.5)[:, None] / times, frames, axis=1)  # (times, T)
    shown = clip_frames(starts, within, info, sampling, span)  # (times, T)
    return ClipPlan(boxes=tuple(boxes), frames=np.repeat(shown, len(crops), axis=0))


def _count(least: int, per_minute: float, info: VideoInfo) -> int:
    """In proportion to the length of the video, but never fewer than for a short one."""
    return max(least, math.ceil(per_minute * info.duration / 60))


def _box(times: tuple[float, float], crop: Crop, flipped: bool) -> ClipBox:
    (start, end), (top, left, bottom, right) = times, crop
    return ClipBox(
        start=start, end=end, top=top, left=left, bottom=bottom, right=right, flipped=flipped
    )
