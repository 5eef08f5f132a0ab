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
from clipset.videos.decode import VideoReader

DETAIL = 2.0  # frames are read with the shorter side at most this many times the clip's size


def cut_clips(video: VideoReader, plan: ClipPlan, size: int) -> UInt8[Tensor, "V T 3 S S"]:
    """The pixels of every clip of the plan; each frame is decoded and converted once."""
    return cut_plans(video, [(plan, size)])[0]


def cut_plans(
    video: VideoReader, plans: Sequence[tuple[ClipPlan, int]]
) -> list[UInt8[Tensor, "_ _ 3 _ _"]]:
    """The pixels of the clips of several plans, each in its own size, in one pass.

    Crops are taken as the frames come by, so memory holds the clips and one frame, however long the
    video is.
    """
    uses = [_uses_of_frames(plan) for plan, _ in plans]
    shapes = [(*plan.frames.shape, 3, size, size) for plan, size in plans]
    cut = [torch.empty(shape, dtype=torch.uint8) for shape in shapes]
    for index, paint in video.paintings(sorted(set().union(*uses))):
        for (plan, size), used, clips in zip(plans, uses, cut, strict=True):
            if index not in used:
                continue
            frame = torch.from_numpy(paint(round(size * DETAIL))).permute(2, 0, 1)  # (3, H, W)
            for clip, places in used[index].items():
                clips[clip, places] = _crop(frame, plan.boxes[clip], size)
    for (plan, _), clips in zip(plans, cut, strict=True):
        for clip, change in enumerate(plan.colours):
            if change is not None:
                clips[clip] = change_colours(clips[clip], change)
    return cut


def _uses_of_frames(plan: ClipPlan) -> dict[int, dict[int, list[int]]]:
    """For each frame that is needed: the clips that show it, and where in the clip."""
    uses: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for (clip, place), index in np.ndenumerate(plan.frames):
        uses[int(index)][clip].append(place)
    return uses


def _crop(frame: UInt8[Tensor, "3 H W"], box: ClipBox, size: int) -> UInt8[Tensor, "3 S S"]:
    height, width = frame.shape[1:]
    top, bottom = _pixels(box.top, box.bottom, height)
    left, right = _pixels(box.left, box.right, width)
    crop = frame[None, :, top:bottom, left:right]
    crop = F.interpolate(crop, (size, size), mode="bilinear", antialias=True)[0]  # (3, S, S)
    return crop.flip(-1) if box.flipped else crop


def _pixels(low: float, high: float, length: int) -> tuple[int, int]:
    """A range of fractions as a range of at least one pixel."""
    first = min(round(low * length), length - 1)
    return first, max(round(high * length), first + 1)
