"""ReportContent: everything that the page shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from clipset.evaluation.calibration import ReliabilityBin, calibration_error
from clipset.evaluation.results import (
    ERROR_METRICS,
    Comparison,
    LowShotCurve,
    ProbeResult,
    RetrievalResult,
)
from clipset.evaluation.statistics import BASELINES
from clipset.features.ledger import LedgerEntry
from clipset.probes.config import ProbeKey
from clipset.report.wording import Number, format_percent, row_order

Facts = Mapping[str, Sequence[tuple[str, str]]]  # (name, value) rows by the title of their group
CALIBRATED_GAP = 0.02  # confidence and accuracy that differ by less are called equal


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a run and its time; `note` qualifies the time."""

    name: str
    seconds: Number
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Comparable results: same metric, same split, in the paper's order."""

    metric: str
    split: str | None
    results: tuple[ProbeResult, ...]

    @property
    def is_error(self) -> bool:
        """Whether less is better."""
        return self.metric in ERROR_METRICS

    @property
    def main_result(self) -> ProbeResult:
        """The result for the headline: fixed by its kind, not selected by its score.

        Without any result of clipset it is the strongest one on the backbone.
        """
        for probe in ("finetune", "linear", "knn"):
            if result := self.find("scale", probe):
                return result
        scale_results = (result for result in self.results if result.is_scale)
        return next(scale_results, None) or max(self.results, key=self.quality)

    @property
    def baseline(self) -> ProbeResult | None:
        """The probe that differs from the main one by pre-training alone, or the best without."""
        baseline_key = BASELINES.get(self.main_result.key, ProbeKey("backbone", "linear"))
        return (
            self.find(*baseline_key) or self.find("backbone", "linear") or self.strongest_backbone
        )

    @property
    def strongest_backbone(self) -> ProbeResult | None:
        """The best probe on the backbone's features."""
        backbone_results = [result for result in self.results if not result.is_scale]
        return max(backbone_results, key=self.quality, default=None)

    def quality(self, result: ProbeResult) -> float:
        """The score, negative if it is an error."""
        return -result.value if self.is_error else result.value

    def find(self, features: str, probe: str) -> ProbeResult | None:
        """The first result of a probe, if there is one."""
        return next((r for r in self.results if r.key == (features, probe)), None)


def group_results(results: Sequence[ProbeResult]) -> list[Panel]:
    """The results as panels, in the order of their first result."""
    result_groups: dict[tuple[str, str | None], list[ProbeResult]] = {}
    for result in results:
        result_groups.setdefault((result.metric, result.split), []).append(result)
    return [
        Panel(
            metric=metric,
            split=split,
            results=tuple(sorted(group, key=lambda result: row_order(result.key))),
        )
        for (metric, split), group in result_groups.items()
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Confidence and accuracy of a probe's predictions, over test videos and seeds."""

    features: str
    probe: str
    bins: tuple[ReliabilityBin, ...]

    @property
    def error(self) -> float:
        """Expected calibration error (ECE)."""
        return calibration_error(self.bins)

    @property
    def gap(self) -> float:
        """Mean confidence minus accuracy; below 0 if the probe is underconfident."""
        bin_gaps = (bin.count * (bin.confidence - bin.accuracy) for bin in self.bins)
        return sum(bin_gaps) / sum(bin.count for bin in self.bins)

    @property
    def verdict(self) -> str:
        """The gap in words."""
        if abs(self.gap) < CALIBRATED_GAP:
            return "well calibrated on average"
        direction = "over" if self.gap > 0 else "under"
        return f"{direction}confident by {format_percent(abs(self.gap))} points"


@dataclass(frozen=True, slots=True, kw_only=True)
class MapPoint:
    """The position of one video on the map, and a frame of it as a JPEG file."""

    video_id: str
    x: Number
    y: Number
    label: str | None = None
    target: Number | None = None
    split: str | None = None
    thumbnail: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """A few frames of one video, in order, as JPEG files; `similarity` is that to a query."""

    video_id: str
    frames: tuple[bytes, ...]
    label: str | None = None
    similarity: Number | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """A query video and its nearest neighbours by cosine similarity, nearest first."""

    query: Strip
    hits: tuple[Strip, ...]

    def same_label(self, hit: Strip) -> bool | None:
        """Whether hit and query have the same label; None if one has no label."""
        if self.query.label is None or hit.label is None:
            return None
        return self.query.label == hit.label


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

    `curves` maps a training metric to (epoch, value) pairs, `failed` the id of a video that could
    not be read to the reason. Videos in `damaged` were used although frames are missing. `note`
    says why there are no results, or not all.
    """

    title: str
    subtitle: str = ""
    counts: Counts = field(default_factory=Counts)
    facts: Facts = field(default_factory=dict)
    steps: Sequence[Step] = ()
    results: Sequence[ProbeResult] = ()
    note: str = ""
    comparisons: Sequence[Comparison] = ()
    calibration: Sequence[Calibration] = ()
    low_shot: Sequence[LowShotCurve] = ()
    retrieval: Sequence[RetrievalResult] = ()
    curves: Mapping[str, Sequence[tuple[Number, Number]]] = field(default_factory=dict)
    map_points: Sequence[MapPoint] = ()
    neighbours: Sequence[Neighbours] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    damaged: Sequence[LedgerEntry] = ()

    @property
    def has_labels(self) -> bool:
        """Whether videos have a label or a target."""
        return bool(self.counts.classes) or any(p.target is not None for p in self.map_points)
