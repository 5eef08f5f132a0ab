"""VideoFile: the packets of a file that FFmpeg accepts as a video; other files are refused.

`scan_packets` reads all of them once, without decoding, and orders their frames in time.
"""

from __future__ import annotations

import os
import stat
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
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
MAX_CACHED_BYTES = 2**26  # up to this size, packets stay in memory from the scan to the decoding
PACKET_OVERHEAD = 512  # bytes of memory for each packet in addition to its content
MAX_JUMP_BACK = 1.0  # seconds; timestamps that jump back further start a new segment
MAX_FILLER_BYTES = 16  # an MPEG-4 packet this small contains no picture
MISSING_TIMESTAMP = int(np.iinfo(np.int64).min)
MAX_PAUSE = 6 * 3600.0  # seconds; the longest display time of a frame where most are short
MAX_PAUSE_GAPS = 10_000  # median gaps; the same limit where frames are far apart
MAX_GAP = 24 * 3600.0  # seconds; the longest display time of a frame in any video
DEFAULT_RATE = Fraction(25)  # frames per second, if the header has no plausible rate
READ_ERRORS = (av.FFmpegError, OSError, ValueError, LookupError, RuntimeError, ArithmeticError)

# Containers with a video of their own: no playlists, no lists of files, no photographs.
CONTAINERS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpeg,mpegts,mpegvideo,asf,flv,live_flv,gif,ogg,"
    "m4v,h264,hevc,av1,obu,ivf,nut,mxf,dv,rm,wtv,apng,yuv4mpegpipe,mjpeg,nsv,swf"
)
SIGNATURES = (b"RIFF", b"\x1aE\xdf\xa3", b"FLV", b"GIF8", b"OggS", b"\0\0\1\xba", b"0&\xb2u")


