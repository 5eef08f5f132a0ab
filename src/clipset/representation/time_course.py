"""The time course of a video: the mean of its clips, and how they differ from it, in order."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

COURSE_LENGTH = 8  # times that the clips of a video are averaged to
LATER_PART_WEIGHT = 0.5  # of refined tokens next to features
MIN_DEVIATION = 1e-3  # relative to the mean: less is rounding, in a video where nothing happens


def time_course(clips: Float[Tensor, "B V D"]) -> Float[Tensor, "B R"]:
    """The normalised mean next to the normalised deviations from it at `COURSE_LENGTH` times.

    So the cosine of two videos is the mean of two cosines: of what they show, and of what happens
    when.
    """
    course = F.adaptive_avg_pool1d(clips.mT, COURSE_LENGTH).mT  # (B, T, D)
    course_mean = course.mean(dim=1)
    deviations = (course - course_mean[:, None]).flatten(1)  # (B, T * D)
    min_norm = MIN_DEVIATION * course_mean.norm(dim=1, keepdim=True) + 1e-12
    deviation_norms = deviations.norm(dim=1, keepdim=True).maximum(min_norm)
    return torch.cat([F.normalize(course_mean, dim=1), deviations / deviation_norms], dim=1)


def video_vectors(
    clips: Float[Tensor, "N V R"], valid: Bool[Tensor, "N V"] | None, part_widths: tuple[int, ...]
) -> Float[Tensor, "N Q"]:
    """The time courses of each part of the clips' vectors, side by side; the first weighs most.

    `valid` is False for padding, which comes last.
    """
    clip_counts = [clips.shape[1]] * len(clips) if valid is None else valid.sum(dim=1).tolist()
    vector_width = len(part_widths) and (1 + COURSE_LENGTH) * sum(part_widths)
    course_vectors = torch.zeros(len(clips), vector_width)
    for clip_count in set(clip_counts):
        video_index = [index for index, other in enumerate(clip_counts) if other == clip_count]
        parts = clips[video_index, :clip_count].split(part_widths, dim=-1)
        first, *later = (time_course(part) for part in parts)
        course_vectors[video_index] = torch.cat(
            [first, *(LATER_PART_WEIGHT * course for course in later)], dim=1
        )
    return course_vectors


def course_widths(part_widths: tuple[int, ...]) -> tuple[int, ...]:
    """The widths of the means and deviations of each part in such a vector."""
    return tuple(size for width in part_widths for size in (width, COURSE_LENGTH * width))
