"""What a video file really holds: its packets, counted and ordered in time, not yet decoded."""

from __future__ import annotations

import os
import stat
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import cast

import av
import numpy as np
from av.container import InputContainer
from av.container.core import Flags
from av.packet import Packet
from av.stream import Disposition
from av.video.stream import VideoStream
from jaxtyping import Bool, Float64, Int64
from numpy import ndarray

from clipset.errors import VideoError

MAX_SIDE = 16_384
MAX_PIXELS = 2**26
MAX_PACKETS = 4_000_000
KEPT_BYTES = (
    2**26
)  # packets of files up to this size stay in memory between the scan and the decoding
JUMP_BACK = 1.0  # seconds; timestamps that fall back further start a new piece of the video
FILLER = 16  # bytes; an MPEG-4 packet this small holds no picture
NO_STAMP = int(np.iinfo(np.int64).min)

# Containers that hold a video by themselves: no playlists, no lists of files, no photographs.
CONTAINERS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpeg,mpegts,mpegvideo,asf,flv,live_flv,gif,ogg,"
    "m4v,h264,hevc,av1,obu,ivf,nut,mxf,dv,rm,wtv,apng,yuv4mpegpipe,mjpeg,nsv,swf"
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scan:
    """The packets of a video in the file's order, and the frames they hold in the order of time.

    `frame_of` is the frame that each packet holds, or -1; it is None if only the decoder knows the
    order, and frames are then counted as they come out.
    """

    times: Float64[ndarray, " frames"]
    duration: float
    frame_of: Int64[ndarray, " packets"] | None
    key: Bool[ndarray, " packets"]
    dts: Int64[ndarray, " packets"]
    packets: list[Packet[VideoStream]] | None


class VideoFile:
    """A video file that is open for reading packets."""

    def __init__(self, path: Path, threads: int) -> None:
        self.path = path
        self.threads = threads
        self.container, self.stream = _open_stream(path, threads)

    def reopen(self) -> None:
        """Start again from the first packet, with a fresh decoder."""
        self.close()
        self.container, self.stream = _open_stream(self.path, self.threads)

    def packets(self) -> Iterator[Packet[VideoStream]]:
        """The packets that hold something, up to the end or the first place that is unreadable."""
        try:
            for packet in self.container.demux(self.stream):
                if packet.size > 0:
                    yield packet
        except (av.FFmpegError, OSError, ValueError):
            return

    def close(self) -> None:
        self.container.close()


def scan_packets(file: VideoFile) -> Scan:
    """Read all packets once, without decoding, and order their frames in time."""
    seen = _Seen()
    for packet in file.packets():
        seen.add(packet)
    if not any(seen.shown):
        raise VideoError("the video stream is empty")
    return _order(seen, file.stream)


@dataclass(slots=True)
class _Seen:
    """What is noted about each packet during the scan."""

    pts: array[int] = field(default_factory=lambda: array("q"))
    dts: array[int] = field(default_factory=lambda: array("q"))
    lasts: array[int] = field(default_factory=lambda: array("q"))
    key: bytearray = field(default_factory=bytearray)
    shown: bytearray = field(default_factory=bytearray)
    pictures: int = 0
    packed: bool = False
    kept: list[Packet[VideoStream]] | None = field(default_factory=list)
    kept_bytes: int = 0

    def add(self, packet: Packet[VideoStream]) -> None:
        number = len(self.pts)
        if number >= MAX_PACKETS:
            raise VideoError(f"more than {MAX_PACKETS:,} frames")
        self.pts.append(stamp_of(packet.pts))
        self.dts.append(stamp_of(packet.dts))
        self.lasts.append(packet.duration or 0)
        self.key.append(packet.is_keyframe)
        self.shown.append(not (packet.is_discard or packet.is_corrupt or _is_hidden(packet)))
        self.pictures += self._pictures_in(packet)
        self._keep(packet, number)

    def _pictures_in(self, packet: Packet[VideoStream]) -> int:
        """How many pictures a packet sets free: DivX packs two into one, then sends a filler."""
        if packet.pts is not None or packet.stream.codec_context.name != "mpeg4":
            return 1
        if packet.size <= FILLER:
            packed, self.packed = self.packed, False
            return int(packed)
        self.packed = bytes(packet).count(b"\0\0\1\xb6") > 1
        return 1

    def _keep(self, packet: Packet[VideoStream], number: int) -> None:
        self.kept_bytes += packet.size
        if self.kept_bytes > KEPT_BYTES:
            self.kept = None
        if self.kept is not None:
            packet.opaque = (number,)
            self.kept.append(packet)


def stamp_of(stamp: int | None) -> int:
    """A timestamp as a number; a missing one is NO_STAMP."""
    return NO_STAMP if stamp is None else stamp


def _is_hidden(packet: Packet[VideoStream]) -> bool:
    """Whether a packet only prepares later frames (VP8's bit show_frame is not set)."""
    return packet.stream.codec_context.name == "vp8" and not bytes(packet)[0] & 16


