"""What the command `clipset backbones` shows: all backbones, or how one of them does."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import UInt8
from torch import Generator, Tensor

from clipset.backbones.custom import list_entry_points
from clipset.backbones.registry import (
    BackboneEntry,
    BackboneSpec,
    list_backbones,
    load_backbone,
    where_to_get,
)
from clipset.backbones.runtime import Engine, open_engine

TIMED_SECONDS = 1.0  # how long the speed is measured, at least
MOST_CLIPS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class BackboneRow:
    """A line of the list; what only the network itself knows is None until it is made."""

    name: str
    dim: int | None = None
    frames: int | None = None
    stride: int | None = None
    size: int | None = None
    licence: str | None = None
    file: str | None = None
    source: str
    here: bool
    missing: str | None = None
    """what to do where the weights are not here"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackboneCheck:
    """How a backbone did on a clip: the statistics of its feature, and its speed."""

    spec: BackboneSpec
    engine: str
    device: str
    parameters: int
    """as far as torch sees them: none in a frozen script or a file of OpenVINO"""
    mean: float
    std: float
    min: float
    max: float
    norm: float
    zeros: float
    """share of the feature's numbers that are exactly 0"""
    repeatable: bool
    """the same clip gives the same feature, to the bit"""
    load_seconds: float
    clips_per_second: float


def list_rows() -> tuple[BackboneRow, ...]:
    """Every backbone of clipset, then those that installed packages offer."""
    offered = (
        BackboneRow(name=point.name, source=f"entry point {point.value}", here=True)
        for point in list_entry_points()
    )
    return (*(_row(entry) for entry in list_backbones()), *offered)


def check_backbone(
    name: str,
    *,
    frames: int | None = None,
    stride: int | None = None,
    size: int | None = None,
    device: str = "auto",
    engine: str = "auto",
    seed: int = 0,
) -> BackboneCheck:
    """Load a backbone, show it clips of moving colours, and describe what comes out."""
    began = time.perf_counter()
    spec, network = load_backbone(name, frames=frames, stride=stride, size=size)
    parameters = sum(parameter.numel() for parameter in network.parameters())
    opened = open_engine(spec, network, device=device, engine=engine)
    load_seconds = time.perf_counter() - began
    clip = draw_clips(spec, 1, torch.Generator().manual_seed(seed))
    [feature] = opened.features(clip)
    return BackboneCheck(
        spec=spec,
        engine=opened.name,
        device=opened.device,
        parameters=parameters,
        mean=float(feature.mean()),
        std=float(feature.std(correction=0)),
        min=float(feature.min()),
        max=float(feature.max()),
        norm=float(feature.norm()),
        zeros=float((feature == 0).float().mean()),
        repeatable=torch.equal(feature, opened.features(clip)[0]),
        load_seconds=load_seconds,
        clips_per_second=measure_speed(opened, clip),
    )


def draw_clips(
    spec: BackboneSpec, count: int, generator: Generator
) -> UInt8[Tensor, "{count} T 3 S S"]:
    """Clips of soft colours that change slowly, more like videos than plain noise is."""
    coarse = torch.rand(count, 3, 4, 6, 6, generator=generator)
    shape = (spec.frames, spec.size, spec.size)
    soft = F.interpolate(coarse, shape, mode="trilinear", align_corners=True)
    return (soft * 255).round().to(torch.uint8).transpose(1, 2).contiguous()


def measure_speed(engine: Engine, clip: UInt8[Tensor, "1 T 3 S S"]) -> float:
    """Clips a second: twice as many at a time until it takes long enough to be believed."""
    count = 1
    while True:
        clips = clip.expand(count, -1, -1, -1, -1)
        began = time.perf_counter()
        engine.features(clips)
        seconds = time.perf_counter() - began
        if seconds > TIMED_SECONDS or count >= MOST_CLIPS:
            return count / max(seconds, 1e-9)
        count *= 2


def _row(entry: BackboneEntry) -> BackboneRow:
    spec = entry.spec
    here = entry.find_weights() is not None
    return BackboneRow(
        name=spec.name,
        dim=spec.dim,
        frames=spec.frames,
        stride=spec.stride,
        size=spec.size,
        licence=spec.weights.licence,
        file=spec.weights.file,
        source=spec.weights.source,
        here=here,
        missing=None if here else f"{spec.weights.file}: {where_to_get(entry)}",
    )
