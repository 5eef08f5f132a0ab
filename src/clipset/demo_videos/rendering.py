"""One demo video: four events in the order of its class, encoded as H.264.

Each event is filmed in two shots. Every shot has its own background, colours, sizes and speeds, so
that parts of one video have in common what happens when, and nothing else.

`clipset.demo_videos.rendering FOLDER SEED INDEX…` renders some videos and prints a line after each.
"""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import av
import numpy as np
from av.video.reformatter import VideoReformatter
from jaxtyping import UInt8
from numpy import ndarray
from numpy.random import Generator
from PIL import Image

from clipset.demo_videos.sprites import ANIMATIONS, Animation, draw_background, sample_canvas
from clipset.files import write_atomic

EVENT_KINDS = ("ball", "star", "rain", "wheel")
# Balanced: each kind is twice at each position, each ordered pair of neighbours occurs twice, and
# each order comes with its reverse. So a pair of events, or the first and the last, says little.
CLASSES = (
    "ball-star-wheel-rain",
    "rain-wheel-star-ball",
    "ball-wheel-star-rain",
    "rain-star-wheel-ball",
    "star-rain-ball-wheel",
    "wheel-ball-rain-star",
    "star-ball-rain-wheel",
    "wheel-rain-ball-star",
)
SHOTS_PER_EVENT = 2
GRAIN_MARGIN = 64  # pixels by which the noise pattern is shifted from frame to frame
ENCODER_OPTIONS = {
    "preset": "ultrafast",
    "x264-params": "cabac=1:deblock=1:aq-mode=1",  # smaller and cleaner for hardly more time
    "crf": "25",
    "threads": "1",  # the same bytes every time
}


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoSpec:
    """Size, timing and camera of a video; independent of its class."""

    width: int
    height: int
    frame_rate: int
    num_frames: int
    cut_times: tuple[float, ...]
    """seconds between the four events"""
    fade_seconds: float
    """length of a cross-fade; 0 is a hard cut"""
    noise_std: float
    """sensor noise on the scale 0..255"""
    camera_drift: int
    """largest shift of the camera to each side, in pixels"""
    drift_frequency: tuple[float, float]
    """of the drift in x and y, in Hz"""

    @property
    def duration(self) -> float:
        """Seconds."""
        return self.num_frames / self.frame_rate


class Shot(NamedTuple):
    """One of the shots of an event, from `start` to `end` seconds."""

    kind: str
    number: int
    start: float
    end: float


class Scene(NamedTuple):
    """What a shot looks like."""

    background: Image.Image
    animation: Animation


def class_of(video_index: int) -> str:
    """The class of a video; the classes take turns."""
    return CLASSES[video_index % len(CLASSES)]


def demo_video_id(video_index: int) -> str:
    """The path of a video inside the demo's folder."""
    return f"{class_of(video_index)}/{video_index // len(CLASSES):03d}.mp4"


def demo_rng(seed: int, video_index: int, *stream: int) -> Generator:
    """Random numbers of one video, or of one object in it; independent of all other videos."""
    return np.random.default_rng([seed, video_index, *stream])


def sample_video_spec(rng: Generator) -> VideoSpec:
    """Random size, frame rate, duration, cuts and camera of one video."""
    short_side = 2 * int(rng.integers(60, 85))
    long_side = min(320, 2 * round(short_side * rng.choice([1, 4 / 3, 3 / 2, 16 / 9]) / 2))
    width, height = (long_side, short_side) if rng.random() < 0.7 else (short_side, long_side)
    frame_rate = int(rng.choice([15, 20, 24, 25, 30]))
    num_frames = round(rng.uniform(5, 7) * frame_rate)
    lengths = rng.uniform(0.85, 1.15, len(EVENT_KINDS))  # relative lengths of the events
    cut_times = np.round(np.cumsum(lengths)[:3] / lengths.sum() * num_frames) / frame_rate
    return VideoSpec(
        width=width,
        height=height,
        frame_rate=frame_rate,
        num_frames=num_frames,
        cut_times=tuple(cut_times.tolist()),
        fade_seconds=float(rng.choice([0.0, rng.uniform(0.1, 0.3)])),
        noise_std=float(rng.uniform(0.3, 1.5)),
        camera_drift=round(short_side * rng.uniform(0, 0.06)),
        drift_frequency=(float(rng.uniform(0.05, 0.2)), float(rng.uniform(0.05, 0.2))),
    )


def list_shots(spec: VideoSpec, class_name: str) -> list[Shot]:
    """The shots of a class in order: those of an event share its span equally."""
    shots = []
    event_spans = pairwise((0.0, *spec.cut_times, spec.duration))
    for kind, (start, end) in zip(class_name.split("-"), event_spans, strict=True):
        shot_bounds = np.linspace(start, end, SHOTS_PER_EVENT + 1).tolist()
        shots += [Shot(kind, number, *span) for number, span in enumerate(pairwise(shot_bounds))]
    return shots


