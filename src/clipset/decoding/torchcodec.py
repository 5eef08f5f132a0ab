"""torchcodec as a second decoder: the same frames, in the colours of the system's FFmpeg.

Its RGB differs from that of PyAV's Painter by about one grey level, so a store keeps to the decoder
with which it was begun. It is trusted with a file only as far as it agrees with our own scan.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
from av.video.frame import VideoFrame

from clipset.decoding.demux import VideoFile
from clipset.decoding.rgb import Painter, Pose, scaled_size
from clipset.decoding.scan import Scan
from clipset.errors import ConfigError

DecoderName = Literal["pyav", "torchcodec"]

SAME_TIME = 1e-7  # seconds; frames that share a timestamp are set further apart by the scan
ALIKE = 4.0  # grey levels by which the first frames of the two decoders may differ in the mean
GLANCE = 32  # shorter side at which they are compared


class Disagreement(Exception):
    """torchcodec cannot be trusted with this file; why."""


def import_torchcodec() -> Any:
    """torchcodec's decoders if they can be imported: they need an FFmpeg of the system."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return importlib.import_module("torchcodec.decoders")
    except (ImportError, RuntimeError, OSError):  # the last two: its libraries do not load
        return None


def find_decoder(wanted: Literal["auto", "pyav", "torchcodec"]) -> DecoderName:
    """The decoder to use; an error if it was asked for by name and is not there.

    `auto` is PyAV: torchcodec was slower wherever its frames were right (benchmarks/decoders.py).
    """
    if wanted == "torchcodec" and import_torchcodec() is None:
        raise ConfigError(
            "the decoder torchcodec is not there: it needs `pip install 'clipset[torchcodec]'` "
            "and FFmpeg's shared libraries (apt-get install ffmpeg); or take --decoder pyav"
        )
    return "torchcodec" if wanted == "torchcodec" else "pyav"


class TorchcodecDecoder:
    """Frames of a file by torchcodec. Raises Disagreement if they may not be the right ones.

    `first` is the first frame as PyAV decoded it, `pose` how that one is turned to be upright;
    torchcodec's frames are upright already.
    """

    def __init__(self, file: VideoFile, scan: Scan, first: VideoFrame, pose: Pose) -> None:
        self.file, self.times = file, scan.times
        if scan.frame_of is None:
            raise Disagreement("the file does not say when its frames are shown")
        if (pose.transposed + pose.upside_down + pose.mirrored) % 2:
            raise Disagreement("torchcodec turns pictures, but does not mirror them")
        self.decoder = _open(file)
        self.begin = float(self.decoder.metadata.begin_stream_seconds)
        if len(self.decoder) != len(self.times):
            raise Disagreement(f"{len(self.decoder)} frames instead of {len(self.times)}")
        self._compare(first, pose)

    def frames(self, wanted: Sequence[int]) -> Iterator[tuple[int, VideoFrame]]:
        """Each wanted frame, one at a time, upright, as RGB in its full size."""
        for number in wanted:
            yield number, self._frame(number)

    def _frame(self, number: int) -> VideoFrame:
        try:
            frame = self.decoder.get_frame_at(number)
            late = frame.pts_seconds - self.begin - float(self.times[number])
            self.file.refuse_change()  # it reads from the disk as it goes
            picture = VideoFrame.from_numpy_buffer(frame.data.numpy(), format="rgb24")
        except Exception as error:  # whatever it is, PyAV decides what the file is worth
            raise Disagreement(f"frame {number}: {error}") from None
        if not abs(late) < SAME_TIME:
            raise Disagreement(f"frame {number} is shown {late:g} s later")
        return picture

    def _compare(self, first: VideoFrame, pose: Pose) -> None:
        """Refuse a file whose first frame looks different."""
        ours, theirs = first, self._frame(0)
        width, height = ours.width, ours.height
        if pose.transposed:
            width, height = height, width
        if (theirs.width, theirs.height) != (width, height):
            raise Disagreement(f"frames of {theirs.width}×{theirs.height}, not {width}×{height}")
        size = scaled_size(width, height, GLANCE)
        seen = [Painter(*size, pose).paint(ours), Painter(*size, Pose()).paint(theirs)]
        apart = float(np.abs(seen[0].astype(np.float32) - seen[1]).mean())
        if apart > ALIKE:
            raise Disagreement(f"the first frames differ by {apart:.1f} grey levels")


def open_torchcodec(
    file: VideoFile, scan: Scan, first: VideoFrame, pose: Pose
) -> TorchcodecDecoder | None:
    """torchcodec for a file, or None if PyAV has to read it."""
    find_decoder("torchcodec")
    try:
        return TorchcodecDecoder(file, scan, first, pose)
    except Disagreement:
        return None


def _open(file: VideoFile) -> Any:
    try:
        return import_torchcodec().VideoDecoder(
            str(file.path.absolute()),
            stream_index=file.stream.index,
            dimension_order="NHWC",
            num_ffmpeg_threads=file.threads,
            device="cpu",
            seek_mode="exact",
        )
    except Exception as error:
        raise Disagreement(str(error)) from None
