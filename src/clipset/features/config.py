"""How features are made."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from clipset.backbones.registry import DEFAULT
from clipset.clips.config import Sampling, preset


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractConfig:
    """How features are made."""

    backbone: str = DEFAULT
    """the frozen network; `clipset backbones` lists them"""
    frames: int | None = None
    """frames of a clip (the backbone's own number if not given)"""
    stride: int | None = None
    """distance of a clip's frames, counted at 30 frames a second"""
    size: int | None = None
    """height and width of a clip in pixels"""
    preset: Literal["recommended", "paper", "official"] = "recommended"
    """a named way of choosing clips; docs/paper.md describes each"""
    sampling: Sampling = field(default_factory=Sampling)
    """which clips are looked at; what is set here wins over the preset"""
    dtype: Literal["float16", "float32"] = "float16"
    """how features are stored"""
    engine: Literal["auto", "torch", "openvino"] = "auto"
    """what runs the backbone; auto takes OpenVINO on a CPU if it is installed"""
    workers: int | None = None
    """processes that decode (as many as cores, at most 8; 0: decode in the main process)"""
    timeout: float = 300.0
    """seconds after which a video counts as failed"""
    retry_failed: bool = False
    """try again what failed before"""

    def __post_init__(self) -> None:
        usual, chosen = Sampling(), {}
        for name in Sampling.__dataclass_fields__:
            if getattr(self.sampling, name) != getattr(usual, name):
                chosen[name] = getattr(self.sampling, name)
        object.__setattr__(self, "sampling", replace(preset(self.preset), **chosen))
