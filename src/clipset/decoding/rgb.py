"""Decoded frames to RGB pixels: upright, with square pixels, scaled down if requested."""

from __future__ import annotations

from fractions import Fraction
from typing import cast

import av
import numpy as np
from av.sidedata.sidedata import SideDataContainer, Type
from av.video.frame import VideoFrame
from av.video.reformatter import Colorspace, Interpolation, VideoReformatter
from av.video.stream import VideoStream
from jaxtyping import UInt8
from numpy import ndarray

from clipset.decoding.demux import check_size
from clipset.errors import VideoError

SQUARE_TOLERANCE = 0.01  # pixel aspect ratios this close to 1 are treated as square
MAX_ASPECT_RATIO = 8  # of a pixel; larger ones are treated as errors of the file
INTERPOLATION = (  # area averaging, with the same bytes on every machine
    Interpolation.AREA
    | Interpolation.FULL_CHR_H_INT
    | Interpolation.ACCURATE_RND
    | Interpolation.BITEXACT
)


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
