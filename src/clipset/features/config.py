"""How features are made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from clipset.backbones.registry import DEFAULT
from clipset.clips.config import Sampling
from clipset.errors import ConfigError

TIMEOUT = 300.0  # seconds that a video may take


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
    layers: str = ""
    """which blocks' pooled outputs are kept, such as 3,7,11 (the first is 0; empty: the usual)"""
    preset: str = "recommended"
    """named settings (recommended, paper, official) for all that is not set by hand"""
    sampling: Sampling = field(default_factory=Sampling)
    """which clips are cut from a video"""
    dtype: Literal["float16", "float32"] = "float16"
    """how features are stored"""
    engine: Literal["auto", "torch", "openvino"] = "auto"
    """what runs the backbone; auto takes OpenVINO on a CPU if it is installed"""
    workers: int | None = None
    """processes that decode (as many as cores, at most 8; 0: decode in the main process)"""
    timeout: float | None = None
    """seconds after which a video counts as failed (300 if not given); needs workers"""
    retry_failed: bool = False
    """try again what failed before"""

    def __post_init__(self) -> None:
        if not self.backbone.strip():
            raise ConfigError("backbone must be a name; `clipset backbones` lists them")
        if not all(number.isdecimal() for number in _items(self.layers)):
            raise ConfigError(f"layers must be numbers such as 3,7,11, got {self.layers!r}")
        if self.workers == 0 and self.timeout is not None:
            raise ConfigError(
                f"a timeout of {self.timeout:g} s needs worker processes: with 0 workers the main "
                "process decodes, which nothing can stop; give 1 worker or more, or no timeout"
            )

    @property
    def seconds_per_video(self) -> float:
        """After how many seconds a video counts as failed."""
        return TIMEOUT if self.timeout is None else self.timeout

    @property
    def layer_numbers(self) -> tuple[int, ...]:
        """The numbers in `layers`."""
        return tuple(int(number) for number in _items(self.layers))


def _items(listed: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in listed.split(",") if item.strip())
