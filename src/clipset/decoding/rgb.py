"""Decoded frames to RGB pixels: upright, with square pixels, scaled down if requested."""

from __future__ import annotations

from typing import NamedTuple, cast

import av
import numpy as np
from av.sidedata.sidedata import SideDataContainer, Type
from av.video.frame import VideoFrame
from av.video.reformatter import Colorspace, Interpolation, VideoReformatter
from av.video.stream import VideoStream
from jaxtyping import UInt8
from numpy import ndarray

from clipset.errors import VideoError

SQUARE_TOLERANCE = 0.01  # pixel aspect ratios this close to 1 are treated as square
MAX_ASPECT_RATIO = 8  # of a pixel; larger ones are treated as errors of the file
INTERPOLATION = (  # area averaging, with the same bytes on every machine
    Interpolation.AREA
    | Interpolation.FULL_CHR_H_INT
    | Interpolation.ACCURATE_RND
    | Interpolation.BITEXACT
)


class Rotation(NamedTuple):
    """How to make a decoded frame upright: transpose it, then flip it."""

    transpose: bool = False
    flip_vertical: bool = False
    flip_horizontal: bool = False


def read_rotation(frame: VideoFrame) -> Rotation:
    """The rotation in the metadata of a frame, to the nearest quarter turn."""
    side_data = cast(SideDataContainer, frame.side_data)
    matrices = [bytes(item) for item in side_data if item.type == Type.DISPLAYMATRIX]
    if not matrices:
        return Rotation()
    a, b, c, d = np.frombuffer(matrices[0], dtype="<i4")[[0, 1, 3, 4]].tolist()
    if abs(a) + abs(d) >= abs(b) + abs(c):
        return Rotation(False, d < 0, a < 0)
    return Rotation(True, b < 0, c < 0)


def square_pixel_size(frame: VideoFrame, stream: VideoStream) -> tuple[int, int]:
    """Width and height of a frame after its pixels are made square, before rotation."""
    ratio = stream.sample_aspect_ratio
    is_plausible = ratio is not None and 1 / MAX_ASPECT_RATIO < ratio < MAX_ASPECT_RATIO
    if ratio is None or not is_plausible or abs(ratio - 1) < SQUARE_TOLERANCE:
        return frame.width, frame.height
    return max(1, round(frame.width * ratio)), frame.height


class RgbConverter:
    """Converts decoded frames to upright RGB arrays of one size."""

    def __init__(self, width: int, height: int, rotation: Rotation) -> None:
        self.width, self.height = (height, width) if rotation.transpose else (width, height)
        self.rotation = rotation
        self.reformatter = VideoReformatter()

    def to_rgb(self, frame: VideoFrame) -> UInt8[ndarray, "H W 3"]:
        """The RGB pixels of a frame."""
        try:
            pixels = self._reformat(frame, None)
        except av.FFmpegError:  # a colour space that FFmpeg cannot convert
            try:
                pixels = self._reformat(frame, Colorspace.ITU709)
            except av.FFmpegError as error:
                reason = (error.strerror or type(error).__name__).lower()
                raise VideoError(f"frames cannot be converted to RGB ({reason})") from None
        if self.rotation.transpose:
            pixels = pixels.transpose(1, 0, 2)
        rows = slice(None, None, -1 if self.rotation.flip_vertical else 1)
        columns = slice(None, None, -1 if self.rotation.flip_horizontal else 1)
        return np.ascontiguousarray(pixels[rows, columns], dtype=np.uint8)

    def _reformat(self, frame: VideoFrame, colorspace: int | None) -> UInt8[ndarray, "h w 3"]:
        rgb_frame = self.reformatter.reformat(
            frame,
            width=self.width,
            height=self.height,
            format="rgb24",
            src_colorspace=colorspace,
            dst_colorspace=colorspace,
            interpolation=INTERPOLATION,
            threads=1,
        )
        return cast(UInt8[ndarray, "h w 3"], rgb_frame.to_ndarray())
