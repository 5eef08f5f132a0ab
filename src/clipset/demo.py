"""Demo videos: real MP4 files in which the same four events happen and the class is their order.

Everything else about a video (size, rate, length, colours, movement) is drawn without the class, so
that no single clip, and no average over clips, can tell it.
"""

from __future__ import annotations

import io
import math
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import av
import numpy as np
from av.video.reformatter import VideoReformatter
from av.video.stream import VideoStream
from jaxtyping import Float, UInt8
from numpy import ndarray
from numpy.random import Generator
from PIL import Image

from clipset.config import read_json, write_atomic, write_json
from clipset.errors import ConfigError, RunError
from clipset.videos.catalog import Catalog, Video

VERSION = 1  # of the drawing: another version, other pixels
MARKER = "demo.json"
KINDS = ("ball", "star", "rain", "wheel")
# Every kind stands twice in every place, every ordered pair of neighbours occurs twice, and each
# order comes with its reverse: what touches what, and what stands at the ends, says little.
CLASSES = (
    "ball-star-wheel-rain",
    "rain-wheel-star-ball",
    "ball-wheel-star-rain",
    "rain-star-wheel-ball",
    "star-rain-ball-wheel",
    "wheel-ball-rain-star",
    "star-ball-rain-wheel",
    "wheel-rain-ball-star",
)
# Each palette: three colours of the background, then five of the things that move.
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
PAD = 6  # pixels around a sprite, for its soft shadow
PHASES = 16  # sprites of one turn

