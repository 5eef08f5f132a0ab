"""How demo videos look: calm backdrops, and four kinds of things that move on them.

A painter says which sprites stand where at a time. Sprites are drawn once for each video, from the
signed distance of each pixel to the edge of the shape, so that edges are smooth.
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

# Each palette: three colours of the backdrop, then five of the things that move.
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
STYLES = ("corner", "bands", "hills", "glows", "bokeh")
PAD = 6  # pixels around a shape, for its soft shadow
PHASES = 16  # sprites of one period of a turn

Pixels: TypeAlias = Float[ndarray, "H W"]
Colour: TypeAlias = Float[ndarray, " 3"]
Picture: TypeAlias = Float[ndarray, "H W 3"]
Stamp: TypeAlias = tuple[Image.Image, float, float]  # a sprite, and where its centre goes
Painter: TypeAlias = Callable[[float], list[Stamp]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Where things move: a canvas a little larger than the frame, and the colours of the video."""

    width: int
    height: int
    palette: Float[ndarray, "8 3"]

    @property
    def unit(self) -> int:
        """The short side, by which everything is measured."""
        return min(self.width, self.height)

    def draw_place(self, rng: Generator, reach: float) -> tuple[float, float]:
        """A centre from which something that reaches so many units stays in sight."""
        x, y = rng.uniform(-0.5, 0.5, 2)
        return (
            self.width / 2 + x * (self.width - 2 * reach * self.unit),
            self.height / 2 + y * (self.height - 2 * reach * self.unit),
        )

    def draw_colours(self, rng: Generator, count: int) -> list[Colour]:
        """Different colours for a thing that moves."""
        return list(rng.permutation(self.palette[3:])[:count])


def draw_stage(rng: Generator, width: int, height: int) -> Stage:
    """A canvas with one of the palettes."""
    colours = str(rng.choice(PALETTES)).split()
    palette = np.array([list(bytes.fromhex(colour)) for colour in colours], dtype=float)
    return Stage(width=width, height=height, palette=palette)


def draw_backdrop(rng: Generator, stage: Stage) -> Image.Image:
    """A gradient with something calm on it."""
    y, x = np.mgrid[: stage.height, : stage.width] / stage.unit
    angle = rng.uniform(0, 2 * math.pi)
    ramp = x * math.cos(angle) + y * math.sin(angle)
    ramp = (ramp - ramp.min()) / np.ptp(ramp)
    first, second, third = stage.palette[:3]
    picture = _mix(first, second, ramp)
    for share in _draw_veils(rng, x, y, ramp, stage.unit):
        picture = _mix(picture, third, share)
    return Image.fromarray(picture.round().astype(np.uint8))


def _draw_veils(rng: Generator, x: Pixels, y: Pixels, ramp: Pixels, unit: int) -> list[Pixels]:
    """Where the third colour lies over the gradient: a corner, bands, hills, glows or bokeh."""
    style = rng.choice(STYLES)
    if style == "corner":
        return [np.clip(2 * ramp - 1, 0, 1)]
    if style == "bands":
        pace = 2 * math.pi * rng.uniform(3, 7)
        return [0.5 * _step(np.sin(pace * ramp) * unit / pace)]
    if style == "hills":
        waves = [np.sin(x * rng.uniform(2, 5) + rng.uniform(0, 6)) for _ in range(3)]
        crests = [0.45 + 0.2 * depth + 0.07 * wave for depth, wave in enumerate(waves)]
        return [0.35 * _step((y - crest) * unit) for crest in crests]
    count = 3 if style == "glows" else 9
    spots = [rng.uniform(0, (x.max(), y.max())) for _ in range(count)]
    away = [np.hypot(x - left, y - top) for left, top in spots]
    if style == "glows":
        return [np.exp(-((distance / rng.uniform(0.3, 0.6)) ** 2)) for distance in away]
    return [0.3 * _step((rng.uniform(0.06, 0.18) - distance) * unit / 3) for distance in away]


