"""What says how far scores can be trusted: paired differences, calibration, fewer labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from jaxtyping import Float, Int
from msgspec import Meta

from clipset.config import read_json
from clipset.errors import ProbeError, ReportError
from clipset.evaluation.calibration import Bin, calibration_error, reliability
from clipset.evaluation.results import read_predictions
from clipset.report.records import Share
from clipset.report.wording import Probability, Real, Whole, row_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """How often a probe was right when it was so sure, over test videos and seeds."""

    features: str
    probe: str
    bins: tuple[Bin, ...]

    @property
    def name(self) -> str:
        """The name of the row."""
        return row_name(self.features, self.probe)

    @property
    def error(self) -> float:
        """How far confidence and accuracy are apart, on average (ECE)."""
        return calibration_error(self.bins)

    @property
    def gap(self) -> float:
        """How much surer the probe was than it was right; below 0 if it was too careful."""
        total = sum(each.count for each in self.bins)
        return sum(each.count * (each.confidence - each.right) for each in self.bins) / total


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How much better one row is than another on the same test videos."""

    features: str
    probe: str
    baseline_features: str
    baseline_probe: str
    metric: str
    difference: Real
    interval: tuple[Real, Real]
    n: Whole | None = None
    p: Probability | None = None

    def __post_init__(self) -> None:
        if self.interval[0] > self.interval[1]:
            raise ValueError(f"the interval {list(self.interval)} ends before it begins")

    @property
    def name(self) -> str:
        """The name of the row."""
        return row_name(self.features, self.probe)

    @property
    def against(self) -> str:
        """The name of the row that it is compared with."""
        return row_name(self.baseline_features, self.baseline_probe)

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves out no difference at all."""
        return self.interval[0] > 0 or self.interval[1] < 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LowShotPoint:
    """The score of a row with a share of the training labels."""

    fraction: Annotated[float, Meta(gt=0, le=1)]
    videos: Whole
    value: Share
    interval: tuple[Share, Share] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LowShotRow:
    """The scores of one row with more and more labels."""

    features: str
    probe: str
    metric: str
    points: tuple[LowShotPoint, ...]

    @property
    def name(self) -> str:
        """The name of the row."""
        return row_name(self.features, self.probe)


def read_calibration(path: Path) -> list[Calibration]:
    """From the predictions of a run, if it kept them; empty where numbers were predicted."""
    if not path.is_file():
        return []
    try:
        found = read_predictions(path)
    except ProbeError as error:
        raise ReportError(str(error)) from None
    if not found.classes:
        return []
    return [calibrate(row, outputs, found.truth) for row, outputs in found.outputs.items()]


def calibrate(
    row: tuple[str, str], outputs: Float[np.ndarray, "S M C"], truth: Int[np.ndarray, " M"]
) -> Calibration:
    """The reliability of a row such as ("scale", "linear")."""
    confidence = outputs.max(axis=2).astype(np.float64).ravel()  # (S M,)
    right = (outputs.argmax(axis=2) == truth).astype(np.float64).ravel()
    bins = reliability(np.clip(confidence, 0.0, 1.0), right)
    return Calibration(features=row[0], probe=row[1], bins=tuple(bins))


def read_differences(records: Sequence[Mapping[str, Any]]) -> list[Difference]:
    """The paired differences of comparisons.json, checked."""
    return [_convert(record, Difference, "comparisons.json") for record in records]


def read_low_shot(records: Sequence[Mapping[str, Any]]) -> list[LowShotRow]:
    """The curves of low_shot.json, checked."""
    return [_convert(record, LowShotRow, "low_shot.json") for record in records]


def read_list(path: Path) -> list[Mapping[str, Any]]:
    """The records in a file of a run; none if it is not there."""
    content = read_json(path) if path.is_file() else []
    if not isinstance(content, list) or not all(isinstance(each, dict) for each in content):
        raise ReportError(f"{path} is not a list of records")
    return content


def _convert(record: Mapping[str, Any], kind: Any, where: str) -> Any:
    try:
        return msgspec.convert(record, type=kind)
    except msgspec.ValidationError as error:
        raise ReportError(f"a record of {where} does not fit: {error}") from None