class VideoFile:
    """A video file, open for reading packets."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.status = _read_status(path)
        self.container, self.stream = _open_stream(path)

    def reopen(self) -> None:
        """Go back to the first packet, with a new codec context."""
        self.container.close()
        self.check_unchanged()
        self.container, self.stream = _open_stream(self.path)

    def check_unchanged(self) -> None:
        """Raise VideoError if the path is another file now."""
        if _read_status(self.path) != self.status:
            raise VideoError("the file changed while it was read", transient=True)

    def packets(self) -> Iterator[Packet[VideoStream]]:
        """The non-empty packets, up to the end or the first read error."""
        try:
            for packet in self.container.demux(self.stream):
                if packet.size > 0:
                    yield packet
        except READ_ERRORS:
            return


def _read_status(path: Path) -> tuple[int, int, int]:
    """Inode, size and modification time; raises VideoError, without opening it, if not a file."""
    try:
        status = path.stat()
    except OSError as error:
        reason = (error.strerror or str(error)).lower().replace("file or directory", "file")
        raise VideoError(reason, transient=True) from None
    except ValueError:
        raise VideoError("its path holds a NUL character") from None
    if stat.S_ISDIR(status.st_mode):
        raise VideoError("is a directory")
    if not stat.S_ISREG(status.st_mode):
        raise VideoError("is not a regular file")
    if not os.access(path, os.R_OK):
        raise VideoError("permission denied", transient=True)
    if status.st_size == 0:
        raise VideoError("empty file")
    return status.st_ino, status.st_size, status.st_mtime_ns


def _open_stream(path: Path) -> tuple[InputContainer, VideoStream]:
    """The container and its main video stream, ready to decode; not a cover or thumbnails."""
    options = {"format_whitelist": CONTAINERS, "protocol_whitelist": "file"}
    try:
        container = av.open(f"file:{path}", container_options=options, metadata_errors="replace")
    except READ_ERRORS as error:
        with path.open("rb") as file:
            start = file.read(12)
        is_video = start[4:8] in (b"ftyp", b"moov", b"mdat") or start.startswith(SIGNATURES)
        kind = "a broken video file" if is_video else "not a video file"
        reason = str(getattr(error, "strerror", None) or type(error).__name__).lower()
        reason = reason.replace(" found when processing input", "")
        raise VideoError(f"{kind} ({reason})") from None
    try:
        container.flags &= ~cast(int, Flags.gen_pts.value)  # generated timestamps are unreliable
        if len(container.streams) == 0:
            raise VideoError("a broken video file (no streams)")
        still = Disposition.attached_pic | Disposition.timed_thumbnails | Disposition.still_image
        streams = [stream for stream in container.streams.video if not stream.disposition & still]
        if not streams:
            raise VideoError("no video stream")
        best = container.streams.best("video")
        stream = next((stream for stream in streams if stream is best), streams[0])
        if stream.codec_context is None:
            raise VideoError("no decoder for this codec")
        check_size(stream.codec_context.width, stream.codec_context.height)
        stream.codec_context.thread_count = 1
        stream.codec_context.copy_opaque = True
        stream.codec_context.options = {"max_pixels": str(MAX_PIXELS)}
    except BaseException:
        container.close()
        raise
    return container, stream


def check_size(width: int, height: int) -> None:
    """Raise VideoError for frames that would take too much memory."""
    if width > MAX_SIDE or height > MAX_SIDE or width * height > MAX_PIXELS:
        raise VideoError(f"frames of {width}×{height} are too large")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PacketScan:
    """The packets of a video in file order, and their frames in order of time.

    `frame_of_packet` is the frame index of each packet, or -1 if it displays none. It is None if
    only the codec knows the order; decoded frames are then counted. `claimed_duration` is the
    duration by the timestamps if that is impossible; such gaps are replaced by the median gap.
    """

    frame_times: Float64[ndarray, " frames"]
    duration: float
    claimed_duration: float | None
    frame_of_packet: Int64[ndarray, " packets"] | None
    is_keyframe: Bool[ndarray, " packets"]
    dts: Int64[ndarray, " packets"]
    packets: list[Packet[VideoStream]] | None


def scan_packets(file: VideoFile) -> PacketScan:
    """Read all packets once, without decoding, and order their frames in time."""
    stream, codec_name = file.stream, file.stream.codec_context.name
    pts, dts, durations = array("q"), array("q"), array("q")
    is_keyframe, is_displayed = bytearray(), bytearray()
    cached_packets: list[Packet[VideoStream]] | None = []
    num_pictures = cached_bytes = 0
    has_packed_picture = False
    for index, packet in enumerate(file.packets()):
        if index >= MAX_PACKETS:
            raise VideoError(f"more than {MAX_PACKETS:,} frames")
        pts.append(timestamp_or_missing(packet.pts))
        dts.append(timestamp_or_missing(packet.dts))
        durations.append(packet.duration or 0)
        is_keyframe.append(packet.is_keyframe)
        # VP8: a packet whose bit show_frame is not set only prepares later frames
        is_reference = codec_name == "vp8" and not bytes(packet)[0] & 16
        is_displayed.append(not (packet.is_discard or packet.is_corrupt or is_reference))
        # DivX packs two pictures into one packet, then sends a filler
        if packet.pts is not None or codec_name != "mpeg4":
            num_pictures += 1
        elif packet.size <= MAX_FILLER_BYTES:
            num_pictures += has_packed_picture
            has_packed_picture = False
        else:
            num_pictures += 1
            has_packed_picture = bytes(packet).count(b"\0\0\1\xb6") > 1
        cached_bytes += packet.size + PACKET_OVERHEAD
        if cached_bytes > MAX_CACHED_BYTES:
            cached_packets = None
        if cached_packets is not None:
            packet.opaque = (index,)
            cached_packets.append(packet)
    if not any(is_displayed):
        raise VideoError("the video stream is empty")
    displayed = np.flatnonzero(np.array(is_displayed, dtype=bool))
    all_dts = np.array(dts, dtype=np.int64)
    timestamps = np.array(pts, dtype=np.int64)[displayed]
    lacks_pts = bool((timestamps == MISSING_TIMESTAMP).any())
    if lacks_pts:
        timestamps = all_dts[displayed]
    seconds = _packet_seconds(timestamps, all_dts[displayed], stream)
    order = np.argsort(seconds, kind="stable")
    is_counted = lacks_pts and bool(stream.codec_context.has_b_frames)
    num_frames = max(1, min(num_pictures, len(order))) if is_counted else len(order)
    times = _make_increasing(seconds[order[:num_frames]] - seconds[order[0]])
    last_packet = int(displayed[order[num_frames - 1]])
    last_gap = durations[last_packet] * float(stream.time_base or 0)
    if last_gap <= 0:
        last_gap = float(np.median(np.diff(times))) if num_frames > 1 else _header_gap(stream)
    frame_of_packet = np.full(len(all_dts), -1, dtype=np.int64)
    frame_of_packet[displayed[order]] = np.arange(len(order))
    times, duration, claimed_duration = _shorten_gaps(times, last_gap, stream)
    return PacketScan(
        frame_times=times,
        duration=duration,
        claimed_duration=claimed_duration,
        frame_of_packet=None if is_counted else frame_of_packet,
        is_keyframe=np.array(is_keyframe, dtype=bool),
        dts=all_dts,
        packets=cached_packets,
    )


def timestamp_or_missing(timestamp: int | None) -> int:
    """A timestamp as an integer; None becomes MISSING_TIMESTAMP."""
    return MISSING_TIMESTAMP if timestamp is None else timestamp


def _packet_seconds(
    timestamps: Int64[ndarray, " n"], dts: Int64[ndarray, " n"], stream: VideoStream
) -> Float64[ndarray, " n"]:
    """The times of packets; segments between which the clock jumps back follow one another."""
    frame_gap = _header_gap(stream)
    if (timestamps == MISSING_TIMESTAMP).any():
        return np.arange(len(timestamps)) * frame_gap
    time_base = float(stream.time_base or Fraction(1))
    seconds: Float64[ndarray, " n"] = timestamps * time_base
    clock_seconds = seconds if (dts == MISSING_TIMESTAMP).any() else dts * time_base
    segment_starts = np.flatnonzero(np.diff(clock_seconds) < -MAX_JUMP_BACK) + 1
    end: float | None = None
    for segment in np.split(seconds, segment_starts):  # views: adding to them changes `seconds`
        segment += 0.0 if end is None else end - segment.min()
        end = float(segment.max()) + frame_gap
    return seconds


def _make_increasing(times: Float64[ndarray, " frames"]) -> Float64[ndarray, " frames"]:
    """The same times, with equal ones set a microsecond apart."""
    if len(times) < 2 or np.diff(times).min() > 0:
        return times
    steps = np.arange(len(times)) * 1e-6
    increasing: Float64[ndarray, " frames"] = np.maximum.accumulate(times - steps) + steps
    return increasing


def _shorten_gaps(
    times: Float64[ndarray, " frames"], last_gap: float, stream: VideoStream
) -> tuple[Float64[ndarray, " frames"], float, float | None]:
    """Times, duration, and the claimed duration if that is impossible.

    Slide shows, time lapses and recordings with pauses are possible; a frame that is displayed for
    longer than in any of them gets the median gap.
    """
    claimed_duration = float(times[-1]) + last_gap
    gaps = np.append(np.diff(times), last_gap)
    max_gap = MAX_GAP
    if len(gaps) > 1:
        median_gap = float(np.quantile(gaps[:-1], 0.5, method="lower"))
        max_gap = min(MAX_GAP, max(MAX_PAUSE, MAX_PAUSE_GAPS * median_gap))
    too_long = gaps > max_gap
    if not too_long.any():
        return times, claimed_duration, None
    gaps[too_long] = _header_gap(stream) if too_long.all() else np.median(gaps[~too_long])
    times = _make_increasing(np.concatenate([[0.0], np.cumsum(gaps[:-1])]))
    return times, float(times[-1] + gaps[-1]), claimed_duration


def _header_gap(stream: VideoStream) -> float:
    """Seconds between two frames by the header's frame rate, if that is plausible."""
    frame_rate = stream.average_rate or stream.guessed_rate
    if frame_rate is None or not 1 / MAX_GAP <= frame_rate <= 1000:
        frame_rate = DEFAULT_RATE
    return 1.0 / float(frame_rate)