Pixels: TypeAlias = Float[ndarray, "H W"]
Stamp: TypeAlias = tuple[Image.Image, float, float]  # a sprite and where its centre goes
Painter: TypeAlias = Callable[[float], list[Stamp]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happens in a video, from `start` to `end` seconds."""

    kind: str
    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Shoot:
    """What a video is apart from its class: frame size, rate, length, where it cuts and how."""

    width: int
    height: int
    rate: int
    frames: int
    cuts: tuple[float, float, float]
    fade: float
    noise: float
    margin: int
    wander: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Where events are drawn: a canvas a little larger than the frame, and its colours."""

    width: int
    height: int
    colours: Float[ndarray, "5 3"]

    @property
    def unit(self) -> int:
        """The short side, by which everything is measured."""
        return min(self.width, self.height)

    def place(self, rng: Generator, reach: float) -> tuple[float, float]:
        """A centre around which something of this reach stays mostly in sight."""
        x, y = rng.uniform(-0.5, 0.5, 2)
        room = max(0.0, 1.0 - 2.0 * reach)
        return self.width / 2 + x * (self.width - self.unit * (1 - room)), (
            self.height / 2 + y * (self.height - self.unit * (1 - room))
        )


def render_demo(
    folder: Path,
    *,
    seed: int = 0,
    videos: int = 240,
    workers: int | None = None,
    on_video: Callable[[], None] | None = None,
) -> Catalog:
    """Render the demo's videos as `folder/<class>/<number>.mp4`; what is there already is kept."""
    if videos < 1:
        raise ConfigError(f"the demo needs at least 1 video, got {videos}")
    marker = {"made_by": "clipset demo", "version": VERSION, "seed": seed, "videos": videos}
    _claim(folder, marker)
    paths = [folder / _name(index) for index in range(videos)]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
    missing = [index for index, path in enumerate(paths) if not path.exists()]
    for _ in range(videos - len(missing)):
        _tell(on_video)
    for _ in _render_all(folder, seed, missing, workers or os.cpu_count() or 1):
        _tell(on_video)
    write_json(folder / MARKER, marker | {"whole": True})
    found = (Video(id=_name(i), path=p, label=p.parent.name) for i, p in enumerate(paths))
    return Catalog(name="demo", videos=tuple(sorted(found, key=lambda video: video.id)))


def timeline(seed: int, index: int) -> tuple[Event, ...]:
    """What happens when in a video of the demo."""
    shoot = draw_shoot(np.random.default_rng([seed, index]))
    edges = (0.0, *shoot.cuts, shoot.frames / shoot.rate)
    kinds = CLASSES[index % len(CLASSES)].split("-")
    return tuple(
        Event(kind=kind, start=start, end=end)
        for kind, start, end in zip(kinds, edges, edges[1:], strict=False)
    )


def draw_shoot(rng: Generator) -> Shoot:
    """Size, rate, length and cuts of one video."""
    short = 2 * int(rng.integers(60, 93))
    long = min(320, 2 * round(short * rng.choice([1, 4 / 3, 3 / 2, 16 / 9]) / 2))
    width, height = (long, short) if rng.random() < 0.7 else (short, long)
    rate = int(rng.choice([15, 20, 24, 25, 30]))
    frames = round(rng.uniform(6, 12) * rate)
    lengths = rng.uniform(0.75, 1.25, 4) * [1.15, 1, 1, 1.15]  # clips fall less often on the ends
    first, second, third = np.round(np.cumsum(lengths)[:3] / lengths.sum() * frames) / rate
    return Shoot(
        width=width,
        height=height,
        rate=rate,
        frames=frames,
        cuts=(float(first), float(second), float(third)),
        fade=float(rng.choice([0.0, rng.uniform(0.2, 0.5)])),
        noise=float(rng.uniform(0, 1.5)),
        margin=round(short * rng.uniform(0, 0.06)),
        wander=(float(rng.uniform(0.05, 0.2)), float(rng.uniform(0.05, 0.2))),
    )


def render_video(seed: int, index: int) -> bytes:
    """One video of the demo as the bytes of an MP4 file; depends on nothing but seed and index."""
    rng = np.random.default_rng([seed, index])
    shoot = draw_shoot(rng)
    palette = np.array([list(bytes.fromhex(c)) for c in rng.choice(PALETTES).split()], float)
    stage = Stage(
        width=shoot.width + 2 * shoot.margin,
        height=shoot.height + 2 * shoot.margin,
        colours=palette[3:],
    )
    backdrop = draw_backdrop(rng, stage, palette[:3])
    painters = {
        kind: PAINTERS[kind](np.random.default_rng([seed, index, place]), stage)
        for place, kind in enumerate(KINDS)
    }
    frames = _film(shoot, backdrop, [(e, painters[e.kind]) for e in timeline(seed, index)])
    return _encode(frames, shoot, rng)


def _film(
    shoot: Shoot, backdrop: Image.Image, events: list[tuple[Event, Painter]]
) -> Iterator[Image.Image]:
    """The frames of a video: each event in its time, cut or faded into the next one."""
    for number in range(shoot.frames):
        time = number / shoot.rate
        shares = [(_share(event, time, shoot.fade), painter) for event, painter in events]
        seen = [(share, painter) for share, painter in shares if share > 0]
        canvas = _paint(backdrop, seen[0][1](time))
        for share, painter in seen[1:]:
            canvas = Image.blend(canvas, _paint(backdrop, painter(time)), share)
        left, top = (
            round(shoot.margin * (1 + math.sin(2 * math.pi * pace * time))) for pace in shoot.wander
        )
        yield canvas.crop((left, top, left + shoot.width, top + shoot.height))


def _share(event: Event, time: float, fade: float) -> float:
    """How much of an event is seen at a time: 0, 1, or between them during a fade."""
    if fade == 0:
        return float(event.start <= time < event.end)
    into = (time - event.start) / fade + 0.5 if event.start > 0 else 1.0
    out = (event.end - time) / fade + 0.5
    return min(1.0, max(0.0, into)) if out > 0 else 0.0


def _paint(backdrop: Image.Image, stamps: list[Stamp]) -> Image.Image:
    """A copy of the backdrop with the sprites on it."""
    canvas = backdrop.copy()
    for sprite, x, y in stamps:
        canvas.paste(sprite, (round(x - sprite.width / 2), round(y - sprite.height / 2)), sprite)
    return canvas


def _encode(frames: Iterator[Image.Image], shoot: Shoot, rng: Generator) -> bytes:
    """H.264 in MP4, with a little sensor noise, the same bytes every time."""
    grain = rng.normal(0, shoot.noise, (shoot.height + 64, shoot.width + 64))
    grain = grain.round().clip(-15, 15).astype(np.int8).view(np.uint8)  # added modulo 256
    file, converter = io.BytesIO(), VideoReformatter()
    with av.open(file, "w", format="mp4", options={"fflags": "+bitexact"}) as container:
        options = {"preset": "superfast", "crf": "26", "threads": "1", "g": str(2 * shoot.rate)}
        stream: VideoStream = container.add_stream("libx264", rate=shoot.rate, options=options)
        stream.width, stream.height, stream.pix_fmt = shoot.width, shoot.height, "yuv420p"
        stream.time_base = Fraction(1, shoot.rate)
        for number, image in enumerate(frames):
            picture = av.VideoFrame.from_image(image)
            frame = converter.reformat(picture, format="yuv420p", threads=1)
            luma = np.frombuffer(frame.planes[0], np.uint8).reshape(-1, frame.planes[0].line_size)
            top, left = rng.integers(0, 65, 2)
            luma[: shoot.height, : shoot.width] += grain[
                top : top + shoot.height, left : left + shoot.width
            ]
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file.getvalue()


def draw_backdrop(rng: Generator, stage: Stage, colours: Float[ndarray, "3 3"]) -> Image.Image:
    """A calm background: a gradient, with glows, hills, bands or bokeh on it."""
    y, x = np.mgrid[: stage.height, : stage.width] / stage.unit
    angle = rng.uniform(0, 2 * math.pi)
    ramp = x * math.cos(angle) + y * math.sin(angle)
    ramp = (ramp - ramp.min()) / np.ptp(ramp)
    style = rng.choice(["plain", "glow", "hills", "bands", "bokeh"])
    image = _mix(colours[0], colours[1], ramp)
    if style == "plain":
        image = _mix(image, colours[2], np.clip(2 * ramp - 1, 0, 1))
    for depth in range(3) if style == "hills" else ():
        crest = 0.45 + 0.2 * depth + 0.07 * np.sin(x * rng.uniform(2, 5) + rng.uniform(0, 6))
        image = _mix(image, colours[2], 0.35 * _step((y - crest) * stage.unit))
    if style == "bands":
        image = _mix(image, colours[2], 0.5 * np.round((ramp * rng.uniform(3, 7)) % 1))
    for _ in range({"glow": 3, "bokeh": 9}.get(str(style), 0)):
        distance = np.hypot(x - rng.uniform(0, x.max()), y - rng.uniform(0, y.max()))
        size = rng.uniform(0.3, 0.6) if style == "glow" else rng.uniform(0.06, 0.18)
        soft = np.exp(-((distance / size) ** 2)) if style == "glow" else 0.0
        disc = 0.3 * _step((size - distance) * stage.unit / 3) if style == "bokeh" else 0.0
        image = _mix(image, colours[2], soft + disc)
    return Image.fromarray(image.round().astype(np.uint8))


def draw_ball(rng: Generator, stage: Stage) -> Painter:
    """A striped beach ball that bounces, rolls and throws a shadow on the floor."""
    radius = stage.unit * rng.uniform(0.11, 0.24)
    x, y = _grid(radius)
    away = np.hypot(x, y)
    z = np.sqrt(np.clip(radius**2 - away**2, 0, None))
    light = np.clip(0.62 + 0.5 * (z - 0.6 * x - 0.8 * y) / (1.6 * radius), 0.35, 1.12)
    tilt, stripes = rng.uniform(-0.6, 0.6), 2 * int(rng.integers(3, 5))
    along, across = x * math.cos(tilt) + y * math.sin(tilt), np.arctan2(z, 0)
    across = np.arctan2(along, z)
    first, second = _pick(rng, stage, 2)
    sprites = []
    for phase in range(PHASES):
        turn = across * stripes / (2 * math.pi) + 2 * phase / PHASES
        wave = _step(np.sin(math.pi * turn) * radius / 4)
        colour = np.clip(_mix(first, second, wave) * light[..., None], 0, 255)
        sprites.append(_sprite(away - radius, colour))
    floor, drop = stage.height * rng.uniform(0.82, 0.92), stage.height * rng.uniform(0.3, 0.5)
    pace, roll = rng.uniform(0.7, 1.3), rng.choice([-1, 1]) * rng.uniform(0.5, 1.2)
    centre, sway = stage.place(rng, 0.35)[0], rng.uniform(0.05, 0.2) * stage.width
    flat = np.hypot(x / 0.9, np.clip(y * 4, -2 * radius, 2 * radius)) / radius
    shadow = _rgba(np.zeros((*flat.shape, 3)), 0.35 * np.clip(1.1 - flat, 0, 1))

    def paint(time: float) -> list[Stamp]:
        beat = (pace * time) % 1
        here = centre + sway * math.sin(2 * math.pi * 0.2 * pace * time)
        height = 4 * drop * beat * (1 - beat)
        ball = sprites[int(roll * time * PHASES) % PHASES]
        return [(shadow, here, floor), (ball, here, floor - radius - height)]

    return paint


def draw_star(rng: Generator, stage: Stage) -> Painter:
    """A large five-pointed star with facets that spins."""
    radius = stage.unit * rng.uniform(0.14, 0.36)
    x, y = _grid(radius)
    away, angle = np.hypot(x, y), np.arctan2(y, x)
    inner = rng.uniform(0.4, 0.5) * radius
    tip = np.array([radius, 0.0])
    notch = inner * np.array([math.cos(math.pi / 5), math.sin(math.pi / 5)])
    edge = (notch - tip) / np.hypot(*(notch - tip))
    light, dark = _pick(rng, stage, 1)[0], 0.78
    sprites = []
    for phase in range(PHASES):
        turn = (angle + 2 * math.pi / 5 * (0.5 + phase / PHASES)) % (2 * math.pi / 5) - math.pi / 5
        u, v = away * np.cos(turn), np.abs(away * np.sin(turn))
        distance = edge[1] * (u - tip[0]) - edge[0] * (v - tip[1])
        facet = _step(-away * np.sin(turn))[..., None]
        sprites.append(_sprite(distance, light * (dark + (1 - dark) * facet)))
    (left, top), spin = stage.place(rng, 0.4), rng.choice([-1, 1]) * rng.uniform(1, 3)
    swing, pace = stage.unit * rng.uniform(0.02, 0.08), rng.uniform(0.2, 0.5)

    def paint(time: float) -> list[Stamp]:
        turn = 2 * math.pi * pace * time
        sprite = sprites[int(spin * time * PHASES) % PHASES]
        return [(sprite, left + swing * math.cos(turn), top + swing * math.sin(turn))]

    return paint


def draw_rain(rng: Generator, stage: Stage) -> Painter:
    """Many small squares that fall, the larger ones faster."""
    count = int(rng.integers(12, 34))
    colours = _pick(rng, stage, 3)
    sizes = stage.unit * rng.uniform(0.025, 0.04) * np.array([1.0, 1.35, 1.8])
    tilts = rng.uniform(0, math.pi / 2, 2)
    sprites = [[_square(s, t, c) for t in tilts for c in colours] for s in sizes]
    layer = np.sort(rng.integers(0, 3, count))
    looks = rng.integers(0, 6, count)
    x0, y0 = rng.uniform(0, 1, (2, count))
    speed = rng.uniform(0.35, 0.7) * (0.7 + 0.3 * layer)
    slant = rng.uniform(-0.15, 0.15)

    def paint(time: float) -> list[Stamp]:
        y = (y0 + speed * time) % 1
        x = (x0 + slant * y) % 1
        return [
            (sprites[layer[n]][looks[n]], x[n] * stage.width, (1.2 * y[n] - 0.1) * stage.height)
            for n in range(count)
        ]

    return paint


def draw_wheel(rng: Generator, stage: Stage) -> Painter:
    """A circle of discs that turns and breathes."""
    count = int(rng.integers(7, 12))
    radius = stage.unit * rng.uniform(0.16, 0.33)
    colours = _pick(rng, stage, 2)
    sizes = radius * rng.uniform(0.18, 0.26) * np.linspace(0.8, 1.2, 8)
    sprites = [[_disc(size, colour) for size in sizes] for colour in colours]
    left, top = stage.place(rng, 0.4)
    turn, pace = rng.choice([-1, 1]) * rng.uniform(0.6, 1.6), rng.uniform(0.4, 0.9)

    def paint(time: float) -> list[Stamp]:
        breath = math.sin(2 * math.pi * pace * time)
        angles = turn * time + 2 * math.pi * np.arange(count) / count
        reach, size = radius * (1 + 0.22 * breath), round(3.5 + 3.5 * breath)
        return [
            (sprites[n % 2][size], left + reach * math.cos(a), top + reach * math.sin(a))
            for n, a in enumerate(angles)
        ]

    return paint


PAINTERS: dict[str, Callable[[Generator, Stage], Painter]] = {
    "ball": draw_ball,
    "star": draw_star,
    "rain": draw_rain,
    "wheel": draw_wheel,
}


def _pick(rng: Generator, stage: Stage, count: int) -> Float[ndarray, "count 3"]:
    return rng.permutation(stage.colours)[:count]


def _grid(radius: float) -> tuple[Pixels, Pixels]:
    """Coordinates, from its centre, of the pixels of a sprite."""
    half = math.ceil(radius) + PAD
    y, x = np.mgrid[-half : half + 1, -half : half + 1].astype(float)
    return x, y


def _step(distance: Any) -> Any:
    """0 to 1 across one pixel."""
    return np.clip(distance + 0.5, 0, 1)


def _mix(first: Any, second: Any, share: Pixels) -> Float[ndarray, "H W 3"]:
    """One colour into another, pixel by pixel."""
    mixed: Float[ndarray, "H W 3"] = first + (second - first) * share[..., None]
    return mixed


def _disc(radius: float, colour: Float[ndarray, " 3"]) -> Image.Image:
    x, y = _grid(radius)
    return _sprite(np.hypot(x, y) - radius, np.broadcast_to(colour, (*x.shape, 3)))


def _square(half: float, tilt: float, colour: Float[ndarray, " 3"]) -> Image.Image:
    x, y = _grid(1.5 * half)
    u = np.abs(x * math.cos(tilt) + y * math.sin(tilt)) - 0.7 * half
    v = np.abs(y * math.cos(tilt) - x * math.sin(tilt)) - 0.7 * half
    distance = np.hypot(np.maximum(u, 0), np.maximum(v, 0)) + np.minimum(np.maximum(u, v), 0)
    return _sprite(distance - 0.3 * half, np.broadcast_to(colour, (*x.shape, 3)))


def _sprite(distance: Pixels, colour: Float[ndarray, "H W 3"]) -> Image.Image:
    """A shape given by the signed distance to its edge, with a soft shadow below it."""
    inside = _step(-distance)
    shadow = 0.3 * np.clip(1 - np.roll(distance, 2, axis=0) / (PAD - 2), 0, 1) ** 2
    alpha = inside + shadow * (1 - inside)
    return _rgba(colour * (inside / np.maximum(alpha, 1e-6))[..., None], alpha)


def _rgba(colour: Float[ndarray, "H W 3"], alpha: Pixels) -> Image.Image:
    pixels: UInt8[ndarray, "H W 4"] = np.dstack([colour, 255 * alpha]).round().astype(np.uint8)
    return Image.fromarray(pixels)


def _name(index: int) -> str:
    return f"{CLASSES[index % len(CLASSES)]}/{index // len(CLASSES):03d}.mp4"


def _tell(on_video: Callable[[], None] | None) -> None:
    if on_video is not None:
        on_video()


def _claim(folder: Path, marker: dict[str, Any]) -> None:
    """Mark an empty folder as this rendering's; refuse one that holds something else."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        occupied = any(folder.iterdir())
        if occupied and not (folder / MARKER).exists():
            raise RunError(
                f"{folder} holds something else than demo videos (no {MARKER}); give an empty folder"
            )
        if not occupied:
            write_json(folder / MARKER, marker | {"whole": False})
    except OSError as error:
        raise RunError(
            f"cannot write the demo's videos to {folder}: {error.strerror}; give another folder"
        ) from None
    found = read_json(folder / MARKER)
    if not isinstance(found, dict) or any(found.get(k) != value for k, value in marker.items()):
        raise RunError(
            f"{folder} holds another rendering (seed, number of videos or version differ); "
            "give another folder, or delete it"
        )


def _render_all(folder: Path, seed: int, missing: list[int], workers: int) -> Iterator[int]:
    """Render the missing videos, over processes when that pays."""
    render = partial(_render_file, folder, seed)
    if min(workers, len(missing) // 8) < 2:
        yield from map(render, missing)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        for done in as_completed([pool.submit(render, index) for index in missing]):
            yield done.result()


def _render_file(folder: Path, seed: int, index: int) -> int:
    write_atomic(folder / _name(index), render_video(seed, index))
    return index
