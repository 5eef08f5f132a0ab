"""open_video: exact frames of any video file, by frame index and presentation time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
from av.video.frame import VideoFrame
from jaxtyping import Float64, UInt8
from numpy import ndarray

from clipset.decoding.demux import VideoFile, check_size
from clipset.decoding.rgb import RgbConverter, read_rotation, scaled_size, square_pixel_size
from clipset.decoding.scan import PacketScan, scan_packets
from clipset.decoding.seek import FrameDecoder
from clipset.errors import VideoError


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
    expected_frames: int | None
    codec: str
    claimed_duration: float | None = None


def open_video(path: str | Path, *, end: float | None = None, threads: int = 1) -> VideoReader:
    """A reader of a video's frames; raises VideoError with a short reason if there are none.

    With `end`, frames after so many seconds are ignored.
    """
    file = VideoFile(Path(path), threads)
    try:
        return VideoReader(file, scan_packets(file), end)
    except BaseException:
        file.close()
        raise


class DecodedFrame:
    """A decoded frame, to be converted to RGB in one or several sizes."""

    __slots__ = ("_frame", "_reader", "index")

    def __init__(self, index: int, frame: VideoFrame, reader: VideoReader) -> None:
        self.index, self._frame, self._reader = index, frame, reader

    def to_rgb(self, short_side: int | None = None) -> UInt8[ndarray, "H W 3"]:
        """The RGB pixels, scaled down if the shorter side is longer than `short_side`."""
        return self._reader.get_converter(short_side).to_rgb(self._frame)


class VideoReader:
    """Frames of one video by index. Close it, or use it in a `with` block."""

    def __init__(self, file: VideoFile, scan: PacketScan, end: float | None = None) -> None:
        self._decoder = FrameDecoder(file, scan)
        first_frame = self._decoder.decode_first()
        width, height = square_pixel_size(first_frame, file.stream)
        check_size(width, height)
        self._rotation = read_rotation(first_frame)
        if self._rotation.transpose:
            width, height = height, width
        self._converters: dict[tuple[int, int], RgbConverter] = {}
        self._decoded_indices: set[int] = set()
        self._replaced_indices: set[int] = set()
        num_frames = len(scan.frame_times)
        if end is not None:
            num_frames = max(1, int(np.searchsorted(scan.frame_times, end)))
        self.info = VideoInfo(
            width=width,
            height=height,
            frame_times=scan.frame_times[:num_frames],
            duration=scan.duration if end is None else min(scan.duration, end),
            expected_frames=file.stream.frames or None,
            codec=file.stream.codec_context.name,
            claimed_duration=scan.claimed_duration,
        )

    @property
    def frames_in_file(self) -> int:
        """The number of frames in the file, with those after `end`."""
        return len(self._decoder.scan.frame_times)

    @property
    def frames_needed(self) -> int:
        """The number of different frames requested so far."""
        return len(self._decoded_indices | self._replaced_indices)

    @property
    def frames_missing(self) -> int:
        """The number of requested frames that did not decode and were replaced."""
        return len(self._replaced_indices)

    def check_unchanged(self) -> None:
        """Raise VideoError if the file is no longer the one that was opened."""
        self._decoder.file.check_unchanged()

    def frames(
        self, indices: Sequence[int], *, short_side: int | None = None
    ) -> Iterator[tuple[int, UInt8[ndarray, "H W 3"]]]:
        """The requested frames in order, with their indices, as RGB. See `decode`."""
        for frame in self.decode(indices):
            yield frame.index, frame.to_rgb(short_side)

    def decode(self, indices: Sequence[int]) -> Iterator[DecodedFrame]:
        """Decode the frames with the given, increasing indices.

        A frame that does not decode is replaced by the nearest earlier one that does, or by the
        next one if there is none; `frames_missing` counts it. Consume the frames of one call
        before the next call.
        """
        self._check_indices(indices)
        for index, frame, is_exact in self._decoder.decode(indices):
            (self._decoded_indices if is_exact else self._replaced_indices).add(index)
            yield DecodedFrame(index, frame, self)

    def get_converter(self, short_side: int | None) -> RgbConverter:
        """The converter of this video's frames to RGB with a shorter side of at most so much."""
        size = scaled_size(self.info.width, self.info.height, short_side)
        if size not in self._converters:
            self._converters[size] = RgbConverter(*size, self._rotation)
        return self._converters[size]

    def close(self) -> None:
        """Close the file."""
        self._decoder.file.close()

    def __enter__(self) -> VideoReader:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _check_indices(self, indices: Sequence[int]) -> None:
        array = np.asarray(indices, dtype=np.int64)
        last = len(self.info.frame_times) - 1
        if len(array) and (array[0] < 0 or array[-1] > last or (np.diff(array) < 1).any()):
            raise VideoError(f"frame indices must be in increasing order, from 0 to {last}")