def draw_ball(rng: Generator, stage: Stage) -> Painter:
    """A striped ball that bounces, turns and throws a shadow on the floor."""
    radius = stage.unit * rng.uniform(0.14, 0.25)
    sprites, shadow = _ball_sprites(rng, stage, radius), _floor_shadow(radius)
    floor = stage.height * rng.uniform(0.82, 0.92)
    drop = (floor - 2 * radius) * rng.uniform(0.5, 0.95)
    pace, turn = rng.uniform(0.7, 1.3), _either_way(rng) * rng.uniform(0.5, 1.2)
    sway = rng.uniform(0.05, 0.2) * stage.width
    centre = stage.draw_place(rng, (radius + sway) / stage.unit)[0]

    def paint(time: float) -> list[Stamp]:
        beat = (pace * time) % 1
        x = centre + sway * math.sin(0.4 * math.pi * pace * time)
        y = floor - radius - 4 * drop * beat * (1 - beat)
        return [(shadow, x, floor), (sprites[int(turn * time * PHASES) % PHASES], x, y)]

    return paint


def draw_star(rng: Generator, stage: Stage) -> Painter:
    """A star with facets that spins."""
    sprites = _star_sprites(rng, stage, stage.unit * rng.uniform(0.19, 0.37))
    left, top = stage.draw_place(rng, 0.4)
    spin = _either_way(rng) * rng.uniform(1, 3)
    swing, pace = stage.unit * rng.uniform(0.02, 0.08), 2 * math.pi * rng.uniform(0.2, 0.5)

    def paint(time: float) -> list[Stamp]:
        x, y = left + swing * math.cos(pace * time), top + swing * math.sin(pace * time)
        return [(sprites[int(spin * time * PHASES) % PHASES], x, y)]

    return paint


def draw_rain(rng: Generator, stage: Stage) -> Painter:
    """Many small squares that fall, the larger ones faster."""
    count = int(rng.integers(16, 34))
    sizes = stage.unit * rng.uniform(0.025, 0.04) * np.array([1.0, 1.35, 1.8])
    tilts, colours = rng.uniform(0, math.pi / 2, 2), stage.draw_colours(rng, 3)
    sprites = [[_square(size, tilt, c) for tilt in tilts for c in colours] for size in sizes]
    layers = np.sort(rng.integers(0, 3, count))
    drops = [
        sprites[layer][look] for layer, look in zip(layers, rng.integers(0, 6, count), strict=True)
    ]
    (x0, y0), slant = rng.uniform(0, 1, (2, count)), rng.uniform(-0.15, 0.15)
    speed = rng.uniform(0.35, 0.7) * (0.7 + 0.3 * layers)

    def paint(time: float) -> list[Stamp]:
        y = (y0 + speed * time) % 1
        x = (x0 + slant * y) % 1
        down = (1.2 * y - 0.1) * stage.height
        return list(zip(drops, (x * stage.width).tolist(), down.tolist(), strict=True))

    return paint


def draw_wheel(rng: Generator, stage: Stage) -> Painter:
    """A circle of discs that turns and breathes."""
    count = int(rng.integers(7, 12))
    radius = stage.unit * rng.uniform(0.2, 0.34)
    sizes = radius * rng.uniform(0.18, 0.26) * np.linspace(0.8, 1.2, 8)
    colours = stage.draw_colours(rng, 2)
    sprites = [[_disc(size, colour) for colour in colours] for size in sizes]
    left, top = stage.draw_place(rng, 0.4)
    turn, pace = _either_way(rng) * rng.uniform(0.6, 1.6), 2 * math.pi * rng.uniform(0.4, 0.9)

    def paint(time: float) -> list[Stamp]:
        breath = math.sin(pace * time)
        angles = turn * time + 2 * math.pi * np.arange(count) / count
        reach, discs = radius * (1 + 0.22 * breath), sprites[round(3.5 + 3.5 * breath)]
        x, y = left + reach * np.cos(angles), top + reach * np.sin(angles)
        return [(discs[n % 2], float(x[n]), float(y[n])) for n in range(count)]

    return paint


PAINTERS: dict[str, Callable[[Generator, Stage], Painter]] = {
    "ball": draw_ball,
    "star": draw_star,
    "rain": draw_rain,
    "wheel": draw_wheel,
}


