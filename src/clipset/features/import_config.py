"""How features that already exist are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from clipset.errors import StoreError


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportConfig:
    """How features that already exist are read."""

    clips: int | None = None
    """clips of each video, evenly spread over those it has (all, if every video has as many)"""
    clip_seconds: float = 1.0
    """how long a clip lasts, where a file does not say when its clips are"""
    key: str = "features"
    """what the features are called in a file with several arrays"""
    dtype: Literal["float16", "float32"] = "float16"
    """how features are stored"""

    def __post_init__(self) -> None:
        if self.clips is not None and self.clips < 1:
            raise StoreError(f"clips must be at least 1, got {self.clips}")
        if not 0.0 < self.clip_seconds < float("inf"):
            raise StoreError(f"clip_seconds must be more than 0, got {self.clip_seconds}")
