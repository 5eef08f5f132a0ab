"""scan_packets: all packets of a video, and their frames in order of time, without decoding."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from av.packet import Packet
from av.video.stream import VideoStream
from jaxtyping import Bool, Float64, Int64
from numpy import ndarray

from clipset.decoding.demux import VideoFile
from clipset.errors import VideoError

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
    log = _PacketLog(file.stream.codec_context.name)
    for packet in file.packets():
        log.add(packet)
    if not any(log.is_displayed):
        raise VideoError("the video stream is empty")
    return _order_frames(log, file.stream)


@dataclass(slots=True)
class _PacketLog:
    """Properties of all packets, collected during the scan."""

    codec: str
    pts: array[int] = field(default_factory=lambda: array("q"))
    dts: array[int] = field(default_factory=lambda: array("q"))
    durations: array[int] = field(default_factory=lambda: array("q"))
    is_keyframe: bytearray = field(default_factory=bytearray)
    is_displayed: bytearray = field(default_factory=bytearray)
    num_pictures: int = 0
    has_packed_picture: bool = False
    packets: list[Packet[VideoStream]] | None = field(default_factory=list)
    cached_bytes: int = 0

    def add(self, packet: Packet[VideoStream]) -> None:
        index = len(self.pts)
        if index >= MAX_PACKETS:
            raise VideoError(f"more than {MAX_PACKETS:,} frames")
        self.pts.append(timestamp_or_missing(packet.pts))
        self.dts.append(timestamp_or_missing(packet.dts))
        self.durations.append(packet.duration or 0)
        self.is_keyframe.append(packet.is_keyframe)
        is_hidden = packet.is_discard or packet.is_corrupt or self._is_reference_only(packet)
        self.is_displayed.append(not is_hidden)
        self.num_pictures += self._count_pictures(packet)
        self._cache(packet, index)

    def _is_reference_only(self, packet: Packet[VideoStream]) -> bool:
        """Whether a packet only prepares later frames (VP8: the bit show_frame is not set)."""
        return self.codec == "vp8" and not bytes(packet)[0] & 16

    def _count_pictures(self, packet: Packet[VideoStream]) -> int:
        """The pictures that a packet releases: DivX packs two into one, then sends a filler."""
        if packet.pts is not None or self.codec != "mpeg4":
            return 1
        if packet.size <= MAX_FILLER_BYTES:
            was_packed, self.has_packed_picture = self.has_packed_picture, False
            return int(was_packed)
        self.has_packed_picture = bytes(packet).count(b"\0\0\1\xb6") > 1
        return 1

    def _cache(self, packet: Packet[VideoStream], index: int) -> None:
        self.cached_bytes += packet.size + PACKET_OVERHEAD
        if self.cached_bytes > MAX_CACHED_BYTES:
            self.packets = None
        if self.packets is not None:
            packet.opaque = (index,)
            self.packets.append(packet)


def timestamp_or_missing(timestamp: int | None) -> int:
    """A timestamp as an integer; None becomes MISSING_TIMESTAMP."""
    return MISSING_TIMESTAMP if timestamp is None else timestamp


def _order_frames(log: _PacketLog, stream: VideoStream) -> PacketScan:
    """Order the displayed packets in time."""
    displayed = np.flatnonzero(np.array(log.is_displayed, dtype=bool))
    dts = np.array(log.dts, dtype=np.int64)
    pts = np.array(log.pts, dtype=np.int64)[displayed]
    lacks_pts = bool((pts == MISSING_TIMESTAMP).any())
    seconds = _packet_seconds(dts[displayed] if lacks_pts else pts, dts[displayed], stream)
    order = np.argsort(seconds, kind="stable")
    is_counted = lacks_pts and bool(stream.codec_context.has_b_frames)
    num_frames = max(1, min(log.num_pictures, len(order))) if is_counted else len(order)
    times = _make_increasing(seconds[order[:num_frames]] - seconds[order[0]])
    last_packet = displayed[order[num_frames - 1]]
    last_gap = log.durations[last_packet] * float(stream.time_base or 0)
    last_gap = last_gap if last_gap > 0 else _median_gap(times, stream)
    claimed_duration = float(times[-1]) + last_gap
    gaps = np.append(np.diff(times), last_gap)
    too_long = gaps > _max_gap(gaps)
    if too_long.any():
        gaps[too_long] = np.median(gaps[~too_long]) if not too_long.all() else _header_gap(stream)
        times = _make_increasing(np.concatenate([[0.0], np.cumsum(gaps[:-1])]))
        last_gap = float(gaps[-1])
    frame_of_packet = np.full(len(dts), -1, dtype=np.int64)
    frame_of_packet[displayed[order]] = np.arange(len(order))
    return PacketScan(
        frame_times=times,
        duration=float(times[-1]) + last_gap,
        claimed_duration=claimed_duration if too_long.any() else None,
        frame_of_packet=None if is_counted else frame_of_packet,
        is_keyframe=np.array(log.is_keyframe, dtype=bool),
        dts=dts,
        packets=log.packets,
    )


def _packet_seconds(
    timestamps: Int64[ndarray, " n"], dts: Int64[ndarray, " n"], stream: VideoStream
) -> Float64[ndarray, " n"]:
    """The times of packets; segments between which the clock jumps back follow one another."""
    gap = _header_gap(stream)
    if (timestamps == MISSING_TIMESTAMP).any():
        return np.arange(len(timestamps)) * gap
    time_base = float(stream.time_base or Fraction(1))
    seconds: Float64[ndarray, " n"] = timestamps * time_base
    clock = seconds if (dts == MISSING_TIMESTAMP).any() else dts * time_base
    segment_starts = np.flatnonzero(np.diff(clock) < -MAX_JUMP_BACK) + 1
    end: float | None = None
    for segment in np.split(seconds, segment_starts):  # views: adding to them changes `seconds`
        segment += 0.0 if end is None else end - segment.min()
        end = float(segment.max()) + gap
    return seconds


def _make_increasing(times: Float64[ndarray, " frames"]) -> Float64[ndarray, " frames"]:
    """The same times, with equal ones set a microsecond apart."""
    if len(times) < 2 or np.diff(times).min() > 0:
        return times
    steps = np.arange(len(times)) * 1e-6
    increasing: Float64[ndarray, " frames"] = np.maximum.accumulate(times - steps) + steps
    return increasing


def _max_gap(gaps: Float64[ndarray, " frames"]) -> float:
    """The longest plausible display time of a frame; `gaps` are the times to the next frames.

    Slide shows, time lapses and recordings with pauses are plausible.
    """
    if len(gaps) < 2:
        return MAX_GAP
    median_gap = float(np.quantile(gaps[:-1], 0.5, method="lower"))
    return min(MAX_GAP, max(MAX_PAUSE, MAX_PAUSE_GAPS * median_gap))


def _median_gap(times: Float64[ndarray, " frames"], stream: VideoStream) -> float:
    return float(np.median(np.diff(times))) if len(times) > 1 else _header_gap(stream)


def _header_gap(stream: VideoStream) -> float:
    """Seconds between two frames by the header's frame rate, if that is plausible."""
    rate = stream.average_rate or stream.guessed_rate
    is_plausible = rate is not None and 1 / MAX_GAP <= rate <= 1000
    return 1.0 / float(rate if rate is not None and is_plausible else DEFAULT_RATE)
