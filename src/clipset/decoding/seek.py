"""FrameDecoder: decodes only the packets that the requested frames need, and tells frames apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from jaxtyping import Bool, Int64
from numpy import ndarray

from clipset.decoding.demux import READ_ERRORS, VideoFile
from clipset.decoding.scan import PacketScan, timestamp_or_missing
from clipset.errors import VideoError

MAX_DELAY = 40  # packets that a codec may read after a frame's own before it returns the frame


class FrameDecoder:
    """Decodes as little as the requested frames need, forward through the file.

    `packet_index` is the next packet to decode. Packets carry their index as an opaque tag, which
    codecs pass on to the decoded frames.
    """

    def __init__(self, file: VideoFile, scan: PacketScan) -> None:
        self.file = file
        self.scan = scan
        self.frame_of_packet = scan.frame_of_packet
        self.may_skip = scan.frame_of_packet is not None
        self.requested: set[int] = set()
        self.restart()

    def restart(self) -> None:
        """Go back to the first packet."""
        if self.scan.packets is not None:
            self.packets: Iterator[Packet[VideoStream]] = iter(self.scan.packets)
        else:
            self.file.reopen()
            self.packets = self._read_packets()
        self._start_at(0)

    def decode_first(self) -> VideoFrame:
        """The first frame that decodes."""
        self.restart()
        while (decoded := self._decode_next()) is not None:
            for frame in decoded.values():
                return frame
        raise VideoError("no frame could be decoded")

    def decode(self, indices: Sequence[int]) -> Iterator[tuple[int, VideoFrame, bool]]:
        """For each requested index: the index, a frame, and whether it is the requested frame."""
        start_packets, own_packets = self._locate(indices)
        self._rewind(min(start_packets, default=0))
        self.requested = set(indices)
        recent: dict[int, VideoFrame] = {}  # the last frame before the requested one, later ones
        for index, start, own in zip(indices, start_packets, own_packets, strict=True):
            while index not in recent:
                if self.may_skip and start > self.packet_index:
                    self._skip_to(start)
                decoded = self._decode_next()
                recent.update(decoded or {})
                _drop_before(index, recent)
                is_late = self.packet_index > own + MAX_DELAY + self.file.threads
                if index in recent or not (decoded is None or (is_late and recent)):
                    continue
                if not self.may_skip:
                    break
                self.may_skip = False  # decode everything from the start before giving up
                self.restart()
            yield index, _nearest_frame(index, recent), index in recent

    def _rewind(self, start: int) -> None:
        """Go to packet `start`: forward if possible, else from the first packet."""
        if self.may_skip and 0 < self.packet_index <= start and not self.drained:
            self._skip_to(start)
        else:
            self.restart()

    def _locate(self, indices: Sequence[int]) -> tuple[list[int], list[int]]:
        """For each requested frame: the packet to start decoding at, and the frame's own packet."""
        frame_of_packet = self.frame_of_packet
        if frame_of_packet is None:
            return [0] * len(indices), [int(index) for index in indices]
        packet_of_frame = np.empty(len(self.scan.frame_times), dtype=np.int64)
        packet_of_frame[frame_of_packet[frame_of_packet >= 0]] = np.flatnonzero(
            frame_of_packet >= 0
        )
        own_packets = packet_of_frame[np.asarray(indices, dtype=np.int64)]
        keyframes = _find_start_packets(self.scan.is_keyframe, frame_of_packet)
        by_time = np.searchsorted(frame_of_packet[keyframes], np.asarray(indices), side="right") - 1
        by_packet = np.searchsorted(keyframes, own_packets, side="right") - 1
        best = np.minimum(by_time, by_packet)
        return np.where(best >= 0, keyframes[best], 0).tolist(), own_packets.tolist()

    def _read_packets(self) -> Iterator[Packet[VideoStream]]:
        """The packets from disk; they must be those of the scan."""
        index = 0
        for packet in self.file.packets():
            dts = timestamp_or_missing(packet.dts)
            if index == len(self.scan.dts) or dts != self.scan.dts[index]:
                raise VideoError("the file changed while it was read", transient=True)
            packet.opaque = (index,)
            yield packet
            index += 1
        if index < len(self.scan.dts):
            raise VideoError("the file changed while it was read", transient=True)

    def _start_at(self, packet_index: int) -> None:
        self.codec = self.file.stream.codec_context
        if self.codec.is_open:
            self.codec.flush_buffers()
        self.packet_index = packet_index
        self.num_returned = 0
        self.drained = False

    def _skip_to(self, packet_index: int) -> None:
        """Skip packets without decoding them."""
        for _ in range(packet_index - self.packet_index):
            next(self.packets)
        self._start_at(packet_index)

    def _decode_next(self) -> dict[int, VideoFrame] | None:
        """The frames, by index, that the next packet completes; None at the end."""
        if self.drained:
            return None
        packet = next(self.packets, None)
        self._set_skip_mode()
        self.drained = packet is None
        self.packet_index += packet is not None
        try:
            frames = self.codec.decode(packet)
        except READ_ERRORS:
            self.num_returned += packet is not None
            return {}
        indices = [self._frame_index(frame) for frame in frames]
        return {index: frame for index, frame in zip(indices, frames, strict=True) if index >= 0}

    def _set_skip_mode(self) -> None:
        """Let the codec drop the next frame if it is not requested and no other refers to it."""
        needed = True
        if self.may_skip and self.requested and self.packet_index < len(self.scan.dts):
            needed = (
                self.frame_of_packet is None
                or int(self.frame_of_packet[self.packet_index]) in self.requested
            )
        self.codec.skip_frame = "DEFAULT" if needed else "NONREF"

    def _frame_index(self, frame: VideoFrame) -> int:
        """The index of a decoded frame in the video; -1 if it is not displayed."""
        tag = frame.opaque
        if self.frame_of_packet is not None and isinstance(tag, tuple):
            return int(self.frame_of_packet[tag[0]])
        self.frame_of_packet, self.may_skip = None, False  # without tags, frames are counted
        self.num_returned += 1
        return self.num_returned - 1


def _find_start_packets(
    is_keyframe: Bool[ndarray, " packets"], frame_of_packet: Int64[ndarray, " packets"]
) -> Int64[ndarray, " keys"]:
    """The packets at which decoding can start; each displays a later frame than those before."""
    keyframes = np.flatnonzero(is_keyframe & (frame_of_packet >= 0))
    latest = np.maximum.accumulate(frame_of_packet[keyframes])
    later = keyframes[frame_of_packet[keyframes] == latest]
    return later if len(later) else np.zeros(1, dtype=np.int64)


def _drop_before(index: int, recent: dict[int, VideoFrame]) -> None:
    """Of the frames before `index`, keep only the last one."""
    for earlier in sorted(i for i in recent if i < index)[:-1]:
        del recent[earlier]


def _nearest_frame(index: int, recent: dict[int, VideoFrame]) -> VideoFrame:
    """The frame at `index`, or the last one before it, or the first one after it."""
    if not recent:
        raise VideoError("no frame could be decoded")
    earlier = [i for i in recent if i <= index]
    return recent[max(earlier) if earlier else min(recent)]
