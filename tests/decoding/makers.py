"""Makes video files of every kind; each frame shows its own number, to identify it."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

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
    """Write `count` numbered frames; `times` are their timestamps in milliseconds."""
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


def read_numbers(reader: Any, indices: Sequence[int] | None = None, **how: Any) -> list[int]:
    """The numbers that the requested frames show (by default, all frames)."""
    indices = range(len(reader.info.frame_times)) if indices is None else indices
    frames = list(reader.frames(indices, **how))
    assert [number for number, _ in frames] == list(indices)
    return [number_of(pixels) for _, pixels in frames]


GROUPS_OF_10 = {"x264-params": "bframes=3:keyint=10:scenecut=0:b-adapt=0"}
CUT_KINDS = {
    "front.mp4": {"options": GROUPS_OF_10, "container_options": {"movflags": "faststart"}},
    "back.mp4": {"options": GROUPS_OF_10},
    "a.avi": {"codec": "mpeg4", "options": {"g": "6", "bf": "0"}},
    "a.mkv": {"options": GROUPS_OF_10},
    "a.flv": {"codec": "flv", "options": {"g": "6"}},
}


def packets_of(path: Path) -> list[av.Packet]:
    with av.open(str(path)) as container:
        return [packet for packet in container.demux(video=0) if packet.size]


def numbers_of(packets: list[av.Packet]) -> list[int]:
    """The numbers of the frames that packets hold, in the order of time."""
    return sorted(round(float(packet.pts * packet.time_base) * 25) for packet in packets)


def cut_at(path: Path, share: float) -> tuple[Path, list[int]]:
    """The first part of a file, ending inside a packet, and the frames whose packets are whole."""
    content, packets = path.read_bytes(), packets_of(path)
    length = int(len(content) * share)
    whole = [packet for packet in packets if packet.pos + packet.size < length]
    if whole and len(whole) < len(packets):
        broken = packets[len(whole)]
        length = broken.pos + broken.size // 2
    part = path.with_name(f"cut_{share}_{path.name}")
    part.write_bytes(content[:length])
    return part, numbers_of(whole)


def without_keyframes(path: Path, out: Path) -> Path:
    with av.open(str(path)) as given, av.open(str(out), "w") as written:
        stream = written.add_stream_from_template(given.streams.video[0])
        for packet in given.demux(video=0):
            if packet.dts is not None and not packet.is_keyframe:
                packet.stream = stream
                written.mux(packet)
    return out


def flv_with_times(path: Path, times: list[int]) -> Path:
    """Set the clock (milliseconds) of each frame of an FLV file."""
    content, place, number = bytearray(path.read_bytes()), 13, 0
    while place < len(content):
        size = int.from_bytes(content[place + 1 : place + 4], "big")
        if content[place] == 9 and number < len(times):
            content[place + 4 : place + 7] = times[number].to_bytes(3, "big")
            number += 1
        place += 11 + size + 4
    path.write_bytes(content)
    return path


def spoil_the_middle(path: Path) -> int:
    """Overwrite a keyframe in the middle of a file; the number of its frame."""
    spoilt = next(packet for packet in packets_of(path)[8:] if packet.is_keyframe)
    content = bytearray(path.read_bytes())
    content[spoilt.pos : spoilt.pos + spoilt.size] = b"\xff" * spoilt.size
    path.write_bytes(content)
    return round(float(spoilt.pts * spoilt.time_base) * 25)


def claim_frames(path: Path, count: int) -> Path:
    """Have the header of an AVI file claim so many frames."""
    content = bytearray(path.read_bytes())
    for tag, offset in ((b"avih", 24), (b"strh", 40)):
        place = content.index(tag) + offset
        content[place : place + 4] = struct.pack("<I", count)
    path.write_bytes(content)
    return path


def claim_size(path: Path, width: int, height: int) -> Path:
    """Have the header of an AVI file claim that size."""
    content = bytearray(path.read_bytes())
    place = content.index(b"strf") + 12
    content[place : place + 8] = struct.pack("<ii", width, height)
    path.write_bytes(content)
    return path


def make_sound(path: Path) -> Path:
    """A file with sound and nothing else."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=16000)
        silence = np.zeros((1, 1024), dtype=np.float32)
        frame = av.AudioFrame.from_ndarray(silence, format="fltp", layout="mono")
        frame.rate = 16000
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def make_many_frames(path: Path, count: int = 100_000) -> Path:
    """Many tiny frames, made of 256 that repeat."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mjpeg", rate=1000)
        stream.width = stream.height = 16
        stream.pix_fmt = "yuvj420p"
        shades = np.arange(256, dtype=np.uint8)
        pictures = [np.full((16, 16, 3), shade, dtype=np.uint8) for shade in shades]
        frames = [av.VideoFrame.from_ndarray(picture, format="rgb24") for picture in pictures]
        contents = [bytes(packet) for frame in frames for packet in stream.encode(frame)]
        for number in range(count):
            packet = av.Packet(contents[number % 256])
            packet.pts = packet.dts = number
            packet.time_base = Fraction(1, 1000)
            packet.is_keyframe = True
            packet.stream = stream
            container.mux(packet)
    return path


def make_long_video(
    path: Path, *, seconds: int = 3600, rate: int = 5, size: tuple[int, int] = (1280, 720)
) -> Path:
    """A long video, made of a few seconds that repeat; a keyframe every few seconds."""
    with av.open(str(path), "w") as container:
        options = {"preset": "ultrafast", "x264-params": "bframes=0:scenecut=0"}
        stream = container.add_stream("libx264", rate=rate, options=options)
        stream.width, stream.height = size
        stream.pix_fmt, stream.gop_size = "yuv420p", 2 * rate
        pictures = [numbered(number, *size) for number in range(2 * rate)]
        frames = [av.VideoFrame.from_ndarray(picture, format="rgb24") for picture in pictures]
        made = [packet for frame in frames for packet in stream.encode(frame)]
        made += stream.encode()
        contents = [bytes(packet) for packet in made]
        for number in range(seconds * rate):
            packet = av.Packet(contents[number % len(contents)])
            packet.pts = packet.dts = number
            packet.duration = 1
            packet.time_base = Fraction(1, rate)
            packet.is_keyframe = number % len(contents) == 0
            packet.stream = stream
            container.mux(packet)
    return path