def render_video(seed: int, video_index: int) -> bytes:
    """One demo video as an MP4 file; a function of seed and index."""
    rng = demo_rng(seed, video_index)
    spec = sample_video_spec(rng)
    scenes = {
        (kind, number): draw_scene(demo_rng(seed, video_index, stream, number), spec, kind)
        for stream, kind in enumerate(EVENT_KINDS)
        for number in range(SHOTS_PER_EVENT)
    }
    frames = compose_frames(spec, scenes, class_of(video_index))
    return encode_mp4(frames, spec, rng)


def draw_scene(rng: Generator, spec: VideoSpec, kind: str) -> Scene:
    """A random background, and the animation of a kind of event on it."""
    margin = 2 * spec.camera_drift
    canvas = sample_canvas(rng, spec.width + margin, spec.height + margin)
    return Scene(draw_background(rng, canvas), ANIMATIONS[kind](rng, canvas))


def compose_frames(
    spec: VideoSpec, scenes: dict[tuple[str, int], Scene], class_name: str
) -> Iterator[Image.Image]:
    """The frames of a video: each shot in its time span, cut or faded into the next one."""
    shots = list_shots(spec, class_name)
    for frame_index in range(spec.num_frames):
        frame_time = frame_index / spec.frame_rate
        frame: Image.Image | None = None
        for shot in shots:
            opacity = _opacity(shot, frame_time, spec.fade_seconds)
            if opacity == 0:
                continue
            background, animation = scenes[shot.kind, shot.number]
            drawn_frame = background.copy()
            for sprite, x, y in animation(frame_time):
                corner = round(x - sprite.width / 2), round(y - sprite.height / 2)
                drawn_frame.paste(sprite, corner, sprite)
            frame = drawn_frame if frame is None else Image.blend(frame, drawn_frame, opacity)
        assert frame is not None  # the shots fill the video
        left, top = (
            round(spec.camera_drift * (1 + math.sin(2 * math.pi * frequency * frame_time)))
            for frequency in spec.drift_frequency
        )
        yield frame.crop((left, top, left + spec.width, top + spec.height))


def _opacity(shot: Shot, frame_time: float, fade_seconds: float) -> float:
    """The opacity of a shot over the one before it: 0, 1, or between them during a fade."""
    half_fade = fade_seconds / 2
    if frame_time >= shot.end + half_fade:
        return 0.0
    if half_fade == 0 or shot.start == 0:
        return float(frame_time >= shot.start)
    return min(1.0, max(0.0, (frame_time - shot.start + half_fade) / fade_seconds))


def encode_mp4(frames: Iterator[Image.Image], spec: VideoSpec, rng: Generator) -> bytes:
    """H.264 in MP4 with sensor noise on the luma; the same frames give the same bytes."""
    grain = _sample_grain(rng, spec)
    output_file, converter = io.BytesIO(), VideoReformatter()
    with av.open(output_file, "w", format="mp4", options={"fflags": "+bitexact"}) as container:
        options = ENCODER_OPTIONS | {"g": str(2 * spec.frame_rate)}  # a key frame every 2 seconds
        stream = container.add_stream("libx264", rate=spec.frame_rate, options=options)
        stream.width, stream.height, stream.pix_fmt = spec.width, spec.height, "yuv420p"
        stream.time_base = Fraction(1, spec.frame_rate)
        for frame_index, image in enumerate(frames):
            rgb_frame = av.VideoFrame.from_ndarray(np.asarray(image), format="rgb24")
            yuv_frame = converter.reformat(rgb_frame, format="yuv420p", threads=1)
            luma_plane = yuv_frame.planes[0]
            luma = np.frombuffer(memoryview(luma_plane), np.uint8).reshape(-1, luma_plane.line_size)
            top, left = rng.integers(0, GRAIN_MARGIN, 2, endpoint=True)
            luma[: spec.height, : spec.width] += grain[top:, left:][: spec.height, : spec.width]
            yuv_frame.pts = frame_index
            container.mux(stream.encode(yuv_frame))
        container.mux(stream.encode(None))
    return output_file.getvalue()


def _sample_grain(rng: Generator, spec: VideoSpec) -> UInt8[ndarray, "H W"]:
    """Noise to be added to the luma modulo 256; video luma is 16..235, so that nothing wraps."""
    grain_shape = (spec.height + GRAIN_MARGIN, spec.width + GRAIN_MARGIN)
    luma_noise = rng.normal(0, spec.noise_std, grain_shape).round().clip(-15, 15)
    return luma_noise.astype(np.int8).view(np.uint8)


def render_file(folder: Path, seed: int, video_index: int) -> None:
    """Render one video into the folder, atomically."""
    write_atomic(folder / demo_video_id(video_index), render_video(seed, video_index))


if __name__ == "__main__":
    try:
        for index in sys.argv[3:]:
            render_file(Path(sys.argv[1]), int(sys.argv[2]), int(index))
            sys.stdout.write(f"{index}\n")
            sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        sys.exit(str(error))
