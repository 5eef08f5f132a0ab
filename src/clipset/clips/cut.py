"""From a video and a plan to the pixels of its clips, in one pass over the frames."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import UInt8
from torch import Tensor

from clipset.clips.box import ClipBox
from clipset.clips.colour import change_colours
from clipset.clips.sampling import ClipPlan
from clipset.decoding.reader import VideoReader

DETAIL = 2.0  # frames are read with the shorter side at most this many times the clip's size
TOGETHER = 32  # frames that are cut together

Frames = dict[int, UInt8[Tensor, "H W 3"]]
Uses = dict[int, dict[int, list[int]]]


def cut_clips(video: VideoReader, plan: ClipPlan, size: int) -> UInt8[Tensor, "V T 3 S S"]:
    """The pixels of every clip of the plan; each frame is decoded and converted once."""
    return cut_plans(video, [(plan, size)])[0]


def cut_plans(
    video: VideoReader, plans: Sequence[tuple[ClipPlan, int]]
) -> list[UInt8[Tensor, "_ _ 3 _ _"]]:
    """The pixels of the clips of several plans, each in its own size, in one pass.

    Crops are taken as the frames come by, so memory holds the clips and a few frames, however long
    the video is.
    """
    uses = [_uses_of_frames(plan) for plan, _ in plans]
    shapes = [(*plan.frames.shape, 3, size, size) for plan, size in plans]
    cut = [torch.empty(shape, dtype=torch.uint8) for shape in shapes]
    waiting: list[Frames] = [{} for _ in plans]
    for frame in video.decode(sorted(set().union(*uses))):
        for (plan, size), used, clips, frames in zip(plans, uses, cut, waiting, strict=True):
            if frame.index in used:
                frames[frame.index] = torch.from_numpy(frame.to_rgb(round(size * DETAIL)))
            if len(frames) == TOGETHER:
                _cut_frames(frames, used, plan, clips)
                frames.clear()
    for (plan, _), used, clips, frames in zip(plans, uses, cut, waiting, strict=True):
        _cut_frames(frames, used, plan, clips)
        for clip, change in enumerate(plan.colour_changes):
            if change is not None:
                clips[clip] = change_colours(clips[clip], change)
    return cut


def _uses_of_frames(plan: ClipPlan) -> Uses:
    """For each frame that is needed: the clips that show it, and where in the clip."""
    uses: Uses = defaultdict(lambda: defaultdict(list))
    for (clip, place), index in np.ndenumerate(plan.frames):
        uses[int(index)][clip].append(place)
    return uses


def _cut_frames(
    frames: Frames, uses: Uses, plan: ClipPlan, clips: UInt8[Tensor, "V T 3 S S"]
) -> None:
    """Put some frames into all clips that show them, those of one clip together."""
    shown: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for index in frames:
        for clip, places in uses[index].items():
            shown[clip] += [(place, index) for place in places]
    for clip, pairs in shown.items():
        numbers = dict.fromkeys(index for _, index in pairs)
        crops = _crop([frames[index] for index in numbers], plan.boxes[clip], clips.shape[-1])
        row = {index: row for row, index in enumerate(numbers)}
        shown_in, crop_of = clips[clip].numpy(), crops.numpy()  # it copies across layouts faster
        for place, index in pairs:
            shown_in[place] = crop_of[row[index]]


def _crop(
    frames: Sequence[UInt8[Tensor, "H W 3"]], box: ClipBox, size: int
) -> UInt8[Tensor, "T 3 S S"]:
    height, width = frames[0].shape[:2]
    top, bottom = _pixels(box.top, box.bottom, height)
    left, right = _pixels(box.left, box.right, width)
    crops = torch.stack([frame[top:bottom, left:right] for frame in frames]).permute(0, 3, 1, 2)
    crops = F.interpolate(crops, (size, size), mode="bilinear", antialias=True)  # (T, 3, S, S)
    return crops.flip(-1) if box.flipped else crops


def _pixels(low: float, high: float, length: int) -> tuple[int, int]:
    """A range of fractions as a range of at least one pixel."""
    first = min(round(low * length), length - 1)
    return first, max(round(high * length), first + 1)
