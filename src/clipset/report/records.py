"""Results that belong into one table, and the calibration of a probe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from clipset.evaluation.calibration import ReliabilityBin, calibration_error, reliability
from clipset.evaluation.results import ERROR_METRICS, ProbeResult
from clipset.report.wording import row_order


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
    def main_result(self) -> ProbeResult | None:
        """The result of clipset for the headline: fixed by its kind, not selected by its score."""
        ours = [result for result in self.results if result.is_scale]
        for probe in ("finetune", "linear", "knn"):
            if result := self.find("scale", probe):
                return result
        return ours[0] if ours else None

    @property
    def baseline(self) -> ProbeResult | None:
        """The linear probe on the backbone, or its strongest probe."""
        return self.find("backbone", "linear") or self.strongest_backbone

    @property
    def strongest_backbone(self) -> ProbeResult | None:
        """The best probe on the backbone's features."""
        candidates = [result for result in self.results if not result.is_scale]
        sign = -1 if self.is_error else 1
        return max(candidates, key=lambda result: sign * result.value, default=None)

    def find(self, features: str, probe: str) -> ProbeResult | None:
        """The first result of a probe, if there is one."""
        matches = (r for r in self.results if (r.features, r.probe) == (features, probe))
        return next(matches, None)


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
        total = sum(bin.count for bin in self.bins)
        return sum(bin.count * (bin.confidence - bin.accuracy) for bin in self.bins) / total


def group_results(results: Sequence[ProbeResult]) -> list[Panel]:
    """The results as panels, in the order of their first result."""
    groups: dict[tuple[str, str | None], list[ProbeResult]] = {}
    for result in results:
        groups.setdefault((result.metric, result.split), []).append(result)
    return [
        Panel(
            metric=metric,
            split=split,
            results=tuple(sorted(group, key=lambda r: row_order(*r.key))),
        )
        for (metric, split), group in groups.items()
    ]


def measure_calibration(
    row: tuple[str, str], outputs: Float[np.ndarray, "S M C"], targets: Int[np.ndarray, " M"]
) -> Calibration:
    """The calibration of a row such as ("scale", "linear")."""
    confidence = outputs.max(axis=2).astype(np.float64).ravel()  # (S M,)
    correct = (outputs.argmax(axis=2) == targets).astype(np.float64).ravel()
    bins = reliability(np.clip(confidence, 0.0, 1.0), correct)
    return Calibration(features=row[0], probe=row[1], bins=tuple(bins))