def _order(seen: _Seen, stream: VideoStream) -> Scan:
    """Put the noted packets in the order of time."""
    pts, dts = np.array(seen.pts), np.array(seen.dts)
    shown = np.array(seen.shown, dtype=bool)
    counted = bool((pts[shown] == NO_STAMP).any())
    stamps = dts if counted else pts
    seconds = _seconds(stamps, dts, shown, stream)
    order = np.argsort(seconds[shown], kind="stable")
    frame_of = np.full(len(pts), -1, dtype=np.int64)
    frame_of[np.flatnonzero(shown)[order]] = np.arange(len(order))
    times = seconds[shown][order]
    counted = counted and stream.codec_context.has_b_frames
    if counted:
        times = times[: max(1, seen.pictures)]
    times = _increasing(times - times[0])
    last = float(np.array(seen.lasts)[shown][order][len(times) - 1] * (stream.time_base or 0))
    return Scan(
        times=times,
        duration=float(times[-1]) + (last if last > 0 else _usual_gap(times, stream)),
        frame_of=None if counted else frame_of,
        key=np.array(seen.key, dtype=bool),
        dts=dts,
        packets=seen.kept,
    )


def _seconds(
    stamps: Int64[ndarray, " packets"],
    dts: Int64[ndarray, " packets"],
    shown: Bool[ndarray, " packets"],
    stream: VideoStream,
) -> Float64[ndarray, " packets"]:
    """The presentation time of each packet; pieces whose clock was set back follow one another."""
    gap = 1.0 / float(_rate(stream))
    if (stamps[shown] == NO_STAMP).any():
        return np.arange(len(stamps)) * gap
    base = float(stream.time_base or Fraction(1))
    seconds = np.where(stamps == NO_STAMP, 0, stamps) * base
    clock = np.where(dts == NO_STAMP, seconds, dts * base)
    back = np.flatnonzero((np.diff(clock) < -JUMP_BACK) & shown[1:] & shown[:-1]) + 1
    for start in back.tolist():
        end_before = seconds[:start][shown[:start]].max() + gap
        piece = slice(start, _next(back, start, len(seconds)))
        seconds[start:] += end_before - seconds[piece][shown[piece]].min()
    return seconds


def _next(starts: Int64[ndarray, " n"], start: int, end: int) -> int:
    later = starts[starts > start]
    return int(later[0]) if len(later) else end


def _increasing(times: Float64[ndarray, " frames"]) -> Float64[ndarray, " frames"]:
    """The same times, where equal ones are set a microsecond apart."""
    if len(times) < 2 or np.diff(times).min() > 0:
        return times
    steps = np.arange(len(times)) * 1e-6
    later: Float64[ndarray, " frames"] = np.maximum.accumulate(times - steps) + steps
    return later


def _usual_gap(times: Float64[ndarray, " frames"], stream: VideoStream) -> float:
    return float(np.median(np.diff(times))) if len(times) > 1 else 1.0 / float(_rate(stream))


def _rate(stream: VideoStream) -> Fraction:
    """Frames in a second as the header says, if it says something possible."""
    rate = stream.average_rate or stream.guessed_rate
    return rate if rate is not None and 0 < rate <= 1000 else Fraction(25)


def _open_stream(path: Path, threads: int) -> tuple[InputContainer, VideoStream]:
    _refuse_what_is_no_file(path)
    options = {"format_whitelist": CONTAINERS, "protocol_whitelist": "file"}
    try:
        container = av.open(f"file:{path}", container_options=options, metadata_errors="replace")
    except (av.FFmpegError, OSError, ValueError, RuntimeError) as error:
        raise VideoError(f"not a video file ({_short(error)})") from None
    container.flags &= ~cast(int, Flags.gen_pts.value)  # guessed timestamps are worse than none
    try:
        return container, _video_stream(container, threads)
    except BaseException:
        container.close()
        raise


def _refuse_what_is_no_file(path: Path) -> None:
    """Say what is wrong with a path before FFmpeg sees it; never open a pipe."""
    try:
        status = path.stat()
    except OSError as error:
        raise VideoError(_plain(error)) from None
    if stat.S_ISDIR(status.st_mode):
        raise VideoError("is a directory")
    if not stat.S_ISREG(status.st_mode):
        raise VideoError("is not a regular file")
    if not os.access(path, os.R_OK):
        raise VideoError("permission denied")
    if status.st_size == 0:
        raise VideoError("empty file")


def _plain(error: OSError) -> str:
    return (error.strerror or str(error)).lower().replace("file or directory", "file")


def _short(error: Exception) -> str:
    text = getattr(error, "strerror", None) or type(error).__name__
    return str(text).lower().replace(" found when processing input", "")


def _video_stream(container: InputContainer, threads: int) -> VideoStream:
    """The stream to watch, ready to decode; covers and thumbnails do not count."""
    still = Disposition.attached_pic | Disposition.timed_thumbnails | Disposition.still_image
    moving = [stream for stream in container.streams.video if not stream.disposition & still]
    if not moving:
        raise VideoError("no video stream")
    best = container.streams.best("video")
    stream = next((stream for stream in moving if stream is best), moving[0])
    if stream.codec_context is None:
        raise VideoError("no decoder for this codec")
    check_size(stream.codec_context.width, stream.codec_context.height)
    stream.codec_context.thread_count = threads
    stream.codec_context.copy_opaque = True
    stream.codec_context.options = {"max_pixels": str(MAX_PIXELS)}
    return stream


def check_size(width: int, height: int) -> None:
    """Refuse frames that would eat the memory."""
    if width > MAX_SIDE or height > MAX_SIDE or width * height > MAX_PIXELS:
        raise VideoError(f"frames of {width}×{height} are too large")
