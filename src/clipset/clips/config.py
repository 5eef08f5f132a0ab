"""How clips are chosen."""

from __future__ import annotations

from dataclasses import dataclass

from clipset.errors import ClipError


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How clips are chosen; the same for every video of a store."""

    clips: int = 16
    """random clips of each video (2K in the paper)"""
    times: int = 5
    """regular clips: places in time, spread from the video's start to its end"""
    places: int = 3
    """regular clips: square crops along the longer side, at each time"""
    area: tuple[float, float] = (0.3, 1.0)
    """random clips: smallest and largest area of the crop, as a share of the largest square"""
    aspect: tuple[float, float] = (3 / 4, 4 / 3)
    """random clips: narrowest and widest shape of the crop"""
    flip: bool = True
    """random clips: mirror half of them; turn off where left and right mean something"""

    def __post_init__(self) -> None:
        for name in ("clips", "times", "places"):
            if getattr(self, name) < 1:
                raise ClipError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 < self.area[0] <= self.area[1] <= 1:
            raise ClipError(f"area must be two shares 0 < low <= high <= 1, got {self.area}")
        if not 0 < self.aspect[0] <= self.aspect[1]:
            raise ClipError(f"aspect must be two ratios 0 < low <= high, got {self.aspect}")
