"""Settings of feature extraction."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Literal

from clipset.backbones.registry import DEFAULT
from clipset.clips.config import Sampling
from clipset.errors import ConfigError

DEFAULT_TIMEOUT = 300.0  # seconds that a video may take


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractConfig:
    """Settings of feature extraction."""

    backbone: str = DEFAULT
    """the frozen network; `clipset backbones` lists them"""
    frames: int | None = None
    """frames of a clip (the backbone's own number if not given; 0: fitted to the backbone)"""
    stride: int | None = None
    """distance of a clip's frames, counted at 30 a second (0: fitted to the videos' durations)"""
    size: int | None = None
    """height and width of a clip in pixels"""
    layers: str = ""
    """blocks whose pooled outputs are stored, such as 3,7,11 (from 0; empty: the last output)"""
    preset: str = "recommended"
    """named settings (recommended, paper, official) for all that is not set by hand"""
    sampling: Sampling = field(default_factory=Sampling)
    """which clips are cut from a video"""
    dtype: Literal["float16", "float32"] = "float16"
    """number type of stored features"""
    engine: Literal["auto", "torch", "openvino"] = "auto"
    """what runs the backbone; auto: OpenVINO on a CPU if installed, else torch"""
    workers: int | None = None
    """decoding processes (one per core, at most 8, if not given; 0: decode in the main process)"""
    timeout: float | None = None
    """seconds after which a video has failed (300 if not given); needs workers"""
    retry_failed: bool = False
    """process failed videos again"""
    seed: int = 0
    """seed of the random clips"""

    def __post_init__(self) -> None:
        if not self.backbone.strip():
            raise ConfigError("backbone must be a name; `clipset backbones` lists them")
        if not all(number.isdecimal() for number in _split(self.layers)):
            raise ConfigError(f"layers must be numbers such as 3,7,11, got {self.layers!r}")
        if self.workers is not None and self.workers < 0:
            raise ConfigError(f"workers must be at least 0, got {self.workers}")
        if self.timeout is not None and self.timeout <= 0:
            raise ConfigError(f"timeout must be more than 0 s, got {self.timeout:g}")
        if self.workers == 0 and self.timeout is not None:
            raise ConfigError(
                f"a timeout of {self.timeout:g} s needs worker processes: with 0 workers the main "
                "process decodes, which nothing can stop; give 1 worker or more, or no timeout"
            )

    @property
    def num_workers(self) -> int:
        """The number of decoding processes."""
        return min(os.cpu_count() or 1, 8) if self.workers is None else self.workers

    @property
    def timeout_seconds(self) -> float:
        """The seconds after which a video has failed."""
        return DEFAULT_TIMEOUT if self.timeout is None else self.timeout

    @property
    def layer_indices(self) -> tuple[int, ...]:
        """`layers` as numbers."""
        return tuple(int(number) for number in _split(self.layers))


def _split(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",") if item.strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportConfig:
    """How existing features are read."""

    clips: int | None = None
    """clips per video, evenly spread over those it has (all, if every video has as many)"""
    clip_seconds: float = 1.0
    """duration of a clip, where a file has no times"""
    key: str = "features"
    """name of the features in a file with several arrays"""
    dtype: Literal["float16", "float32"] = "float16"
    """number type of stored features"""

    def __post_init__(self) -> None:
        if self.clips is not None and self.clips < 1:
            raise ConfigError(f"clips must be at least 1, got {self.clips}")
        if not 0.0 < self.clip_seconds < float("inf"):
            raise ConfigError(f"clip_seconds must be more than 0, got {self.clip_seconds}")
