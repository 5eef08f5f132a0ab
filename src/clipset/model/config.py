"""The shape of the model."""

from __future__ import annotations

from dataclasses import dataclass

from clipset.errors import ModelError


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The shape of the model; the paper's base setting, with lean heads."""

    width: int = 256
    """hidden width of the transformer"""
    layers: int = 2
    """transformer layers"""
    head_channels: int = 32
    """channels of one attention head"""
    expansion: int = 2
    """how many times wider the layers' MLPs are"""
    dropout: float = 0.1
    """dropout in attention and MLPs"""
    head_width: int = 512
    """hidden width of the three-layer projection heads"""
    projected: int = 128
    """width of the space in which clips and sets are compared"""
    temperature: float = 0.2
    """temperature of the contrast"""
    box_numbers: int = 6
    """numbers that say where a clip is (start and end in x, y and t)"""

    def __post_init__(self) -> None:
        for name in ("width", "layers", "head_channels", "expansion", "head_width", "projected"):
            if getattr(self, name) < 1:
                raise ModelError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.width % self.head_channels:
            raise ModelError(f"width {self.width} must be a multiple of {self.head_channels}")
        if not 0 <= self.dropout < 1:
            raise ModelError(f"dropout must be at least 0 and less than 1, got {self.dropout}")
        if self.temperature <= 0:
            raise ModelError(f"temperature must be more than 0, got {self.temperature}")
