"""open_video: exact frames of any video file, chosen by presentation time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
from av.video.frame import VideoFrame
from jaxtyping import Float64, UInt8
from numpy import ndarray

from clipset.decoding.demux import VideoFile, check_size
from clipset.decoding.rgb import Painter, pose_of, scaled_size, square_size
from clipset.decoding.scan import Scan, scan_packets
from clipset.decoding.seek import Decoder
from clipset.errors import VideoError

Paint = Callable[[int | None], UInt8[ndarray, "H W 3"]]
"""A decoded frame as RGB, scaled down if its shorter side is longer than the number given."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VideoInfo:
    """What a scan of the whole file found.

    `frame_times` is the presentation time of every frame in seconds, the first one 0, increasing;
    `duration` reaches from the first frame to the end of the last one; `claimed_duration` is what
    the file's timestamps say instead, if that cannot be true.
    """

    width: int
    height: int
    frame_times: Float64[ndarray, " frames"]
    duration: float
    expected_frames: int | None
    codec: str
    claimed_duration: float | None = None


def open_video(path: Path, *, end: float | None = None, threads: int = 1) -> VideoReader:
    """A reader of the frames of `path`; raises VideoError with a short reason if it has none.

    With `end`, the video is over after so many seconds.
    """
    file = VideoFile(path, threads)
    try:
        return VideoReader(file, scan_packets(file), end)
    except BaseException:
        file.close()
        raise


class VideoReader:
    """Frames of one video by number. Close it, or use it in a `with` block."""

    def __init__(self, file: VideoFile, scan: Scan, end: float | None = None) -> None:
        self._decoder = Decoder(file, scan)
        first = self._decoder.first_frame()
        width, height = square_size(first, file.stream)
        check_size(width, height)
        self._pose = pose_of(first)
        if self._pose.transposed:
            width, height = height, width
        self._found: set[int] = set()
        self._missing: set[int] = set()
        count = len(scan.times) if end is None else int(np.searchsorted(scan.times, end))
        self.info = VideoInfo(
            width=width,
            height=height,
            frame_times=scan.times[: max(1, count)],
            duration=scan.duration if end is None else min(scan.duration, end),
            expected_frames=file.stream.frames or None,
            codec=file.stream.codec_context.name,
            claimed_duration=scan.claimed_duration,
        )

    @property
    def frames_in_file(self) -> int:
        """How many frames the scan found, also after the end that was set."""
        return len(self._decoder.scan.times)

    def refuse_change(self) -> None:
        """Raise VideoError if the file is no longer the one that was opened."""
        self._decoder.file.refuse_change()

    @property
    def frames_found(self) -> int:
        """How many of the frames that were asked for really decoded."""
        return len(self._found)

    @property
    def frames_needed(self) -> int:
        """How many frames were asked for."""
        return len(self._found | self._missing)

    @property
    def frames_missing(self) -> int:
        """How many of the frames that were asked for had to be replaced."""
        return len(self._missing)

    def frames(
        self, wanted: Sequence[int], *, short_side: int | None = None
    ) -> Iterator[tuple[int, UInt8[ndarray, "H W 3"]]]:
        """Each wanted frame once, in order, as RGB; scaled down if its shorter side is too long.

        A frame that does not decode is replaced by the nearest earlier one that does, or by the
        next one if there is none earlier; `frames_found` does not count it. Finish with one call's
        frames before the next call.
        """
        for number, paint in self.paintings(wanted):
            yield number, paint(short_side)

    def paintings(self, wanted: Sequence[int]) -> Iterator[tuple[int, Paint]]:
        """`frames`, each one decoded once and painted in as many sizes as one likes."""
        self._check(wanted)
        painters: dict[tuple[int, int], Painter] = {}
        for number, frame, found in self._decoder.frames(wanted):
            (self._found if found else self._missing).add(number)

            def paint(short_side: int | None, frame: VideoFrame = frame) -> UInt8[ndarray, "H W 3"]:
                size = scaled_size(self.info.width, self.info.height, short_side)
                if size not in painters:
                    painters[size] = Painter(*size, self._pose)
                return painters[size].paint(frame)

            yield number, paint

    def close(self) -> None:
        """Let go of the file."""
        self._decoder.file.close()

    def __enter__(self) -> VideoReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _check(self, wanted: Sequence[int]) -> None:
        numbers = np.asarray(wanted, dtype=np.int64)
        last = len(self.info.frame_times) - 1
        if len(numbers) and (numbers[0] < 0 or numbers[-1] > last or (np.diff(numbers) < 1).any()):
            raise VideoError(f"frames must be asked for in increasing order, from 0 to {last}")
