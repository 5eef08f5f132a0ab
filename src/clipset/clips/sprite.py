"""Sprites: ten small frames of a video side by side, which the page shows under the pointer."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float, UInt8
from numpy import ndarray
from PIL import Image
from PIL.Image import Resampling

from clipset.decoding.reader import VideoReader

SPRITE_FRAMES = 10
SPRITE_SIZE = (160, 120)  # pixels of one of its frames, at most
WEBP_QUALITY = 70
WEBP_METHOD = 1  # as fast as 0, and smaller


class SpriteReader:
    """Reads the frames of a video for its clips, and keeps small copies of ten of them.

    No other frame is decoded for that: for each of ten even times, the nearest frame among those
    that were read is kept.
    """

    def __init__(self, video: VideoReader) -> None:
        self.video = video
        self.times = even_times(video.info.duration, SPRITE_FRAMES)
        self._chosen: list[int] = []  # the frame index for each time
        self._images: dict[int, Image.Image] = {}  # by frame index

    def frames(
        self, indices: Sequence[int], *, short_side: int | None = None
    ) -> Iterator[tuple[int, UInt8[ndarray, "H W 3"]]]:
        """The frames of the video, as the video itself reads them."""
        self._choose(indices)
        for frame_index, pixels in self.video.frames(indices, short_side=short_side):
            if frame_index in self._chosen and frame_index not in self._images:
                image = scale_down(pixels, SPRITE_SIZE, resample=Resampling.BOX)  # the fastest
                self._images[frame_index] = image
            yield frame_index, pixels

    def _choose(self, indices: Sequence[int]) -> None:
        """Choose among frames that will be read and those that were chosen before."""
        candidates = np.array(sorted({*indices, *self._chosen}), dtype=np.int64)
        if not len(candidates):
            return
        distances = np.abs(self.video.info.frame_times[candidates] - self.times[:, None])
        self._chosen = candidates[distances.argmin(axis=1)].tolist()
        self._images = {i: image for i, image in self._images.items() if i in self._chosen}

    def encode(self) -> bytes:
        """The sprite as WebP; empty if there is none."""
        if not self._chosen:
            return b""
        images = [self._images[i] for i in self._chosen]
        try:
            return encode_strip(images, method=WEBP_METHOD)
        except (OSError, KeyError, ValueError):  # a Pillow without WebP, a shape that it refuses
            return b""


def even_times(duration: float, count: int) -> Float[ndarray, " frames"]:
    """Times in the middle of equally long parts."""
    return (np.arange(count) + 0.5) / count * duration


def scale_down(
    pixels: UInt8[ndarray, "H W 3"],
    size: tuple[int, int],
    *,
    resample: Resampling = Resampling.BICUBIC,
) -> Image.Image:
    """A frame as an image that fits into a width and height."""
    image = Image.fromarray(pixels)
    image.thumbnail(size, resample)
    return image


def encode_strip(images: Sequence[Image.Image], *, method: int) -> bytes:
    """Images of one size side by side as a WebP file; `method` 0 is fast, 6 makes small files."""
    width, height = images[0].size
    strip = Image.new("RGB", (width * len(images), height))
    for position, image in enumerate(images):
        strip.paste(image, (width * position, 0))
    content = io.BytesIO()
    strip.save(content, "WEBP", quality=WEBP_QUALITY, method=method)
    return content.getvalue()
