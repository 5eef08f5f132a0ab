"""open_video: exact frames of any video file, by frame index and presentation time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float64, UInt8
from numpy import ndarray

from clipset.decoding.damage import MIN_USABLE_FRACTION, describe_damage, describe_missing
from clipset.decoding.demux import VideoFile, scan_packets
from clipset.decoding.rgb import RgbConverter
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
