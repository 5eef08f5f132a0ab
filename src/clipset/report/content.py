"""ReportContent: everything that the page shows, gathered before it is drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from clipset.errors import ReportError
from clipset.report.trust import Calibration
from clipset.report.wording import Number

JPEG_START = b"\xff\xd8\xff"


@dataclass(frozen=True, slots=True, kw_only=True)
class FactGroup:
    """Facts that belong together, such as the versions of the packages, as (name, value) rows."""

    name: str
    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of the walk and how long it took; `note` says what the time does not."""

    name: str
    seconds: Number
    note: str = ""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.seconds) and self.seconds >= 0):
            raise ReportError(f"the step {self.name!r} cannot have taken {self.seconds} seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class MapPoint:
    """Where one video lies on the map."""

    video_id: str
    x: Number
    y: Number
    label: str | None = None
    target: Number | None = None
    split: str | None = None
    thumbnail: bytes | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.x) and math.isfinite(self.y)):
            raise ReportError(
                f"{self.video_id!r} has no place on the map: ({self.x}, {self.y}) is not finite"
            )
        if self.thumbnail is not None:
            _require_jpeg(self.thumbnail, self.video_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """A few frames of one video, in order, as JPEG files."""

    video_id: str
    frames: tuple[bytes, ...]
    label: str | None = None

    def __post_init__(self) -> None:
        for frame in self.frames:
            _require_jpeg(frame, self.video_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A video that was found to be near, and how near (1 is the same direction)."""

    strip: Strip
    score: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """One video and the videos nearest to it, nearest first."""

    query: Strip
    hits: tuple[Hit, ...]

    def same_label(self, hit: Hit) -> bool | None:
        """Whether the hit shares the query's label; None if one of them has no label."""
        if self.query.label is None or hit.strip.label is None:
            return None
        return self.query.label == hit.strip.label


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedVideo:
    """A video that could not be read, and why."""

    video_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedVideo:
    """A video that was used although something of it is missing; what is not known stays empty."""

    video_id: str
    replaced: str = ""
    in_file: str = ""
    duration: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How much there was to learn from; None where it is not known."""

    videos: int | None = None
    classes: int | None = None
    clips: int | None = None
    hours: Number | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportContent:
    """The whole page. Any part may be empty: the page then says why and what to do.

    `records` are the probe records of results.json, `comparisons` those of comparisons.json,
    `low_shot` those of low_shot.json; `curves` maps a metric to (epoch, value) pairs.
    """

    title: str
    subtitle: str = ""
    counts: Counts = field(default_factory=Counts)
    facts: Sequence[FactGroup] = ()
    steps: Sequence[Step] = ()
    records: Sequence[Mapping[str, Any]] = ()
    comparisons: Sequence[Mapping[str, Any]] = ()
    calibration: Sequence[Calibration] = ()
    low_shot: Sequence[Mapping[str, Any]] = ()
    curves: Mapping[str, Sequence[tuple[Number, Number]]] = field(default_factory=dict)
    map_points: Sequence[MapPoint] = ()
    neighbours: Sequence[Neighbours] = ()
    failed: Sequence[FailedVideo] = ()
    damaged: Sequence[DamagedVideo] = ()


def _require_jpeg(image: bytes, video_id: str) -> None:
    if not image.startswith(JPEG_START):
        raise ReportError(
            f"an image of {video_id!r} starts with {image[:4]!r} and is not JPEG; save it as JPEG"
        )
