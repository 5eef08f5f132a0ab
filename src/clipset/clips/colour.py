"""Colour augmentation: drawn with the plan, applied to the pixels, the same for all frames."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from numpy.random import Generator
from torch import Tensor

from clipset.clips.config import Augmentation
from clipset.errors import ClipError

STEPS = ("brightness", "contrast", "saturation", "hue")
JITTER_PROBABILITY = 0.8  # of a change of brightness, contrast, saturation and hue
BLUR_SIGMA = (0.1, 2.0)  # smallest and largest deviation of the blur, in pixels of the clip
LUMA = (0.299, 0.587, 0.114)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColourChange:
    """The colour change of one clip; none by default."""

    brightness: float = 1.0
    contrast: float = 1.0
    saturation: float = 1.0
    hue: float = 0.0
    order: tuple[str, ...] = STEPS
    grey: bool = False
    blur: float = 0.0

    def __post_init__(self) -> None:
        if sorted(self.order) != sorted(STEPS):
            raise ClipError(f"order must hold each of {', '.join(STEPS)} once, got {self.order}")
        if min(self.brightness, self.contrast, self.saturation, self.blur) < 0:
            raise ClipError("brightness, contrast, saturation and blur must not be negative")


def draw_colour_change(augmentation: Augmentation, generator: Generator) -> ColourChange:
    """A random change; always uses the same number of draws."""
    jitter_draw, grey_draw, blur_draw = generator.random(3)
    strengths = (getattr(augmentation, step) for step in STEPS)
    brightness, contrast, saturation, hue = (
        float(strength * generator.uniform(-1.0, 1.0)) for strength in strengths
    )
    order = tuple(STEPS[index] for index in generator.permutation(len(STEPS)))
    blur = float(generator.uniform(*BLUR_SIGMA))
    jitter = bool(jitter_draw < JITTER_PROBABILITY)
    return ColourChange(
        brightness=1 + brightness * jitter,
        contrast=1 + contrast * jitter,
        saturation=1 + saturation * jitter,
        hue=hue * jitter,
        order=order,
        grey=bool(grey_draw < augmentation.grey_probability),
        blur=blur if blur_draw < augmentation.blur_probability else 0.0,
    )


def change_colours(
    clip: UInt8[Tensor, "T 3 H W"], change: ColourChange
) -> UInt8[Tensor, "T 3 H W"]:
    """The clip with its colours changed: jitter in the drawn order, then grey, then blur."""
    if change == ColourChange(order=change.order):
        return clip
    pixels = clip.float() / 255
    for step in change.order:
        if step == "hue":
            pixels = _rotate_hue(pixels, change.hue) if change.hue else pixels
            continue
        if step == "brightness":
            pixels = pixels * change.brightness
        elif step == "contrast":
            mean_grey = _to_grey(pixels).mean(dim=(1, 2, 3), keepdim=True)  # (T, 1, 1, 1)
            pixels = mean_grey + (pixels - mean_grey) * change.contrast
        else:
            grey = _to_grey(pixels)
            pixels = grey + (pixels - grey) * change.saturation
        pixels = pixels.clamp(0, 1)
    if change.grey:
        pixels = _to_grey(pixels).expand_as(pixels)
    if change.blur > 0:
        pixels = _gaussian_blur(pixels, change.blur)
    return (pixels * 255).round().clamp(0, 255).to(torch.uint8)


def _to_grey(pixels: Float[Tensor, "T 3 H W"]) -> Float[Tensor, "T 1 H W"]:
    weights = torch.tensor(LUMA, device=pixels.device)[:, None, None]  # (3, 1, 1)
    return (pixels * weights).sum(dim=1, keepdim=True)


def _rotate_hue(pixels: Float[Tensor, "T 3 H W"], turns: float) -> Float[Tensor, "T 3 H W"]:
    """Rotate the hue by a fraction of the colour circle; value and saturation stay."""
    red, green, blue = pixels.unbind(1)  # (T, H, W) each
    value, min_channel = pixels.amax(1), pixels.amin(1)
    chroma = value - min_channel
    scale = chroma.clamp(min=1e-12)
    sector = torch.where(value == green, 2 + (blue - red) / scale, 4 + (red - green) / scale)
    sector = torch.where(value == red, (green - blue) / scale, sector) + 6 * turns
    channels = []
    for offset in (5, 3, 1):
        position = (offset + sector) % 6
        dip = torch.minimum(position, 4 - position).clamp(0, 1)
        channels.append(value - chroma * dip)
    return torch.stack(channels, dim=1)


def _gaussian_blur(pixels: Float[Tensor, "T 3 H W"], sigma: float) -> Float[Tensor, "T 3 H W"]:
    """A blur along both axes; the image is mirrored at its edges."""
    for axis in (2, 3):
        radius = min(math.ceil(3 * sigma), pixels.shape[axis] - 1)
        pixel_offsets = torch.arange(-radius, radius + 1, device=pixels.device)
        weights = torch.exp(-0.5 * (pixel_offsets / sigma) ** 2)
        shape = (1, 1, -1, 1) if axis == 2 else (1, 1, 1, -1)
        kernel = (weights / weights.sum()).reshape(shape).expand(3, -1, -1, -1)  # one per channel
        margin = (0, 0, radius, radius) if axis == 2 else (radius, radius, 0, 0)
        pixels = F.conv2d(F.pad(pixels, margin, mode="reflect"), kernel, groups=3)
    return pixels
