"""Render one demo video: sprites over a background, encoded as H.264. Also the worker process.

`clipset.demo_videos.rendering FOLDER SEED INDEX…` renders some videos and prints a line after each.
"""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.video.reformatter import VideoReformatter
from jaxtyping import UInt8
from numpy import ndarray
from numpy.random import Generator
from PIL import Image

from clipset.demo_videos.scene import (
    EVENT_KINDS,
    Event,
    VideoSpec,
    class_of,
    demo_rng,
    demo_video_id,
    list_events,
    sample_video_spec,
)
from clipset.demo_videos.sprites import (
    ANIMATIONS,
    Animation,
    PlacedSprite,
    draw_background,
    sample_canvas,
)
from clipset.files import write_atomic

GRAIN_MARGIN = 64  # pixels by which the noise pattern is shifted from frame to frame
ENCODER_OPTIONS = {
    "preset": "ultrafast",
    "x264-params": "cabac=1:deblock=1:aq-mode=1",  # smaller and cleaner for hardly more time
    "crf": "25",
    "threads": "1",  # the same bytes every time
}


def render_file(folder: Path, seed: int, index: int) -> None:
    """Render one video into the folder, atomically."""
    write_atomic(folder / demo_video_id(index), render_video(seed, index))


def render_video(seed: int, index: int) -> bytes:
    """One demo video as an MP4 file; a function of seed and index."""
    rng = demo_rng(seed, index)
    spec = sample_video_spec(rng)
    margin = 2 * spec.camera_drift
    canvas = sample_canvas(rng, spec.width + margin, spec.height + margin)
    background = draw_background(rng, canvas)
    animations = {
        kind: ANIMATIONS[kind](demo_rng(seed, index, stream), canvas)
        for stream, kind in enumerate(EVENT_KINDS)
    }
    events = list_events(spec, class_of(index))
    frames = compose_frames(spec, background, [(e, animations[e.kind]) for e in events])
    return encode_mp4(frames, spec, sample_grain(rng, spec), rng)


def compose_frames(
    spec: VideoSpec, background: Image.Image, events: list[tuple[Event, Animation]]
) -> Iterator[Image.Image]:
    """The frames of a video: each event in its time span, cut or faded into the next one."""
    for index in range(spec.num_frames):
        time = index / spec.frame_rate
        frame = background
        for event, animation in events:
            opacity = _opacity(event, time, spec)
            if opacity > 0:
                drawn = _paste_sprites(background, animation(time))
                frame = drawn if opacity >= 1 else Image.blend(frame, drawn, opacity)
        left, top = (
            round(spec.camera_drift * (1 + math.sin(2 * math.pi * frequency * time)))
            for frequency in spec.drift_frequency
        )
        yield frame.crop((left, top, left + spec.width, top + spec.height))


def _opacity(event: Event, time: float, spec: VideoSpec) -> float:
    """The opacity of an event over the one before it: 0, 1, or between them during a fade."""
    half = spec.fade_seconds / 2
    if time >= event.end + half:
        return 0.0
    if half == 0 or event.start == 0:
        return float(time >= event.start)
    return min(1.0, max(0.0, (time - event.start + half) / spec.fade_seconds))


def _paste_sprites(background: Image.Image, sprites: list[PlacedSprite]) -> Image.Image:
    image = background.copy()
    for sprite, x, y in sprites:
        image.paste(sprite, (round(x - sprite.width / 2), round(y - sprite.height / 2)), sprite)
    return image


def sample_grain(rng: Generator, spec: VideoSpec) -> UInt8[ndarray, "H W"]:
    """Noise to be added to the luma modulo 256; video luma is 16..235, so that nothing wraps."""
    shape = (spec.height + GRAIN_MARGIN, spec.width + GRAIN_MARGIN)
    noise = rng.normal(0, spec.noise_std, shape).round().clip(-15, 15)
    return noise.astype(np.int8).view(np.uint8)


def encode_mp4(
    frames: Iterator[Image.Image], spec: VideoSpec, grain: UInt8[ndarray, "H W"], rng: Generator
) -> bytes:
    """H.264 in MP4; the same frames give the same bytes."""
    file, converter = io.BytesIO(), VideoReformatter()
    with av.open(file, "w", format="mp4", options={"fflags": "+bitexact"}) as container:
        options = ENCODER_OPTIONS | {"g": str(2 * spec.frame_rate)}  # a key frame every 2 seconds
        stream = container.add_stream("libx264", rate=spec.frame_rate, options=options)
        stream.width, stream.height, stream.pix_fmt = spec.width, spec.height, "yuv420p"
        stream.time_base = Fraction(1, spec.frame_rate)
        for index, image in enumerate(frames):
            rgb_frame = av.VideoFrame.from_ndarray(np.asarray(image), format="rgb24")
            frame = converter.reformat(rgb_frame, format="yuv420p", threads=1)
            _add_grain(frame, grain, rng)
            frame.pts = index
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file.getvalue()


def _add_grain(frame: av.VideoFrame, grain: UInt8[ndarray, "H W"], rng: Generator) -> None:
    plane = frame.planes[0]
    luma = np.frombuffer(memoryview(plane), np.uint8).reshape(-1, plane.line_size)
    top, left = rng.integers(0, GRAIN_MARGIN, 2, endpoint=True)
    luma[: frame.height, : frame.width] += grain[
        top : top + frame.height, left : left + frame.width
    ]


def main(folder: str, seed: str, *indices: str) -> None:
    """Render these videos one after the other."""
    for index in indices:
        render_file(Path(folder), int(seed), int(index))
        sys.stdout.write(f"{index}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        sys.exit(str(error))
