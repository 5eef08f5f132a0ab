"""Changes of a clip's colours: drawn with the plan, made on the pixels, alike for all frames."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from numpy.random import Generator
from torch import Tensor

from clipset.clips.config import Colours
from clipset.errors import ClipError

STEPS = ("brightness", "contrast", "saturation", "hue")
LUMA = (0.299, 0.587, 0.114)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColourChange:
    """What happens to the colours of one clip; as it stands, nothing."""

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


def draw_colour_change(colours: Colours, generator: Generator) -> ColourChange:
    """A random change; uses the same number of draws whatever comes out."""
    chances = generator.random(3)
    reach = (colours.brightness, colours.contrast, colours.saturation, colours.hue)
    brightness, contrast, saturation, hue = (
        float(width * generator.uniform(-1.0, 1.0)) for width in reach
    )
    order = tuple(STEPS[place] for place in generator.permutation(len(STEPS)))
    blur = float(generator.uniform(*colours.blur))
    jitter = bool(chances[0] < colours.jitter_chance)
    return ColourChange(
        brightness=1 + brightness * jitter,
        contrast=1 + contrast * jitter,
        saturation=1 + saturation * jitter,
        hue=hue * jitter,
        order=order,
        grey=bool(chances[1] < colours.grey_chance),
        blur=blur if chances[2] < colours.blur_chance else 0.0,
    )


def change_colours(
    clip: UInt8[Tensor, "T 3 H W"], change: ColourChange
) -> UInt8[Tensor, "T 3 H W"]:
    """The clip with its colours changed: jitter in the drawn order, then grey, then blur."""
    if change == ColourChange(order=change.order):
        return clip
    pixels = clip.float() / 255
    for step in change.order:
        pixels = _jitter(pixels, step, change)
    if change.grey:
        pixels = _grey(pixels).expand_as(pixels)
    if change.blur > 0:
        pixels = _blurred(pixels, change.blur)
    return (pixels * 255).round().clamp(0, 255).to(torch.uint8)


def _jitter(
    pixels: Float[Tensor, "T 3 H W"], step: str, change: ColourChange
) -> Float[Tensor, "T 3 H W"]:
    if step == "hue":
        return _turn_hue(pixels, change.hue) if change.hue else pixels
    if step == "brightness":
        changed = pixels * change.brightness
    elif step == "contrast":
        mean = _grey(pixels).mean(dim=(1, 2, 3), keepdim=True)  # (T, 1, 1, 1)
        changed = mean + (pixels - mean) * change.contrast
    else:
        grey = _grey(pixels)
        changed = grey + (pixels - grey) * change.saturation
    return changed.clamp(0, 1)


def _grey(pixels: Float[Tensor, "T 3 H W"]) -> Float[Tensor, "T 1 H W"]:
    weights = torch.tensor(LUMA, device=pixels.device)[:, None, None]  # (3, 1, 1)
    return (pixels * weights).sum(dim=1, keepdim=True)


def _turn_hue(pixels: Float[Tensor, "T 3 H W"], turn: float) -> Float[Tensor, "T 3 H W"]:
    """Turn the colour circle by a share of itself, with value and saturation kept."""
    red, green, blue = pixels.unbind(1)  # (T, H, W) each
    value, low = pixels.amax(1), pixels.amin(1)
    chroma = value - low
    scale = chroma.clamp(min=1e-12)
    sector = torch.where(value == green, 2 + (blue - red) / scale, 4 + (red - green) / scale)
    sector = torch.where(value == red, (green - blue) / scale, sector) + 6 * turn
    channels = []
    for offset in (5, 3, 1):
        place = (offset + sector) % 6
        dip = torch.minimum(place, 4 - place).clamp(0, 1)
        channels.append(value - chroma * dip)
    return torch.stack(channels, dim=1)


def _blurred(pixels: Float[Tensor, "T 3 H W"], deviation: float) -> Float[Tensor, "T 3 H W"]:
    """A Gaussian blur along both axes; beyond the edge the picture is mirrored."""
    for axis in (2, 3):
        radius = min(math.ceil(3 * deviation), pixels.shape[axis] - 1)
        places = torch.arange(-radius, radius + 1, device=pixels.device)
        weights = torch.exp(-0.5 * (places / deviation) ** 2)
        shape = (1, 1, -1, 1) if axis == 2 else (1, 1, 1, -1)
        kernel = (weights / weights.sum()).reshape(shape).expand(3, -1, -1, -1)  # one per channel
        margin = (0, 0, radius, radius) if axis == 2 else (radius, radius, 0, 0)
        pixels = F.conv2d(F.pad(pixels, margin, mode="reflect"), kernel, groups=3)
    return pixels
