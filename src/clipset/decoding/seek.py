"""Decoder: which packets to decode so that the wanted frames come out, and which ones came out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from jaxtyping import Bool, Int64
from numpy import ndarray

from clipset.decoding.demux import READ_ERRORS, VideoFile
from clipset.decoding.scan import Scan, stamp_of
from clipset.errors import VideoError

PATIENCE = 40  # packets after its own that a frame may take to come out of the decoder


class Decoder:
    """Decodes as little as is needed to show the wanted frames, going forward through the file.

    `position` is the next packet to decode. Packets carry their number as a tag, and decoders hand
    it on to the frames that they make of them.
    """

    def __init__(self, file: VideoFile, scan: Scan) -> None:
        self.file = file
        self.scan = scan
        self.frame_of = scan.frame_of
        self.may_skip = scan.frame_of is not None
        self.asked: set[int] = set()
        self.restart()

    def restart(self) -> None:
        """Go back to the first packet."""
        if self.scan.packets is not None:
            self.packets: Iterator[Packet[VideoStream]] = iter(self.scan.packets)
        else:
            self.file.reopen()
            self.packets = self._packets_from_disk()
        self._begin_at(0)

    def _go_back(self, start: int) -> None:
        """To the first packet, unless decoding can go on forward from where it is."""
        if self.may_skip and 0 < self.position <= start and not self.drained:
            self._skip_to(start)
        else:
            self.restart()

    def first_frame(self) -> VideoFrame:
        """The first frame that decodes."""
        self.restart()
        while (decoded := self._decode_next()) is not None:
            for frame in decoded.values():
                return frame
        raise VideoError("no frame could be decoded")

    def frames(self, wanted: Sequence[int]) -> Iterator[tuple[int, VideoFrame, bool]]:
        """Each wanted frame: its number, a decoded frame, and whether it is the very one."""
        starts, homes = self._places(wanted)
        self._go_back(min(starts, default=0))
        self.asked = set(wanted)
        recent: dict[int, VideoFrame] = {}  # the last one before the wanted frame, and later ones
        for number, start, home in zip(wanted, starts, homes, strict=True):
            while number not in recent:
                if self.may_skip and start > self.position:
                    self._skip_to(start)
                decoded = self._decode_next()
                recent.update(decoded or {})
                _forget_before(number, recent)
                late = self.position > home + PATIENCE + self.file.threads
                if number in recent or not (decoded is None or (late and recent)):
                    continue
                if not self.may_skip:
                    break
                self.may_skip = False  # decode everything from the start before giving up
                self.restart()
            yield number, _nearest(number, recent), number in recent

    def _places(self, wanted: Sequence[int]) -> tuple[list[int], list[int]]:
        """For each wanted frame: the packet to begin decoding at, and its own packet."""
        frame_of = self.frame_of
        if frame_of is None:
            return [0] * len(wanted), [int(number) for number in wanted]
        packet_of = np.empty(len(self.scan.times), dtype=np.int64)
        packet_of[frame_of[frame_of >= 0]] = np.flatnonzero(frame_of >= 0)
        homes = packet_of[np.asarray(wanted, dtype=np.int64)]
        keys = _begins(self.scan.key, frame_of)
        by_time = np.searchsorted(frame_of[keys], np.asarray(wanted), side="right") - 1
        by_place = np.searchsorted(keys, homes, side="right") - 1
        best = np.minimum(by_time, by_place)
        return np.where(best >= 0, keys[best], 0).tolist(), homes.tolist()

    def _packets_from_disk(self) -> Iterator[Packet[VideoStream]]:
        """The packets, read again; they must be those that the scan saw."""
        number = 0
        for packet in self.file.packets():
            if number == len(self.scan.dts) or stamp_of(packet.dts) != self.scan.dts[number]:
                raise VideoError("the file changed while it was read", transient=True)
            packet.opaque = (number,)
            yield packet
            number += 1
        if number < len(self.scan.dts):
            raise VideoError("the file changed while it was read", transient=True)

    def _begin_at(self, number: int) -> None:
        self.context = self.file.stream.codec_context
        if self.context.is_open:
            self.context.flush_buffers()
        self.position = number
        self.count = 0
        self.drained = False

    def _skip_to(self, number: int) -> None:
        """Pass over packets without decoding them."""
        for _ in range(number - self.position):
            next(self.packets)
        self._begin_at(number)

    def _decode_next(self) -> dict[int, VideoFrame] | None:
        """The frames that the next packet sets free; None at the end."""
        if self.drained:
            return None
        packet = next(self.packets, None)
        self._skip_if_nobody_needs_it()
        self.drained = packet is None
        self.position += packet is not None
        try:
            frames = self.context.decode(packet)
        except READ_ERRORS:
            self.count += packet is not None
            return {}
        numbers = [self._number(frame) for frame in frames]
        return {number: frame for number, frame in zip(numbers, frames, strict=True) if number >= 0}

    def _skip_if_nobody_needs_it(self) -> None:
        """Let the decoder drop the next frame if it is not wanted and no other is built on it."""
        needed = True
        if self.may_skip and self.asked and self.position < len(self.scan.dts):
            needed = self.frame_of is None or int(self.frame_of[self.position]) in self.asked
        self.context.skip_frame = "DEFAULT" if needed else "NONREF"

    def _number(self, frame: VideoFrame) -> int:
        """Which frame of the video this is; -1 if it is one that is not shown."""
        tag = frame.opaque
        if self.frame_of is not None and isinstance(tag, tuple):
            return int(self.frame_of[tag[0]])
        self.frame_of, self.may_skip = None, False  # without tags, counting is all that is left
        self.count += 1
        return self.count - 1


def _begins(
    key: Bool[ndarray, " packets"], frame_of: Int64[ndarray, " packets"]
) -> Int64[ndarray, " keys"]:
    """The packets at which decoding can begin; each shows a later frame than those before it."""
    keys = np.flatnonzero(key & (frame_of >= 0))
    latest = np.maximum.accumulate(frame_of[keys])
    return keys[frame_of[keys] == latest] if len(keys) else np.zeros(1, dtype=np.int64)


def _forget_before(number: int, recent: dict[int, VideoFrame]) -> None:
    """Keep only the last of the frames before `number`."""
    for index in sorted(index for index in recent if index < number)[:-1]:
        del recent[index]


def _nearest(number: int, recent: dict[int, VideoFrame]) -> VideoFrame:
    """The frame itself, or the last one before it, or the first one after it."""
    if not recent:
        raise VideoError("no frame could be decoded")
    before = [index for index in recent if index <= number]
    return recent[max(before) if before else min(recent)]
