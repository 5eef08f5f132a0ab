"""From seed and index to the bytes of one demo video."""

from __future__ import annotations

import io
import math
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

from clipset.config import write_atomic
from clipset.demo.paint import PAINTERS, Painter, Stamp, draw_backdrop, draw_stage
from clipset.demo.story import (
    KINDS,
    Event,
    Shoot,
    class_of,
    draw_shoot,
    events_of,
    video_generator,
    video_id,
)

GRAIN_PLAY = 64  # pixels by which the grain is moved about from frame to frame
ENCODER = {
    "preset": "ultrafast",
    "x264-params": "cabac=1:deblock=1:aq-mode=1",  # smaller and cleaner for hardly more time
    "crf": "25",
    "threads": "1",  # the same bytes every time
}


def render_file(folder: Path, seed: int, index: int) -> None:
    """Render one video into the folder; a file under its final name is always whole."""
    write_atomic(folder / video_id(index), render_video(seed, index))


def render_video(seed: int, index: int) -> bytes:
    """One demo video as an MP4 file; depends on nothing but seed and index."""
    rng = video_generator(seed, index)
    shoot = draw_shoot(rng)
    stage = draw_stage(rng, shoot.width + 2 * shoot.drift, shoot.height + 2 * shoot.drift)
    backdrop = draw_backdrop(rng, stage)
    painters = {
        kind: PAINTERS[kind](video_generator(seed, index, number), stage)
        for number, kind in enumerate(KINDS)
    }
    events = events_of(shoot, class_of(index))
    frames = film(shoot, backdrop, [(event, painters[event.kind]) for event in events])
    return encode(frames, shoot, draw_grain(rng, shoot), rng)


def film(
    shoot: Shoot, backdrop: Image.Image, events: list[tuple[Event, Painter]]
) -> Iterator[Image.Image]:
    """The frames of a video: each event in its time, cut or faded into the next one."""
    for number in range(shoot.frames):
        time = number / shoot.rate
        canvas = backdrop
        for event, painter in events:
            share = _share(event, time, shoot)
            if share > 0:
                canvas = _over(canvas, _painted(backdrop, painter(time)), share)
        left, top = (
            round(shoot.drift * (1 + math.sin(2 * math.pi * sway * time))) for sway in shoot.sway
        )
        yield canvas.crop((left, top, left + shoot.width, top + shoot.height))


def _share(event: Event, time: float, shoot: Shoot) -> float:
    """How much an event covers what came before it: 0, 1, or between them while it fades in."""
    half = shoot.fade / 2
    if time >= event.end + half:
        return 0.0
    if half == 0 or event.start == 0:
        return float(time >= event.start)
    return min(1.0, max(0.0, (time - event.start + half) / shoot.fade))


def _painted(backdrop: Image.Image, stamps: list[Stamp]) -> Image.Image:
    """A copy of the backdrop with sprites on it."""
    canvas = backdrop.copy()
    for sprite, x, y in stamps:
        canvas.paste(sprite, (round(x - sprite.width / 2), round(y - sprite.height / 2)), sprite)
    return canvas


def _over(below: Image.Image, above: Image.Image, share: float) -> Image.Image:
    return above if share >= 1 else Image.blend(below, above, share)


def draw_grain(rng: Generator, shoot: Shoot) -> UInt8[ndarray, "H W"]:
    """Noise to be added to the luma modulo 256; video luma is 16..235, so that nothing wraps."""
    shape = (shoot.height + GRAIN_PLAY, shoot.width + GRAIN_PLAY)
    noise = rng.normal(0, shoot.noise, shape).round().clip(-15, 15)
    return noise.astype(np.int8).view(np.uint8)


def encode(
    frames: Iterator[Image.Image], shoot: Shoot, grain: UInt8[ndarray, "H W"], rng: Generator
) -> bytes:
    """H.264 in MP4: the same frames, the same bytes."""
    file, converter = io.BytesIO(), VideoReformatter()
    with av.open(file, "w", format="mp4", options={"fflags": "+bitexact"}) as container:
        options = ENCODER | {"g": str(2 * shoot.rate)}  # a key frame every two seconds
        stream = container.add_stream("libx264", rate=shoot.rate, options=options)
        stream.width, stream.height, stream.pix_fmt = shoot.width, shoot.height, "yuv420p"
        stream.time_base = Fraction(1, shoot.rate)
        for number, image in enumerate(frames):
            picture = av.VideoFrame.from_ndarray(np.asarray(image), format="rgb24")
            frame = converter.reformat(picture, format="yuv420p", threads=1)
            _add_grain(frame, grain, rng)
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file.getvalue()


def _add_grain(frame: av.VideoFrame, grain: UInt8[ndarray, "H W"], rng: Generator) -> None:
    plane = frame.planes[0]
    luma = np.frombuffer(memoryview(plane), np.uint8).reshape(-1, plane.line_size)
    top, left = rng.integers(0, GRAIN_PLAY, 2, endpoint=True)
    moved = grain[top : top + frame.height, left : left + frame.width]
    luma[: frame.height, : frame.width] += moved
