"""The pixels of clips against a plain loop over boxes and frames."""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from clipset.clips.box import ClipBox
from clipset.clips.config import Sampling
from clipset.clips.cut import cut_clips
from clipset.clips.sampling import ClipPlan, regular_clips, sample_random_clips
from clipset.decoding.reader import open_video


def test_cutting_in_one_pass_equals_cutting_clip_by_clip(small_videos: Path) -> None:
    path = next(iter(sorted(small_videos.rglob("*.mp4"))))
    with open_video(path) as video:
        plan = sample_random_clips(
            video.info,
            Sampling(num_clips=5),
            span=0.5,
            frames=4,
            generator=np.random.default_rng(0),
        ) + regular_clips(video.info, Sampling(), span=0.5, frames=4)
        at_once = cut_clips(video, plan, 32)
    for clip, (box, frames) in enumerate(zip(plan.boxes, plan.frame_indices, strict=True)):
        for place, number in enumerate(frames.tolist()):
            with open_video(path) as video:
                ((_, pixels),) = video.frames([number], short_side=64)
            frame = torch.from_numpy(pixels).permute(2, 0, 1)[None]
            height, width = frame.shape[2:]
            crop = frame[
                :,
                :,
                round(box.top * height) : round(box.bottom * height),
                round(box.left * width) : round(box.right * width),
            ]
            alone = F.interpolate(crop, (32, 32), mode="bilinear", antialias=True)[0]
            alone = alone.flip(-1) if box.flipped else alone
            assert torch.equal(at_once[clip, place], alone)


def test_a_flipped_clip_is_the_mirror_of_the_same_clip(small_videos: Path) -> None:
    path = next(iter(sorted(small_videos.rglob("*.mp4"))))
    boxes = tuple(ClipBox(start=0.0, end=0.5, flipped=flipped) for flipped in (False, True))
    with open_video(path) as video:
        straight, mirrored = cut_clips(
            video, ClipPlan(boxes=boxes, frame_indices=np.array([[0, 3], [0, 3]])), 24
        )
    assert torch.equal(straight.flip(-1), mirrored)
    assert not torch.equal(straight, mirrored)


def test_a_frame_that_a_clip_shows_twice_is_the_same_both_times(small_videos: Path) -> None:
    path = next(iter(sorted(small_videos.rglob("*.mp4"))))
    plan = ClipPlan(boxes=(ClipBox(start=0.0, end=1.0),), frame_indices=np.array([[2, 2, 5]]))
    with open_video(path) as video:
        clip = cut_clips(video, plan, 24)[0]
    assert torch.equal(clip[0], clip[1])
    assert not torch.equal(clip[0], clip[2])
