"""What a backbone is, which ones there are, and how to load one by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from clipset.config import near_names
from clipset.errors import BackboneError

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Which weights a backbone carries and where they come from."""

    file: str
    sha256: str
    licence: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BackboneSpec:
    """All that a feature depends on besides the pixels.

    A backbone maps uint8 RGB clips (B, T, 3, S, S) to features (B, D); `mean` and `std` are in units of
    0..255 and are applied once, inside the engine.
    """

    name: str
    dim: int
    frames: int
    stride: int
    size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    pooling: str
    weights: Weights
    paper: str

    def __post_init__(self) -> None:
        for field in ("dim", "frames", "stride", "size"):
            if getattr(self, field) < 1:
                raise BackboneError(f"{self.name}: {field} must be at least 1, got {getattr(self, field)}")


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the registry: the spec, and the function that makes the network with its weights."""

    spec: BackboneSpec
    make: Callable[[], nn.Module]
