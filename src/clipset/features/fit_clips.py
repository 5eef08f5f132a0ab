"""Clips that fit the videos: what the settings leave open (0) follows from durations and backbone.

An image backbone has no time inside: its clips are single frames, many enough that their order
tells what happens. A video backbone keeps its number of frames; in short videos its stride shrinks
until several clips fit side by side. Longer videos get clips in proportion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from clipset.backbones.registry import BackboneSpec
from clipset.clips.config import Sampling
from clipset.clips.decode import DecodeRequest
from clipset.data.catalog import Video
from clipset.errors import VideoError
from clipset.features.config import ExtractConfig
from clipset.features.decode_pool import decode_videos

SAMPLE_VIDEOS = 48  # videos whose duration is measured
NUM_TIMES = 8  # regular clips of a short video
NUM_CLIPS = 16  # random clips of a short video: two sets of 8, as in the paper
SECONDS_PER_CLIP = 1.0  # of a longer video
MAX_CLIPS = 128  # regular clips of a video of median duration
CLIPS_SIDE_BY_SIDE = 4  # of a video backbone, in a video of median duration
IMAGE_STRIDE = 3  # a frame stands for 0.1 s


def has_open_settings(config: ExtractConfig) -> bool:
    """Whether durations are needed to resolve the settings."""
    sampling = config.sampling
    return 0 in (
        config.frames, config.stride, sampling.num_clips, sampling.num_times, sampling.num_crops,
    )  # fmt: skip


def fit_clips(
    config: ExtractConfig, spec: BackboneSpec, duration: float
) -> tuple[BackboneSpec, Sampling]:
    """The spec and the sampling for videos of a median duration; values set by hand stay."""
    frames, stride = spec.frames, spec.stride
    if config.frames == 0 and spec.is_image:
        frames = 1
    if config.stride == 0:
        longest_stride = int(duration / CLIPS_SIDE_BY_SIDE * 30 / frames)
        stride = IMAGE_STRIDE if spec.is_image else max(min(stride, longest_stride), 1)
    sampling = config.sampling
    clips_per_minute = 60 / SECONDS_PER_CLIP * min(1.0, MAX_CLIPS * SECONDS_PER_CLIP / duration)
    if duration <= NUM_TIMES * SECONDS_PER_CLIP:
        clips_per_minute = 0.0
    if sampling.num_clips == 0:
        clip_rate = sampling.clips_per_minute or clips_per_minute
        sampling = replace(sampling, num_clips=NUM_CLIPS, clips_per_minute=clip_rate)
    if sampling.num_times == 0:
        clip_rate = sampling.times_per_minute or clips_per_minute
        sampling = replace(sampling, num_times=NUM_TIMES, times_per_minute=clip_rate)
    if sampling.num_crops == 0:
        sampling = replace(sampling, num_crops=1)
    return replace(spec, frames=frames, stride=stride), sampling


def describe_fit(spec: BackboneSpec, sampling: Sampling, duration: float) -> str:
    """What was decided and why, in one line."""
    if spec.is_image:
        clip_length = f"single frames, as {spec.name} encodes frames one by one"
    else:
        clip_length = f"{spec.frames} frames in {spec.span:.2g} s"
    clip_counts = f"{sampling.num_times} regular and {sampling.num_clips} random ones"
    if sampling.times_per_minute:
        clip_counts = f"{sampling.times_per_minute:.3g} a minute, regular and random ones"
    shown_duration = f"{duration:.2g}" if duration < 10 else f"{duration:.0f}"
    return f"clips for videos of about {shown_duration} s: {clip_length}; {clip_counts}"


def median_duration(videos: Sequence[Video], config: ExtractConfig) -> float:
    """The median duration of some videos from all over the list, read by the decoding workers.

    Videos that cannot be read are left out; 1 s if there is no other.
    """
    indices = np.linspace(0, len(videos) - 1, min(SAMPLE_VIDEOS, len(videos))).round().astype(int)
    sample_videos = [videos[video_index] for video_index in np.unique(indices)] if videos else []
    single_frame = Sampling(num_clips=1, num_times=1, num_crops=1)
    request = DecodeRequest(sampling=single_frame, span=0.1, frames=1, size=16, seed=0)
    durations = []
    with decode_videos(sample_videos, request, config) as results:
        for _, clips in results:
            if not isinstance(clips, VideoError):
                durations.append(clips.facts.duration)
    return float(np.median(durations)) if durations else 1.0
