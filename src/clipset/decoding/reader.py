"""open_video: exact frames of any video file, by frame index and presentation time.

Only the packets that the requested frames need are decoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import cast

import av
import numpy as np
from av.packet import Packet
from av.sidedata.sidedata import SideDataContainer, Type
from av.video.frame import VideoFrame
from av.video.reformatter import Colorspace, Interpolation, VideoReformatter
from av.video.stream import VideoStream
from jaxtyping import Float64, UInt8
from numpy import ndarray

from clipset.decoding.damage import MIN_USABLE_FRACTION, describe_damage, describe_missing
from clipset.decoding.demux import (
    READ_ERRORS,
    PacketScan,
    VideoFile,
    check_size,
    scan_packets,
    timestamp_or_missing,
)
from clipset.errors import VideoError

MAX_DELAY = 41  # packets that a codec may read after a frame's own before it returns the frame
SQUARE_TOLERANCE = 0.01  # pixel aspect ratios this close to 1 are treated as square
MAX_ASPECT_RATIO = 8  # of a pixel; larger ones are treated as errors of the file
INTERPOLATION = (  # area averaging, with the same bytes on every machine
    Interpolation.AREA
    | Interpolation.FULL_CHR_H_INT
    | Interpolation.ACCURATE_RND
    | Interpolation.BITEXACT
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VideoInfo:
    """Properties of a video, from a scan of the whole file.

    `frame_times` are the presentation times of all frames in seconds; they start at 0 and increase.
    `duration` ends with the last frame. `claimed_duration` is the duration by the file's
    timestamps if those are impossible. `expected_frames` is the frame count of the header.
    """

    width: int
    height: int
    frame_times: Float64[ndarray, " frames"]
    duration: float
    expected_frames: int | None = None
    claimed_duration: float | None = None


@contextmanager
def open_video(video_path: str | Path, *, end: float | None = None) -> Iterator[VideoReader]:
    """A reader of a video's frames; raises VideoError with a short reason if there are none.

    With `end`, frames after so many seconds are ignored.
    """
    file = VideoFile(Path(video_path))
    try:
        yield VideoReader(file, end)
    finally:
        file.container.close()


def find_problem(video_path: str | Path, *, end: float | None = None) -> str | None:
    """The problem of a video, or None: reads all packets and decodes one frame."""
    try:
        with open_video(video_path, end=end) as video:
            return describe_damage(
                frames_found=video.frames_in_file,
                frames_expected=video.info.expected_frames,
                duration=video.info.duration,
                claimed_duration=video.info.claimed_duration,
            )
    except VideoError as error:
        return str(error)


class VideoReader:
    """Frames of one video by index.

    `frames_in_file` counts all frames, with those after the end. `needed_frames` are the indices of
    the frames requested so far, `missing_frames` of those that did not decode and were replaced.
    """

    def __init__(self, file: VideoFile, end: float | None = None) -> None:
        scan = scan_packets(file)
        self.file = file
        self.frames_in_file = num_frames = len(scan.frame_times)
        self.needed_frames: set[int] = set()
        self.missing_frames: set[int] = set()
        self._decoder = FrameDecoder(file, scan)
        self._converter = RgbConverter(self._decoder.decode_first(), file.stream)
        if end is not None:
            num_frames = max(1, int(np.searchsorted(scan.frame_times, end)))
        self.info = VideoInfo(
            width=self._converter.width,
            height=self._converter.height,
            frame_times=scan.frame_times[:num_frames],
            duration=scan.duration if end is None else min(scan.duration, end),
            expected_frames=file.stream.frames or None,
            claimed_duration=scan.claimed_duration,
        )

    def frames(
        self, indices: Sequence[int], *, short_side: int | None = None
    ) -> Iterator[tuple[int, UInt8[ndarray, "H W 3"]]]:
        """The frames with the given, increasing indices, as RGB, each with its index.

        They are scaled down if their shorter side is longer than `short_side`. A frame that does
        not decode is replaced by the nearest earlier one that does, or by the next one if there is
        none. Consume the frames of one call before the next call.
        """
        numbers = np.asarray(indices, dtype=np.int64)
        last = len(self.info.frame_times) - 1
        if len(numbers) and (numbers[0] < 0 or numbers[-1] > last or (np.diff(numbers) < 1).any()):
            raise VideoError(f"frame indices must be in increasing order, from 0 to {last}")
        for frame_index, frame, is_exact in self._decoder.decode(indices):
            self.needed_frames.add(frame_index)
            if not is_exact:
                self.missing_frames.add(frame_index)
            yield frame_index, self._converter.to_rgb(frame, short_side)

    def check_usable(self) -> None:
        """Raise VideoError if most of the needed frames were replaced by others."""
        num_needed, num_missing = len(self.needed_frames), len(self.missing_frames)
        if num_needed - num_missing < MIN_USABLE_FRACTION * num_needed:
            raise VideoError(describe_missing(num_needed, num_missing))


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


class RgbConverter:
    """Converts the frames of one video to upright RGB arrays with square pixels.

    A frame is made upright by a transposition and flips, to the nearest quarter turn. `width` and
    `height` are those of the upright frame.
    """

    def __init__(self, first_frame: VideoFrame, stream: VideoStream) -> None:
        width, height = first_frame.width, first_frame.height
        ratio = stream.sample_aspect_ratio or Fraction(1)
        if 1 / MAX_ASPECT_RATIO < ratio < MAX_ASPECT_RATIO and abs(ratio - 1) >= SQUARE_TOLERANCE:
            width = max(1, round(width * ratio))
        check_size(width, height)
        self.transpose = self.flip_vertical = self.flip_horizontal = False
        side_data = cast(SideDataContainer, first_frame.side_data)
        display_matrices = [bytes(item) for item in side_data if item.type == Type.DISPLAYMATRIX]
        if display_matrices:
            a, b, c, d = np.frombuffer(display_matrices[0], dtype="<i4")[[0, 1, 3, 4]].tolist()
            self.transpose = abs(a) + abs(d) < abs(b) + abs(c)
            self.flip_vertical = (b if self.transpose else d) < 0
            self.flip_horizontal = (c if self.transpose else a) < 0
        self.width, self.height = (height, width) if self.transpose else (width, height)
        self.reformatter = VideoReformatter()

    def to_rgb(self, frame: VideoFrame, short_side: int | None = None) -> UInt8[ndarray, "H W 3"]:
        """The RGB pixels of a frame; its shorter side is scaled down to `short_side`."""
        try:
            pixels = self._reformat(frame, short_side, None)
        except av.FFmpegError:  # a colour space that FFmpeg cannot convert
            try:
                pixels = self._reformat(frame, short_side, Colorspace.ITU709)
            except av.FFmpegError as error:
                reason = (error.strerror or type(error).__name__).lower()
                raise VideoError(f"frames cannot be converted to RGB ({reason})") from None
        if self.transpose:
            pixels = pixels.transpose(1, 0, 2)
        rows = slice(None, None, -1 if self.flip_vertical else 1)
        columns = slice(None, None, -1 if self.flip_horizontal else 1)
        return np.ascontiguousarray(pixels[rows, columns], dtype=np.uint8)

    def _reformat(
        self, frame: VideoFrame, short_side: int | None, colorspace: int | None
    ) -> UInt8[ndarray, "h w 3"]:
        width, height = self.width, self.height
        shorter = min(width, height)
        if short_side is not None and short_side < shorter:
            width = max(1, round(width * short_side / shorter))
            height = max(1, round(height * short_side / shorter))
        rgb_frame = self.reformatter.reformat(
            frame,
            width=height if self.transpose else width,
            height=width if self.transpose else height,
            format="rgb24",
            src_colorspace=colorspace,
            dst_colorspace=colorspace,
            interpolation=INTERPOLATION,
            threads=1,
        )
        return cast(UInt8[ndarray, "h w 3"], rgb_frame.to_ndarray())