def _ball_sprites(rng: Generator, stage: Stage, radius: float) -> list[Image.Image]:
    """A ball lit from the upper left, in the phases of its turn."""
    x, y = _grid(radius)
    away = np.hypot(x, y)
    z = np.sqrt(np.clip(radius**2 - away**2, 0, None))
    light = np.clip(0.62 + 0.5 * (z - 0.6 * x - 0.8 * y) / (1.6 * radius), 0.35, 1.12)
    tilt, stripes = rng.uniform(-0.6, 0.6), 2 * int(rng.integers(3, 5))
    longitude = np.arctan2(x * math.cos(tilt) + y * math.sin(tilt), z) / (2 * math.pi)
    first, second = stage.draw_colours(rng, 2)
    sprites = []
    for phase in range(PHASES):
        stripe = np.sin(math.pi * (stripes * longitude + 2 * phase / PHASES))
        colour = _mix(first, second, _step(stripe * radius / 4)) * light[..., None]
        sprites.append(_sprite(away - radius, np.clip(colour, 0, 255)))
    return sprites


def _floor_shadow(radius: float) -> Image.Image:
    x, y = _grid(radius)
    flat = np.hypot(x / 0.9, 4 * y) / radius
    return _rgba(np.zeros((*flat.shape, 3)), 0.35 * np.clip(1.1 - flat, 0, 1))


def _star_sprites(rng: Generator, stage: Stage, radius: float) -> list[Image.Image]:
    """A five-pointed star, in the phases of a fifth of a turn."""
    x, y = _grid(radius)
    away, angle = np.hypot(x, y), np.arctan2(y, x)
    fifth = 2 * math.pi / 5
    inner = radius * rng.uniform(0.4, 0.5)
    along, up = inner * math.cos(fifth / 2) - radius, inner * math.sin(fifth / 2)
    edge = math.hypot(along, up)
    (colour,) = stage.draw_colours(rng, 1)
    sprites = []
    for phase in range(PHASES):
        turn = (angle + fifth * (0.5 + phase / PHASES)) % fifth - fifth / 2
        u, v = away * np.cos(turn), away * np.sin(turn)
        distance = (up * (u - radius) - along * np.abs(v)) / edge
        sprites.append(_sprite(distance, colour * (0.78 + 0.22 * _step(-v)[..., None])))
    return sprites


def _disc(radius: float, colour: Colour) -> Image.Image:
    x, y = _grid(radius)
    return _sprite(np.hypot(x, y) - radius, np.broadcast_to(colour, (*x.shape, 3)))


def _square(half: float, tilt: float, colour: Colour) -> Image.Image:
    """A square with round corners."""
    x, y = _grid(1.5 * half)
    u = np.abs(x * math.cos(tilt) + y * math.sin(tilt)) - 0.7 * half
    v = np.abs(y * math.cos(tilt) - x * math.sin(tilt)) - 0.7 * half
    distance = np.hypot(np.maximum(u, 0), np.maximum(v, 0)) + np.minimum(np.maximum(u, v), 0)
    return _sprite(distance - 0.3 * half, np.broadcast_to(colour, (*x.shape, 3)))


def _sprite(distance: Pixels, colour: Picture) -> Image.Image:
    """A shape given by the signed distance to its edge, with a soft shadow below it."""
    inside = _step(-distance)
    shadow = 0.3 * np.clip(1 - np.roll(distance, 2, axis=0) / (PAD - 2), 0, 1) ** 2
    alpha = inside + shadow * (1 - inside)
    return _rgba(colour * (inside / np.maximum(alpha, 1e-6))[..., None], alpha)


def _rgba(colour: Picture, alpha: Pixels) -> Image.Image:
    return Image.fromarray(np.dstack([colour, 255 * alpha]).round().astype(np.uint8))


def _grid(radius: float) -> tuple[Pixels, Pixels]:
    """How far right of and below its centre each pixel of a sprite is."""
    half = math.ceil(radius) + PAD
    y, x = np.mgrid[-half : half + 1, -half : half + 1].astype(float)
    return x, y


def _step(distance: Pixels) -> Pixels:
    """From 0 to 1 across one pixel."""
    return np.clip(distance + 0.5, 0, 1)


def _mix(first: Colour | Picture, second: Colour, share: Pixels) -> Picture:
    """One colour into another, pixel by pixel."""
    mixed: Picture = first + (second - first) * share[..., None]
    return mixed


def _either_way(rng: Generator) -> int:
    return int(rng.choice([-1, 1]))
