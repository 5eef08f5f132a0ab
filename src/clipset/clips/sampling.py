"""Plans of the clips of a video: random ones for training, regular ones for evaluation."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int
from numpy.random import Generator

from clipset.clips.box import ClipBox
from clipset.clips.colour import ColourChange, draw_colour_change
from clipset.clips.config import Sampling
from clipset.clips.crops import Crop, draw_crop, regular_crops
from clipset.clips.frame_times import clip_frame_indices, clip_range, regular_starts
from clipset.decoding.reader import VideoInfo
from clipset.errors import ClipError


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipPlan:
    """The clips to cut from one video: V boxes, and the indices of the T frames of each.

    `colour_changes` has one entry for each clip, or is empty if no clip changes.
    """

    boxes: tuple[ClipBox, ...]
    frame_indices: Int[np.ndarray, "V T"]
    colour_changes: tuple[ColourChange | None, ...] = ()

    def __post_init__(self) -> None:
        if self.colour_changes and len(self.colour_changes) != len(self.boxes):
            raise ClipError(
                f"a plan of {len(self.boxes)} clips needs as many colour changes or none, "
                f"got {len(self.colour_changes)}"
            )

    def __len__(self) -> int:
        return len(self.boxes)

    def __add__(self, other: ClipPlan) -> ClipPlan:
        indices = np.concatenate([self.frame_indices, other.frame_indices])  # (V + V', T)
        changes: tuple[ColourChange | None, ...] = ()
        if self.colour_changes or other.colour_changes:
            changes = self._padded_changes() + other._padded_changes()
        return ClipPlan(
            boxes=self.boxes + other.boxes, frame_indices=indices, colour_changes=changes
        )

    def only(self, clips: Sequence[int]) -> ClipPlan:
        """The plan of some of the clips, by index."""
        changes = tuple(self.colour_changes[clip] for clip in clips) if self.colour_changes else ()
        boxes = tuple(self.boxes[clip] for clip in clips)
        return ClipPlan(
            boxes=boxes, frame_indices=self.frame_indices[list(clips)], colour_changes=changes
        )

    def _padded_changes(self) -> tuple[ColourChange | None, ...]:
        return self.colour_changes or (None,) * len(self)


def video_generator(seed: int, video_id: str) -> Generator:
    """The generator of one video: it depends on the seed and the id, not on the order of work."""
    digest = hashlib.sha256(video_id.encode("utf-8", errors="surrogateescape")).digest()
    return np.random.default_rng([seed, int.from_bytes(digest[:8], "big")])


def sample_random_clips(
    info: VideoInfo, sampling: Sampling, *, span: float, frames: int, generator: Generator
) -> ClipPlan:
    """Clips at uniformly random times, each with its own random crop, flip and colour change."""
    starts, boxes = [], []
    for _ in range(_count(sampling.num_clips, sampling.clips_per_minute, info)):
        start = generator.uniform(0.0, 1.0) * max(info.duration - span, 0.0)
        crop = draw_crop(info.width, info.height, sampling, generator)
        flipped = bool(generator.random() < 0.5) and sampling.flip
        starts.append(start)
        boxes.append(_box(clip_range(start, info, sampling, span), crop, flipped))
    shape = (len(boxes), frames)
    offsets = generator.random(shape) if sampling.timing == "segments" else np.zeros(shape)
    changes: tuple[ColourChange, ...] = ()
    if sampling.augmentation.enabled:
        changes = tuple(draw_colour_change(sampling.augmentation, generator) for _ in boxes)
    return ClipPlan(
        boxes=tuple(boxes),
        frame_indices=clip_frame_indices(np.array(starts), offsets, info, sampling, span),
        colour_changes=changes,
    )


def regular_clips(info: VideoInfo, sampling: Sampling, *, span: float, frames: int) -> ClipPlan:
    """`num_times` x `num_crops` clips that cover the video; the same on every call.

    With segments, every clip covers the whole video, and the times are offsets within a segment:
    one time is its middle, two are a quarter and three quarters, and so on.
    """
    times = _count(sampling.num_times, sampling.times_per_minute, info)
    starts = regular_starts(max(info.duration - span, 0.0), times, sampling.reach_end)
    crops = regular_crops(info.width, info.height, sampling)
    boxes = [
        _box(clip_range(start, info, sampling, span), crop, False)
        for start in starts.tolist()
        for crop in crops
    ]
    offsets = np.repeat((np.arange(times) + 0.5)[:, None] / times, frames, axis=1)  # (times, T)
    indices = clip_frame_indices(starts, offsets, info, sampling, span)  # (times, T)
    return ClipPlan(boxes=tuple(boxes), frame_indices=np.repeat(indices, len(crops), axis=0))


def _count(minimum: int, per_minute: float, info: VideoInfo) -> int:
    """In proportion to the duration of the video, but at least the minimum."""
    return max(minimum, math.ceil(per_minute * info.duration / 60))


def _box(times: tuple[float, float], crop: Crop, flipped: bool) -> ClipBox:
    (start, end), (top, left, bottom, right) = times, crop
    return ClipBox(
        start=start, end=end, top=top, left=left, bottom=bottom, right=right, flipped=flipped
    )
