"""Decoded frames to RGB pixels: upright, with square pixels, not larger than asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import av
import numpy as np
from av.sidedata.sidedata import SideDataContainer, Type
from av.video.frame import VideoFrame
from av.video.reformatter import Colorspace, Interpolation, VideoReformatter
from av.video.stream import VideoStream
from jaxtyping import UInt8
from numpy import ndarray

from clipset.errors import VideoError

SQUARE_ENOUGH = 0.01  # pixels this close to square are taken for square
MAX_STRETCH = 8
SCALING = (  # the mean over the area that a pixel covers; the same bytes on every machine
    Interpolation.AREA
    | Interpolation.FULL_CHR_H_INT
    | Interpolation.ACCURATE_RND
    | Interpolation.BITEXACT
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pose:
    """How a decoded frame has to be turned to be shown upright: transpose first, then mirror."""

    transposed: bool = False
    upside_down: bool = False
    mirrored: bool = False


def pose_of(frame: VideoFrame) -> Pose:
    """What the rotation metadata of a frame asks for, to the nearest quarter turn."""
    sides = cast(SideDataContainer, frame.side_data)
    matrices = [bytes(side) for side in sides if side.type == Type.DISPLAYMATRIX]
    if not matrices:
        return Pose()
    a, b, c, d = np.frombuffer(matrices[0], dtype="<i4")[[0, 1, 3, 4]].tolist()
    if abs(a) + abs(d) >= abs(b) + abs(c):
        return Pose(upside_down=d < 0, mirrored=a < 0)
    return Pose(transposed=True, upside_down=b < 0, mirrored=c < 0)


def square_size(frame: VideoFrame, stream: VideoStream) -> tuple[int, int]:
    """Width and height of a frame with its pixels made square."""
    ratio = stream.sample_aspect_ratio
    if not ratio or abs(ratio - 1) < SQUARE_ENOUGH or not 1 / MAX_STRETCH < ratio < MAX_STRETCH:
        return frame.width, frame.height
    return max(1, round(frame.width * ratio)), frame.height


class Painter:
    """Turns decoded frames into RGB arrays of one size."""

    def __init__(self, width: int, height: int, pose: Pose) -> None:
        self.width, self.height = (height, width) if pose.transposed else (width, height)
        self.pose = pose
        self.reformatter = VideoReformatter()

    def paint(self, frame: VideoFrame) -> UInt8[ndarray, "H W 3"]:
        """The pixels of a frame as they are shown."""
        try:
            pixels = self._convert(frame, None)
        except av.FFmpegError:  # a colour space that FFmpeg cannot convert
            pixels = self._convert_as_usual(frame)
        if self.pose.transposed:
            pixels = pixels.transpose(1, 0, 2)
        rows = slice(None, None, -1 if self.pose.upside_down else 1)
        columns = slice(None, None, -1 if self.pose.mirrored else 1)
        return np.ascontiguousarray(pixels[rows, columns], dtype=np.uint8)

    def _convert(self, frame: VideoFrame, colours: int | None) -> UInt8[ndarray, "h w 3"]:
        picture = self.reformatter.reformat(
            frame,
            width=self.width,
            height=self.height,
            format="rgb24",
            src_colorspace=colours,
            dst_colorspace=colours,
            interpolation=SCALING,
            threads=1,
        )
        return cast(UInt8[ndarray, "h w 3"], picture.to_ndarray())

    def _convert_as_usual(self, frame: VideoFrame) -> UInt8[ndarray, "h w 3"]:
        try:
            return self._convert(frame, Colorspace.ITU709)
        except av.FFmpegError as error:
            reason = error.strerror or type(error).__name__
            raise VideoError(f"frames cannot be turned into RGB ({reason.lower()})") from None


def scaled_size(width: int, height: int, short_side: int | None) -> tuple[int, int]:
    """The size at which the shorter side is `short_side`; never larger than the frame."""
    shorter = min(width, height)
    if short_side is None or short_side >= shorter:
        return width, height
    return max(1, round(width * short_side / shorter)), max(1, round(height * short_side / shorter))
