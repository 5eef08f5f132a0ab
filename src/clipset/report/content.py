"""ReportContent: everything that the page shows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from clipset.errors import ReportError
from clipset.evaluation.results import Comparison, LowShotCurve, ProbeResult
from clipset.report.records import Calibration
from clipset.report.wording import Number

JPEG_START = b"\xff\xd8\xff"


@dataclass(frozen=True, slots=True, kw_only=True)
class FactGroup:
    """Facts that belong together, such as the versions of the packages, as (name, value) rows."""

    name: str
    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a run and its time; `note` qualifies the time."""

    name: str
    seconds: Number
    note: str = ""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.seconds) and self.seconds >= 0):
            raise ReportError(f"the step {self.name!r} cannot have taken {self.seconds} seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class MapPoint:
    """The position of one video on the map."""

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
                f"the map position ({self.x}, {self.y}) of {self.video_id!r} is not finite"
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
    """A neighbour of the query and its cosine similarity."""

    strip: Strip
    score: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """A query video and its nearest neighbours, nearest first."""

    query: Strip
    hits: tuple[Hit, ...]

    def same_label(self, hit: Hit) -> bool | None:
        """Whether hit and query have the same label; None if one has no label."""
        if self.query.label is None or hit.strip.label is None:
            return None
        return self.query.label == hit.strip.label


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedVideo:
    """A video that could not be read, and the reason."""

    video_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedVideo:
    """A video that was used although it is damaged; unknown values are empty."""

    video_id: str
    replaced: str = ""
    in_file: str = ""
    duration: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Size of the data; None where it is unknown."""

    videos: int | None = None
    classes: int | None = None
    clips: int | None = None
    hours: Number | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportContent:
    """The whole page. Any part may be empty: the page then says why and what to do.

    `curves` maps a training metric to (epoch, value) pairs.
    """

    title: str
    subtitle: str = ""
    counts: Counts = field(default_factory=Counts)
    facts: Sequence[FactGroup] = ()
    steps: Sequence[Step] = ()
    results: Sequence[ProbeResult] = ()
    comparisons: Sequence[Comparison] = ()
    calibration: Sequence[Calibration] = ()
    low_shot: Sequence[LowShotCurve] = ()
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
