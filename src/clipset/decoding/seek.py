"""FrameDecoder: decodes only the packets that the requested frames need, and tells frames apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from clipset.decoding.demux import READ_ERRORS, PacketScan, VideoFile, timestamp_or_missing
from clipset.errors import VideoError

MAX_DELAY = 41  # packets that a codec may read after a frame's own before it returns the frame


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
        self._restart()

    def decode_first(self) -> VideoFrame:
        """The first frame that decodes."""
        self._restart()
        while (decoded := self._decode_next()) is not None:
            for frame in decoded.values():
                return frame
        raise VideoError("no frame could be decoded")

    def decode(self, indices: Sequence[int]) -> Iterator[tuple[int, VideoFrame, bool]]:
        """For each requested index: the index, a frame, and whether it is the requested frame."""
        start_packets, own_packets = self._locate(indices)
        first_packet = min(start_packets, default=0)
        if self.may_skip and 0 < self.packet_index <= first_packet and not self.drained:
            self._skip_to(first_packet)
        else:
            self._restart()
        self.requested = set(indices)
        recent: dict[int, VideoFrame] = {}  # the last frame before the requested one, later ones
        packets = zip(indices, start_packets, own_packets, strict=True)
        for frame_index, start_packet, own_packet in packets:
            while frame_index not in recent:
                if self.may_skip and start_packet > self.packet_index:
                    self._skip_to(start_packet)
                decoded_frames = self._decode_next()
                recent.update(decoded_frames or {})
                for earlier in sorted(i for i in recent if i < frame_index)[:-1]:
                    del recent[earlier]
                is_late = self.packet_index > own_packet + MAX_DELAY
                if frame_index in recent or not (decoded_frames is None or (is_late and recent)):
                    continue
                if not self.may_skip:
                    break
                self.may_skip = False  # decode everything from the start before giving up
                self._restart()
            if not recent:
                raise VideoError("no frame could be decoded")
            nearest = max((i for i in recent if i <= frame_index), default=min(recent))
            yield frame_index, recent[nearest], frame_index in recent

    def _locate(self, indices: Sequence[int]) -> tuple[list[int], list[int]]:
        """For each requested frame: the packet to start decoding at, and the frame's own packet.

        Decoding can start at a keyframe that displays a later frame than the keyframes before it.
        """
        if self.frame_of_packet is None:
            return [0] * len(indices), [int(index) for index in indices]
        frames = self.frame_of_packet
        packet_of_frame = np.empty(len(self.scan.frame_times), dtype=np.int64)
        packet_of_frame[frames[frames >= 0]] = np.flatnonzero(frames >= 0)
        own_packets = packet_of_frame[np.asarray(indices, dtype=np.int64)]
        keyframes = np.flatnonzero(self.scan.is_keyframe & (frames >= 0))
        keyframes = keyframes[frames[keyframes] == np.maximum.accumulate(frames[keyframes])]
        if not len(keyframes):
            return [0] * len(indices), own_packets.tolist()
        by_time = np.searchsorted(frames[keyframes], np.asarray(indices), side="right") - 1
        by_packet = np.searchsorted(keyframes, own_packets, side="right") - 1
        best = np.minimum(by_time, by_packet)
        return np.where(best >= 0, keyframes[best], 0).tolist(), own_packets.tolist()

    def _restart(self) -> None:
        """Go back to the first packet."""
        if self.scan.packets is not None:
            self.packets: Iterator[Packet[VideoStream]] = iter(self.scan.packets)
        else:
            self.file.reopen()
            self.packets = self._read_packets()
        self._start_at(0)

    def _read_packets(self) -> Iterator[Packet[VideoStream]]:
        """The packets from disk; they must be those of the scan."""
        packet_index = 0
        for packet in self.file.packets():
            dts = timestamp_or_missing(packet.dts)
            if packet_index == len(self.scan.dts) or dts != self.scan.dts[packet_index]:
                raise VideoError("the file changed while it was read", transient=True)
            packet.opaque = (packet_index,)
            yield packet
            packet_index += 1
        if packet_index < len(self.scan.dts):
            raise VideoError("the file changed while it was read", transient=True)

    def _skip_to(self, packet_index: int) -> None:
        """Skip packets without decoding them."""
        for _ in range(packet_index - self.packet_index):
            next(self.packets)
        self._start_at(packet_index)

    def _start_at(self, packet_index: int) -> None:
        self.codec = self.file.stream.codec_context
        if self.codec.is_open:
            self.codec.flush_buffers()
        self.packet_index = packet_index
        self.num_returned = 0
        self.drained = False

    def _decode_next(self) -> dict[int, VideoFrame] | None:
        """The frames, by index, that the next packet completes; None at the end."""
        if self.drained:
            return None
        packet = next(self.packets, None)
        is_needed = True  # if not, and no other frame refers to it, the codec may drop the next one
        frame_of_packet = self.frame_of_packet if self.may_skip and self.requested else None
        if packet is not None and frame_of_packet is not None:
            is_needed = int(frame_of_packet[self.packet_index]) in self.requested
        self.codec.skip_frame = "DEFAULT" if is_needed else "NONREF"
        self.drained = packet is None
        self.packet_index += packet is not None
        try:
            decoded_frames = self.codec.decode(packet)
        except READ_ERRORS:
            self.num_returned += packet is not None
            return {}
        by_index = {self._frame_index(frame): frame for frame in decoded_frames}
        return {index: frame for index, frame in by_index.items() if index >= 0}

    def _frame_index(self, frame: VideoFrame) -> int:
        """The index of a decoded frame in the video; -1 if it is not displayed."""
        tag = frame.opaque
        if self.frame_of_packet is not None and isinstance(tag, tuple):
            return int(self.frame_of_packet[tag[0]])
        self.frame_of_packet, self.may_skip = None, False  # without tags, frames are counted
        self.num_returned += 1
        return self.num_returned - 1
