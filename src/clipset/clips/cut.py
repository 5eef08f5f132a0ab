"""Cutting clips: from a video and a plan to pixels, in one pass over the frames."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import UInt8
from torch import Tensor

from clipset.clips.box import ClipBox
from clipset.clips.colour import change_colours
from clipset.clips.sampling import ClipPlan

MAX_SCALE = 2.0  # the short side of a decoded frame, relative to the size of the clips
BATCH_FRAMES = 32  # frames that are cropped together

Frames = dict[int, UInt8[Tensor, "H W 3"]]  # by frame index
Positions = dict[int, list[tuple[int, int]]]  # frame index → clip index and position in that clip


@runtime_checkable
class FrameSource(Protocol):
    """A video file, or frames that were read from one."""

    def frames(
        self, indices: Sequence[int], *, short_side: int | None = None
    ) -> Iterator[tuple[int, UInt8[np.ndarray, "H W 3"]]]:
        """The frames with the given, increasing indices, each with its index."""


def cut_clips(video: FrameSource, plan: ClipPlan, clip_size: int) -> UInt8[Tensor, "V T 3 S S"]:
    """The pixels of every clip of the plan; each frame is decoded and converted once.

    Crops are taken while decoding, so memory holds the clips and a few frames, however long the
    video is.
    """
    positions: Positions = defaultdict(list)
    for (clip_index, position), frame_index in np.ndenumerate(plan.frame_indices):
        positions[int(frame_index)].append((clip_index, position))
    clips = torch.empty((*plan.frame_indices.shape, 3, clip_size, clip_size), dtype=torch.uint8)
    frames: Frames = {}
    short_side = round(clip_size * MAX_SCALE)
    for frame_index, pixels in video.frames(sorted(positions), short_side=short_side):
        frames[frame_index] = torch.from_numpy(pixels)
        if len(frames) == BATCH_FRAMES:
            _fill_clips(clips, frames, positions, plan.boxes)
            frames.clear()
    _fill_clips(clips, frames, positions, plan.boxes)
    for clip_index, change in enumerate(plan.colour_changes):
        if change is not None:
            clips[clip_index] = change_colours(clips[clip_index], change)
    return clips


def _fill_clips(
    clips: UInt8[Tensor, "V T 3 S S"],
    frames: Frames,
    positions: Positions,
    boxes: Sequence[ClipBox],
) -> None:
    """Copy the crops of some frames into all clips that use them, those of one clip together."""
    by_clip: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for frame_index in frames:
        for clip_index, position in positions[frame_index]:
            by_clip[clip_index][frame_index].append(position)
    for clip_index, in_clip in by_clip.items():
        crops = _crop([frames[i] for i in in_clip], boxes[clip_index], clips.shape[-1])
        crop_pixels, target = crops.numpy(), clips[clip_index].numpy()  # whose copies are faster
        for crop_index, clip_positions in enumerate(in_clip.values()):
            for position in clip_positions:
                target[position] = crop_pixels[crop_index]


def _crop(
    frames: Sequence[UInt8[Tensor, "H W 3"]], box: ClipBox, size: int
) -> UInt8[Tensor, "T 3 S S"]:
    height, width = frames[0].shape[:2]
    top, bottom = _pixel_range(box.top, box.bottom, height)
    left, right = _pixel_range(box.left, box.right, width)
    crops = torch.stack([frame[top:bottom, left:right] for frame in frames]).permute(0, 3, 1, 2)
    crops = F.interpolate(crops, (size, size), mode="bilinear", antialias=True)  # (T, 3, S, S)
    return crops.flip(-1) if box.flipped else crops


def _pixel_range(low: float, high: float, length: int) -> tuple[int, int]:
    """A range of fractions as a range of at least one pixel."""
    first = min(round(low * length), length - 1)
    return first, max(round(high * length), first + 1)
