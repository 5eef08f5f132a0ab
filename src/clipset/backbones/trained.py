"""Backbone files: the weights of a video transformer that clipset trained, which describe it.

One safetensors file. Its header holds the shape of the network, its clips and its training as
JSON, so it is loaded without running any code.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from clipset.backbones.checkpoints import (
    CheckpointLayout,
    check_file,
    check_finite,
    load_checkpoint,
)
from clipset.backbones.registry import BackboneSpec, check_patches
from clipset.config import build, parse_json, to_mapping
from clipset.errors import BackboneError, ConfigError
from clipset.files import write_atomic
from clipset.networks.video_transformers import VideoMAE, VideoMAEConfig

SUFFIX = ".safetensors"
FORMAT = 1
HEADER_KEY = "clipset_backbone"
MAX_SIZES = {"embed_dim": 2**14, "depth": 2**10, "mlp_dim": 2**16, "frames": 2**14, "size": 2**14}


@dataclass(frozen=True, slots=True, kw_only=True)
class BackboneHeader:
    """The header of a backbone file."""

    network: VideoMAEConfig
    spec: BackboneSpec
    training: dict[str, Any] = field(default_factory=dict)
    """method, data, videos, steps, minutes, seed and settings"""
    format: int = FORMAT


def write_backbone(path: Path, network: VideoMAE, header: BackboneHeader) -> None:
    """Write a network and its description, whole or not at all."""
    tensors: dict[str, Tensor] = {
        name: tensor.detach().cpu().contiguous() for name, tensor in network.state_dict().items()
    }
    check_finite(tensors, path)
    text = msgspec.json.encode(to_mapping(header)).decode()
    # one entry: of several, the order is random, and equal trainings should give equal bytes
    write_atomic(path, save(tensors, metadata={HEADER_KEY: text}))


def read_header(path: Path) -> BackboneHeader:
    """The description of the network in a file."""
    if not path.is_file():
        raise BackboneError(f"backbone file {path} not found")
    check_file(path)
    try:
        with safe_open(path, "np") as file:
            text = (file.metadata() or {}).get(HEADER_KEY)
    except SafetensorError as error:
        raise BackboneError(f"{path} is not a safetensors file: {error}") from None
    if text is None:
        raise BackboneError(
            f"{path} does not say which network it belongs to; `clipset pretrain-backbone` writes "
            "files that do. Load other weights in a file: --backbone file.py:make"
        )
    try:
        content = parse_json(text, str(path))
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise BackboneError(f"{path} is not of format {FORMAT}; another clipset wrote it")
        header = build(BackboneHeader, content, str(path))
    except ConfigError as error:
        raise BackboneError(str(error)) from None
    check_shape(header.network, str(path))
    return header


def check_shape(config: VideoMAEConfig, source: str) -> None:
    """Refuse a network that cannot be built."""
    for name in config.__dataclass_fields__:
        value, limit = getattr(config, name), MAX_SIZES.get(name, 2**12)
        if name not in ("norm", "norm_eps") and not 1 <= value <= limit:
            raise BackboneError(f"{source}: {name} must be 1 to {limit}, got {value}")
    if config.embed_dim % config.num_heads:
        raise BackboneError(
            f"{source}: embed_dim {config.embed_dim} is no multiple of {config.num_heads} heads"
        )
    check_patches(source, config.frames, config.size, config)


def load_trained(
    path: Path, *, frames: int | None = None, size: int | None = None
) -> tuple[BackboneSpec, VideoMAE]:
    """The spec and the network of a file, for clips of another shape if one is given."""
    header = read_header(path)
    spec, config = header.spec, header.network
    check_patches(str(path), frames or spec.frames, size or spec.size, config)
    spec = replace(spec, weights=replace(spec.weights, file=path.name))  # it may have been renamed
    return spec, load_checkpoint(lambda: VideoMAE(config), CheckpointLayout(), path)
