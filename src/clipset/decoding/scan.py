"""What a video file really holds: its packets, counted and ordered in time, not yet decoded."""

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
KEPT_BYTES = 2**26  # up to this size, the packets stay in memory from the scan to the decoding
PACKET_COST = 512  # bytes of memory that a packet takes besides its content
JUMP_BACK = 1.0  # seconds; timestamps that fall back further start a new piece of the video
FILLER = 16  # bytes; an MPEG-4 packet this small holds no picture
NO_STAMP = int(np.iinfo(np.int64).min)
PAUSE = 6 * 3600.0  # seconds; no frame that most others follow at once is shown for longer
PAUSE_GAPS = 10_000  # usual gaps; where frames are far apart, a pause may be this long
LONGEST_GAP = 24 * 3600.0  # seconds; no frame of any video is shown for longer


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scan:
    """The packets of a video in the file's order, and the frames they hold in the order of time.

    `frame_of` is the frame that each packet holds, or -1; it is None if only the decoder knows the
    order, and frames are then counted as they come out. `claimed_duration` is what the timestamps
    say if that cannot be true; gaps that are too long are then replaced by the usual gap.
    """

    times: Float64[ndarray, " frames"]
    duration: float
    claimed_duration: float | None
    frame_of: Int64[ndarray, " packets"] | None
    key: Bool[ndarray, " packets"]
    dts: Int64[ndarray, " packets"]
    packets: list[Packet[VideoStream]] | None


def scan_packets(file: VideoFile) -> Scan:
    """Read all packets once, without decoding, and order their frames in time."""
    seen = _Seen(file.stream.codec_context.name)
    for packet in file.packets():
        seen.add(packet)
    if not any(seen.shown):
        raise VideoError("the video stream is empty")
    return _order(seen, file.stream)


@dataclass(slots=True)
class _Seen:
    """What is noted about each packet during the scan."""

    codec: str
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
        self.shown.append(not (packet.is_discard or packet.is_corrupt or self._is_hidden(packet)))
        self.pictures += self._pictures_in(packet)
        self._keep(packet, number)

    def _is_hidden(self, packet: Packet[VideoStream]) -> bool:
        """Whether a packet only prepares later frames (VP8's bit show_frame is not set)."""
        return self.codec == "vp8" and not bytes(packet)[0] & 16

    def _pictures_in(self, packet: Packet[VideoStream]) -> int:
        """How many pictures a packet sets free: DivX packs two into one, then sends a filler."""
        if packet.pts is not None or self.codec != "mpeg4":
            return 1
        if packet.size <= FILLER:
            packed, self.packed = self.packed, False
            return int(packed)
        self.packed = bytes(packet).count(b"\0\0\1\xb6") > 1
        return 1

    def _keep(self, packet: Packet[VideoStream], number: int) -> None:
        self.kept_bytes += packet.size + PACKET_COST
        if self.kept_bytes > KEPT_BYTES:
            self.kept = None
        if self.kept is not None:
            packet.opaque = (number,)
            self.kept.append(packet)


def stamp_of(stamp: int | None) -> int:
    """A timestamp as a number; a missing one is NO_STAMP."""
    return NO_STAMP if stamp is None else stamp


def _order(seen: _Seen, stream: VideoStream) -> Scan:
    """Put the noted packets in the order of time."""
    shown = np.flatnonzero(np.array(seen.shown, dtype=bool))
    dts = np.array(seen.dts, dtype=np.int64)
    stamps = np.array(seen.pts, dtype=np.int64)[shown]
    missing = bool((stamps == NO_STAMP).any())
    seconds = _seconds(dts[shown] if missing else stamps, dts[shown], stream)
    order = np.argsort(seconds, kind="stable")
    counted = missing and bool(stream.codec_context.has_b_frames)
    count = max(1, min(seen.pictures, len(order))) if counted else len(order)
    times = _increasing(seconds[order[:count]] - seconds[order[0]])
    last = seen.lasts[shown[order[count - 1]]] * float(stream.time_base or 0)
    last = last if last > 0 else _usual_gap(times, stream)
    claimed = float(times[-1]) + last
    gaps = np.append(np.diff(times), last)
    too_long = gaps > _longest_gap(gaps)
    if too_long.any():
        gaps[too_long] = np.median(gaps[~too_long]) if not too_long.all() else _gap(stream)
        times = _increasing(np.concatenate([[0.0], np.cumsum(gaps[:-1])]))
        last = float(gaps[-1])
    frame_of = np.full(len(dts), -1, dtype=np.int64)
    frame_of[shown[order]] = np.arange(len(order))
    return Scan(
        times=times,
        duration=float(times[-1]) + last,
        claimed_duration=claimed if too_long.any() else None,
        frame_of=None if counted else frame_of,
        key=np.array(seen.key, dtype=bool),
        dts=dts,
        packets=seen.kept,
    )


def _seconds(
    stamps: Int64[ndarray, " n"], dts: Int64[ndarray, " n"], stream: VideoStream
) -> Float64[ndarray, " n"]:
    """The time of each packet; pieces between which the clock was set back follow one another."""
    gap = _gap(stream)
    if (stamps == NO_STAMP).any():
        return np.arange(len(stamps)) * gap
    base = float(stream.time_base or Fraction(1))
    seconds: Float64[ndarray, " n"] = stamps * base
    clock = seconds if (dts == NO_STAMP).any() else dts * base
    back = np.flatnonzero(np.diff(clock) < -JUMP_BACK) + 1
    end: float | None = None
    for piece in np.split(seconds, back):  # views: what is added to them is added to `seconds`
        piece += 0.0 if end is None else end - piece.min()
        end = float(piece.max()) + gap
    return seconds


def _increasing(times: Float64[ndarray, " frames"]) -> Float64[ndarray, " frames"]:
    """The same times, where equal ones are set a microsecond apart."""
    if len(times) < 2 or np.diff(times).min() > 0:
        return times
    steps = np.arange(len(times)) * 1e-6
    later: Float64[ndarray, " frames"] = np.maximum.accumulate(times - steps) + steps
    return later


def _longest_gap(gaps: Float64[ndarray, " frames"]) -> float:
    """How long a frame may be shown; `gaps` are the times to the next frame, the last one's last.

    Slide shows, time lapses and recordings with pauses keep theirs: only what no video does is cut.
    """
    if len(gaps) < 2:
        return LONGEST_GAP
    usual = float(np.quantile(gaps[:-1], 0.5, method="lower"))
    return min(LONGEST_GAP, max(PAUSE, PAUSE_GAPS * usual))


def _usual_gap(times: Float64[ndarray, " frames"], stream: VideoStream) -> float:
    return float(np.median(np.diff(times))) if len(times) > 1 else _gap(stream)


def _gap(stream: VideoStream) -> float:
    """Seconds between two frames as the header says, if it says something possible."""
    rate = stream.average_rate or stream.guessed_rate
    possible = rate is not None and 1 / LONGEST_GAP <= rate <= 1000
    return 1.0 / float(rate if rate is not None and possible else Fraction(25))
