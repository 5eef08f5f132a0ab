"""The verb `clipset backbones`: a list of all backbones, or a check of one of them."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import UInt8
from torch import Generator, Tensor

from clipset.backbones.custom import list_entry_points
from clipset.backbones.registry import BackboneSpec, list_backbones, load_backbone
from clipset.backbones.runtime import Engine, open_engine

TIMED_SECONDS = 1.0  # shortest measurement of the speed
MAX_CLIPS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class BackboneRow:
    """A row of the list; facts that only the loaded network has are None."""

    name: str
    dim: int | None = None
    frames: int | None = None
    stride: int | None = None
    size: int | None = None
    licence: str | None = None
    file: str | None = None
    source: str
    available: bool
    how_to_get: str | None = None
    """what to do if the weights are missing"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackboneCheck:
    """The feature of a clip in statistics, and the speed."""

    spec: BackboneSpec
    engine: str
    device: str
    parameters: int
    """as far as torch knows them: none in a frozen script or a file of OpenVINO"""
    mean: float
    std: float
    min: float
    max: float
    norm: float
    zeros: float
    """fraction of the feature's numbers that are exactly 0"""
    repeatable: bool
    """the same clip gives the same feature, to the bit"""
    load_seconds: float
    clips_per_second: float


def backbone_rows() -> list[BackboneRow]:
    """Every registered backbone, then those of installed packages."""
    rows = []
    for entry in list_backbones():
        spec, available = entry.spec, entry.find_weights() is not None
        row = BackboneRow(
            name=spec.name,
            dim=spec.dim,
            frames=spec.frames,
            stride=spec.stride,
            size=spec.size,
            licence=spec.weights.licence,
            file=spec.weights.file,
            source=spec.weights.source,
            available=available,
            how_to_get=None if available else entry.how_to_get_weights(),
        )
        rows.append(row)
    for name, point in list_entry_points().items():
        rows.append(BackboneRow(name=name, source=f"entry point {point.value}", available=True))
    return rows


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
    """Load a backbone, encode a clip of moving colours, and describe its feature."""
    start_time = time.perf_counter()
    spec, network = load_backbone(name, frames=frames, stride=stride, size=size)
    parameters = sum(parameter.numel() for parameter in network.parameters())
    opened = open_engine(spec, network, device=device, engine=engine)
    load_seconds = time.perf_counter() - start_time
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
    spec: BackboneSpec, num_clips: int, generator: Generator
) -> UInt8[Tensor, "{num_clips} T 3 S S"]:
    """Clips of soft colours that change slowly, more like videos than plain noise is."""
    coarse_colours = torch.rand(num_clips, 3, 4, 6, 6, generator=generator)
    shape = (spec.frames, spec.size, spec.size)
    soft_colours = F.interpolate(coarse_colours, shape, mode="trilinear", align_corners=True)
    return (soft_colours * 255).round().to(torch.uint8).transpose(1, 2).contiguous()


def measure_speed(engine: Engine, clip: UInt8[Tensor, "1 T 3 S S"]) -> float:
    """Clips per second: the batch is doubled until it takes long enough to be measured."""
    num_clips = 1
    while True:
        clips = clip.expand(num_clips, -1, -1, -1, -1)
        start_time = time.perf_counter()
        engine.features(clips)
        seconds = time.perf_counter() - start_time
        if seconds > TIMED_SECONDS or num_clips >= MAX_CLIPS:
            return num_clips / max(seconds, 1e-9)
        num_clips *= 2
