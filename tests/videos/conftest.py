"""Makes video files of every kind; each frame shows its own number, so that a frame can be told."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

os.environ.setdefault("SVT_LOG", "0")  # an encoder that writes to the terminal by itself
BITS = 8


def numbered(number: int, width: int, height: int) -> np.ndarray:
    """A picture of upright bars: the bits of `number`, the highest one on the left."""
    bits = [(number >> bit) & 1 for bit in reversed(range(BITS))]
    columns = np.repeat(np.array(bits, dtype=np.uint8) * 200 + 25, -(-width // BITS))[:width]
    return np.ascontiguousarray(np.broadcast_to(columns[None, :, None], (height, width, 3)))


def number_of(pixels: np.ndarray) -> int:
    """The number that a picture shows, also after lossy compression and scaling."""
    width = pixels.shape[1]
    centres = [int((bit + 0.5) * width / BITS) for bit in range(BITS)]
    shades = pixels[pixels.shape[0] // 2, centres].mean(axis=-1)
    return sum(int(shade > 125) << (BITS - 1 - bit) for bit, shade in enumerate(shades))


def make_video(
    path: Path,
    *,
    count: int = 24,
    size: tuple[int, int] = (64, 48),
    codec: str = "libx264",
    pix_fmt: str = "yuv420p",
    rate: int = 25,
    options: dict[str, str] | None = None,
    container_options: dict[str, str] | None = None,
    times: Sequence[int] | None = None,
    noise: bool = False,
    setup: Callable[[Any], None] | None = None,
    format: str | None = None,
) -> Path:
    """Write `count` numbered frames; `times` are their places on a clock of milliseconds."""
    with av.open(str(path), "w", format=format, container_options=container_options or {}) as file:
        stream = file.add_stream(codec, rate=rate, options=options or {})
        stream.width, stream.height = size
        stream.pix_fmt = pix_fmt
        stream.codec_context.thread_count = 1
        if times is not None:
            stream.codec_context.time_base = stream.time_base = Fraction(1, 1000)
        if setup is not None:
            setup(stream)
        generator = np.random.default_rng(0)
        for number in range(count):
            picture = numbered(number, *size)
            if noise:  # in the lower part, so that packets are large
                lower = picture[size[1] * 2 // 3 :]
                lower[:] = generator.integers(0, 256, lower.shape)
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts = number if times is None else times[number]
            frame.time_base = Fraction(1, rate) if times is None else Fraction(1, 1000)
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
    return path


def seen(reader: Any, wanted: Sequence[int] | None = None, **how: Any) -> list[int]:
    """The numbers that the wanted frames show (all frames if nothing is said)."""
    wanted = range(len(reader.info.frame_times)) if wanted is None else wanted
    frames = list(reader.frames(wanted, **how))
    assert [number for number, _ in frames] == list(wanted)
    return [number_of(pixels) for _, pixels in frames]


@pytest.fixture(name="make_video", scope="session")
def make_video_fixture() -> Callable[..., Path]:
    return make_video


@pytest.fixture(name="seen", scope="session")
def seen_fixture() -> Callable[..., list[int]]:
    return seen
