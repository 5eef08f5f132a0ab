"""The pictures of demo videos: calm backgrounds and four kinds of animated sprites.

An animation maps a time to sprites and their centres. Sprites are drawn once for each video, from
the signed distance of each pixel to the edge of the shape, so that edges are smooth.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from jaxtyping import Float
from numpy import ndarray
from numpy.random import Generator
from PIL import Image

# Each palette: three colours of the background, then five of the sprites.
PALETTES = (
    "1b1f3b 3a2e6b 6b4b8f ffb86b ff6b8b ffe066 7be0d6 f7f3ff",
    "eef7f2 cfeadf a7d8c9 ef6f6c f2a65a 2f4858 465c9b 7a4d8c",
    "0f2f3f 14506a 1f7a8c ffd166 ff7f6b e1f5f2 8ee3c8 f4a9c4",
    "fff1e0 ffd9bd f7b79b d1495b 2e4057 00798c 6b4e9b 3f7d58",
    "f3effc ddd3f5 c0b2e8 5b3fa8 e4577f 23857a f08a3c 2b3a67",
    "23272f 343b47 4d5766 f9c74f f3722c 90e0ef f28fb1 b8f2a0",
    "2d132c 5a1e3f 8c2f4f ffd6a5 fdffb6 9bf6ff ffadad ffffff",
    "e8f4fd c5e3f9 94c9f0 f25f5c 1d3f72 fb8b24 5f0f40 0f7173",
    "12372a 2a5c48 5c8d70 fbe7a1 f6a96c f27878 d7f0ff f0c6e8",
    "fdf6e3 eee2c0 dccb9a b5453a 2a6f77 3c4f76 d9822b 6a8d3a",
)
BACKGROUND_STYLES = ("corner", "bands", "hills", "glows", "bokeh")
SHADOW_MARGIN = 6  # pixels around a shape
NUM_PHASES = 16  # sprites of one period of a rotation

Plane: TypeAlias = Float[ndarray, "H W"]
Colour: TypeAlias = Float[ndarray, " 3"]
RgbImage: TypeAlias = Float[ndarray, "H W 3"]
PlacedSprite: TypeAlias = tuple[Image.Image, float, float]  # a sprite and its centre
Animation: TypeAlias = Callable[[float], list[PlacedSprite]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Canvas:
    """A canvas a little larger than the frame, with the colours of the video."""

    width: int
    height: int
    palette: Float[ndarray, "8 3"]

    @property
    def short_side(self) -> int:
        """The unit of all lengths, in pixels."""
        return min(self.width, self.height)

    def sample_center(self, rng: Generator, radius: float) -> tuple[float, float]:
        """A random centre that keeps a radius (in units of the short side) inside the canvas."""
        x, y = rng.uniform(-0.5, 0.5, 2)
        return (
            self.width / 2 + x * (self.width - 2 * radius * self.short_side),
            self.height / 2 + y * (self.height - 2 * radius * self.short_side),
        )

    def sample_colours(self, rng: Generator, count: int) -> list[Colour]:
        """Distinct random colours for a sprite."""
        return list(rng.permutation(self.palette[3:])[:count])


def sample_canvas(rng: Generator, width: int, height: int) -> Canvas:
    """A canvas with a random palette."""
    colours = str(rng.choice(PALETTES)).split()
    palette = np.array([list(bytes.fromhex(colour)) for colour in colours], dtype=float)
    return Canvas(width=width, height=height, palette=palette)


def draw_background(rng: Generator, canvas: Canvas) -> Image.Image:
    """A gradient with a calm pattern."""
    y, x = np.mgrid[: canvas.height, : canvas.width] / canvas.short_side
    angle = rng.uniform(0, 2 * math.pi)
    colour_ramp = x * math.cos(angle) + y * math.sin(angle)
    colour_ramp = (colour_ramp - colour_ramp.min()) / np.ptp(colour_ramp)
    first, second, third = canvas.palette[:3]
    background_image = _blend(first, second, colour_ramp)
    for overlay_mask in _overlay_masks(rng, x, y, colour_ramp, canvas.short_side):
        background_image = _blend(background_image, third, overlay_mask)
    return Image.fromarray(background_image.round().astype(np.uint8))


def _overlay_masks(rng: Generator, x: Plane, y: Plane, ramp: Plane, short_side: int) -> list[Plane]:
    """Opacity of the third colour over the gradient: a corner, bands, hills, glows or bokeh."""
    background_style = rng.choice(BACKGROUND_STYLES)
    if background_style == "corner":
        return [np.clip(2 * ramp - 1, 0, 1)]
    if background_style == "bands":
        frequency = 2 * math.pi * rng.uniform(3, 7)
        return [0.5 * _smooth_step(np.sin(frequency * ramp) * short_side / frequency)]
    if background_style == "hills":
        waves = [np.sin(x * rng.uniform(2, 5) + rng.uniform(0, 6)) for _ in range(3)]
        crests = [0.45 + 0.2 * depth + 0.07 * wave for depth, wave in enumerate(waves)]
        return [0.35 * _smooth_step((y - crest) * short_side) for crest in crests]
    num_spots = 3 if background_style == "glows" else 9
    spot_centers = [rng.uniform(0, (x.max(), y.max())) for _ in range(num_spots)]
    distances = [np.hypot(x - left, y - top) for left, top in spot_centers]
    if background_style == "glows":
        return [np.exp(-((distance / rng.uniform(0.3, 0.6)) ** 2)) for distance in distances]
    return [
        0.3 * _smooth_step((rng.uniform(0.06, 0.18) - distance) * short_side / 3)
        for distance in distances
    ]


def animate_ball(rng: Generator, canvas: Canvas) -> Animation:
    """A striped ball that bounces, rotates and casts a shadow on the floor."""
    radius = canvas.short_side * rng.uniform(0.14, 0.25)
    sprites = _ball_sprites(rng, canvas, radius)
    x, y = _centered_grid(radius)
    flat_distance = np.hypot(x / 0.9, 4 * y) / radius
    shadow = _rgba(np.zeros((*flat_distance.shape, 3)), 0.35 * np.clip(1.1 - flat_distance, 0, 1))
    floor_height = canvas.height * rng.uniform(0.82, 0.92)
    bounce_height = (floor_height - 2 * radius) * rng.uniform(0.5, 0.95)
    bounce_rate = rng.uniform(0.7, 1.3)  # in Hz
    turn_rate = _random_sign(rng) * rng.uniform(0.5, 1.2)
    amplitude = rng.uniform(0.05, 0.2) * canvas.width
    center_x = canvas.sample_center(rng, (radius + amplitude) / canvas.short_side)[0]

    def sprites_at(time: float) -> list[PlacedSprite]:
        phase = (bounce_rate * time) % 1
        x = center_x + amplitude * math.sin(0.4 * math.pi * bounce_rate * time)
        y = floor_height - radius - 4 * bounce_height * phase * (1 - phase)
        sprite = sprites[int(turn_rate * time * NUM_PHASES) % NUM_PHASES]
        return [(shadow, x, floor_height), (sprite, x, y)]

    return sprites_at


def animate_star(rng: Generator, canvas: Canvas) -> Animation:
    """A star with facets that spins."""
    sprites = _star_sprites(rng, canvas, canvas.short_side * rng.uniform(0.19, 0.37))
    left, top = canvas.sample_center(rng, 0.4)
    turn_rate = _random_sign(rng) * rng.uniform(1, 3)
    orbit = canvas.short_side * rng.uniform(0.02, 0.08)
    frequency = 2 * math.pi * rng.uniform(0.2, 0.5)

    def sprites_at(time: float) -> list[PlacedSprite]:
        angle = frequency * time
        x, y = left + orbit * math.cos(angle), top + orbit * math.sin(angle)
        return [(sprites[int(turn_rate * time * NUM_PHASES) % NUM_PHASES], x, y)]

    return sprites_at


def animate_rain(rng: Generator, canvas: Canvas) -> Animation:
    """Many small squares that fall, the larger ones faster."""
    num_drops = int(rng.integers(16, 34))
    sizes = canvas.short_side * rng.uniform(0.025, 0.04) * np.array([1.0, 1.35, 1.8])
    drop_tilts, colours = rng.uniform(0, math.pi / 2, 2), canvas.sample_colours(rng, 3)
    sprites = [[_square(size, tilt, c) for tilt in drop_tilts for c in colours] for size in sizes]
    drop_layers = np.sort(rng.integers(0, 3, num_drops))
    drop_sprites = [
        sprites[layer][variant]
        for layer, variant in zip(drop_layers, rng.integers(0, 6, num_drops), strict=True)
    ]
    (x0, y0), slant = rng.uniform(0, 1, (2, num_drops)), rng.uniform(-0.15, 0.15)
    fall_speed = rng.uniform(0.35, 0.7) * (0.7 + 0.3 * drop_layers)

    def sprites_at(time: float) -> list[PlacedSprite]:
        y = (y0 + fall_speed * time) % 1
        x = (x0 + slant * y) % 1
        top = (1.2 * y - 0.1) * canvas.height
        return list(zip(drop_sprites, (x * canvas.width).tolist(), top.tolist(), strict=True))

    return sprites_at


def animate_wheel(rng: Generator, canvas: Canvas) -> Animation:
    """A rotating circle of discs that grows and shrinks."""
    num_discs = int(rng.integers(7, 12))
    radius = canvas.short_side * rng.uniform(0.2, 0.34)
    disc_sizes = radius * rng.uniform(0.18, 0.26) * np.linspace(0.8, 1.2, 8)
    colours = canvas.sample_colours(rng, 2)
    sprites = [[_disc(size, colour) for colour in colours] for size in disc_sizes]
    left, top = canvas.sample_center(rng, 0.4)
    turn_speed = _random_sign(rng) * rng.uniform(0.6, 1.6)
    frequency = 2 * math.pi * rng.uniform(0.4, 0.9)

    def sprites_at(time: float) -> list[PlacedSprite]:
        growth = math.sin(frequency * time)
        disc_angles = turn_speed * time + 2 * math.pi * np.arange(num_discs) / num_discs
        orbit, disc_sprites = radius * (1 + 0.22 * growth), sprites[round(3.5 + 3.5 * growth)]
        x, y = left + orbit * np.cos(disc_angles), top + orbit * np.sin(disc_angles)
        return [(disc_sprites[i % 2], float(x[i]), float(y[i])) for i in range(num_discs)]

    return sprites_at


ANIMATIONS: dict[str, Callable[[Generator, Canvas], Animation]] = {
    "ball": animate_ball,
    "star": animate_star,
    "rain": animate_rain,
    "wheel": animate_wheel,
}


def _ball_sprites(rng: Generator, canvas: Canvas, radius: float) -> list[Image.Image]:
    """A ball lit from the upper left, in the phases of its rotation."""
    x, y = _centered_grid(radius)
    distance = np.hypot(x, y)
    z = np.sqrt(np.clip(radius**2 - distance**2, 0, None))
    light = np.clip(0.62 + 0.5 * (z - 0.6 * x - 0.8 * y) / (1.6 * radius), 0.35, 1.12)
    tilt, num_stripes = rng.uniform(-0.6, 0.6), 2 * int(rng.integers(3, 5))
    longitude = np.arctan2(x * math.cos(tilt) + y * math.sin(tilt), z) / (2 * math.pi)
    first, second = canvas.sample_colours(rng, 2)
    sprites = []
    for phase in range(NUM_PHASES):
        stripe = np.sin(math.pi * (num_stripes * longitude + 2 * phase / NUM_PHASES))
        colour = _blend(first, second, _smooth_step(stripe * radius / 4)) * light[..., None]
        sprites.append(_sprite(distance - radius, np.clip(colour, 0, 255)))
    return sprites


def _star_sprites(rng: Generator, canvas: Canvas, radius: float) -> list[Image.Image]:
    """A five-pointed star, in the phases of a fifth of a rotation."""
    x, y = _centered_grid(radius)
    from_center, angle = np.hypot(x, y), np.arctan2(y, x)
    fifth = 2 * math.pi / 5
    inner_radius = radius * rng.uniform(0.4, 0.5)
    along, up = inner_radius * math.cos(fifth / 2) - radius, inner_radius * math.sin(fifth / 2)
    edge_length = math.hypot(along, up)
    (colour,) = canvas.sample_colours(rng, 1)
    sprites = []
    for phase in range(NUM_PHASES):
        folded = (angle + fifth * (0.5 + phase / NUM_PHASES)) % fifth - fifth / 2
        u, v = from_center * np.cos(folded), from_center * np.sin(folded)
        distance = (up * (u - radius) - along * np.abs(v)) / edge_length
        sprites.append(_sprite(distance, colour * (0.78 + 0.22 * _smooth_step(-v)[..., None])))
    return sprites


def _disc(radius: float, colour: Colour) -> Image.Image:
    x, y = _centered_grid(radius)
    return _sprite(np.hypot(x, y) - radius, np.broadcast_to(colour, (*x.shape, 3)))


def _square(half_side: float, tilt: float, colour: Colour) -> Image.Image:
    """A square with round corners; `half_side` is half its side."""
    x, y = _centered_grid(1.5 * half_side)
    u = np.abs(x * math.cos(tilt) + y * math.sin(tilt)) - 0.7 * half_side
    v = np.abs(y * math.cos(tilt) - x * math.sin(tilt)) - 0.7 * half_side
    distance = np.hypot(np.maximum(u, 0), np.maximum(v, 0)) + np.minimum(np.maximum(u, v), 0)
    return _sprite(distance - 0.3 * half_side, np.broadcast_to(colour, (*x.shape, 3)))


def _sprite(distance: Plane, colour: RgbImage) -> Image.Image:
    """A shape, given by the signed distance to its edge, with a soft shadow."""
    inside = _smooth_step(-distance)
    shadow_alpha = 0.3 * np.clip(1 - np.roll(distance, 2, axis=0) / (SHADOW_MARGIN - 2), 0, 1) ** 2
    alpha = inside + shadow_alpha * (1 - inside)
    return _rgba(colour * (inside / np.maximum(alpha, 1e-6))[..., None], alpha)


def _rgba(colour: RgbImage, alpha: Plane) -> Image.Image:
    return Image.fromarray(np.dstack([colour, 255 * alpha]).round().astype(np.uint8))


def _centered_grid(radius: float) -> tuple[Plane, Plane]:
    """Coordinates of a sprite's pixels, relative to its centre."""
    half = math.ceil(radius) + SHADOW_MARGIN
    y, x = np.mgrid[-half : half + 1, -half : half + 1].astype(float)
    return x, y


def _smooth_step(distance: Plane) -> Plane:
    """From 0 to 1 across one pixel."""
    return np.clip(distance + 0.5, 0, 1)


def _blend(first: Colour | RgbImage, second: Colour, weight: Plane) -> RgbImage:
    """Linear interpolation from the first colour to the second, for each pixel."""
    mixed: RgbImage = first + (second - first) * weight[..., None]
    return mixed


def _random_sign(rng: Generator) -> int:
    return int(rng.choice([-1, 1]))
