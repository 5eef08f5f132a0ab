"""ProbeRecord: one row of results.json, checked; and the rows that belong in one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from clipset.errors import ReportError
from clipset.report.wording import ERRORS, LARGEST, Real, Whole, row_name, row_order, spoken_name

SLACK = 1e-6  # what rounding may add to a fraction
LARGEST_COUNT = 2**53
Share = Annotated[float, Meta(ge=-SLACK, le=1 + SLACK)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Confusion:
    """How often each class (row) was taken for each class (column)."""

    classes: tuple[str, ...]
    counts: tuple[tuple[int | float, ...], ...]

    def __post_init__(self) -> None:
        sizes = {len(self.counts), *(len(row) for row in self.counts)}
        if sizes != {len(self.classes)}:
            raise ValueError(
                f"a confusion matrix of {len(self.classes)} classes has rows of {sorted(sizes)}"
            )
        if not all(0 <= count <= LARGEST_COUNT for row in self.counts for count in row):
            raise ValueError(f"a confusion matrix counts videos, from 0 to {LARGEST_COUNT}")

    def class_accuracy(self) -> dict[str, float | None]:
        """The share of each class that was recognised; None for a class without videos."""
        return {
            name: row[place] / sum(row) if sum(row) else None
            for place, (name, row) in enumerate(zip(self.classes, self.counts, strict=True))
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRecord:
    """What one probe scored on one kind of features."""

    features: str
    probe: str
    metric: str
    value: float
    interval: tuple[float, float] | None = None
    n: Whole | None = None
    seeds: Whole | tuple[int, ...] | None = None
    selected_on: str | None = None
    split: str | None = None
    chance_level: float | None = None
    per_class: dict[str, Share | None] | None = None
    confusion: Confusion | None = None
    seconds: Real | None = None
    num_candidates: Whole | None = None
    ssl_split: str | None = None
    task: str | None = None

    def __post_init__(self) -> None:
        low, high = self.interval or (self.value, self.value)
        most = LARGEST if self.is_error else 1 + SLACK
        if not (-SLACK <= low <= high <= most and -SLACK <= self.value <= most):
            raise ValueError(
                f"the {self.probe} probe on {self.features} features scored {self.value} with the "
                f"interval [{low}, {high}]; scores and intervals lie in [0, 1]"
            )
        if self.chance_level is not None and not -SLACK <= self.chance_level <= most:
            raise ValueError(f"guessing cannot score {self.chance_level}")

    @property
    def is_error(self) -> bool:
        """Whether less is better, on a scale of its own."""
        return self.metric in ERRORS

    @property
    def name(self) -> str:
        """The name of the row, as in the paper's tables."""
        return row_name(self.features, self.probe)

    @property
    def spoken(self) -> str:
        """The name of the row inside a sentence."""
        return spoken_name(self.features, self.probe)

    @property
    def is_scale(self) -> bool:
        """Whether the features are clipset's own, not the backbone's."""
        return self.features == "scale"

    @property
    def seed_count(self) -> int | None:
        """How many seeds the score is the mean of."""
        return len(self.seeds) if isinstance(self.seeds, tuple) else self.seeds

    def class_accuracy(self) -> dict[str, float | None]:
        """The accuracy on each class, as recorded or as the confusion matrix says."""
        if self.per_class:
            return self.per_class
        return self.confusion.class_accuracy() if self.confusion else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Records that can be compared: same metric, same split, in the paper's order."""

    metric: str
    split: str | None
    records: tuple[ProbeRecord, ...]

    def find(self, features: str, probe: str) -> ProbeRecord | None:
        """The first record of a probe, if there is one."""
        matches = (r for r in self.records if (r.features, r.probe) == (features, probe))
        return next(matches, None)

    @property
    def flagship(self) -> ProbeRecord | None:
        """The row that speaks for clipset: fixed by the paper's order, not chosen by its score."""
        scale = [record for record in self.records if record.is_scale]
        for probe in ("finetune", "linear", "knn"):
            if found := self.find("scale", probe):
                return found
        return scale[0] if scale else None

    @property
    def baseline(self) -> ProbeRecord | None:
        """The row to compare with: the linear probe on the backbone, else its strongest one."""
        return self.find("backbone", "linear") or self.strongest_backbone

    @property
    def strongest_backbone(self) -> ProbeRecord | None:
        """The best probe that never saw clipset's features."""
        rivals = [record for record in self.records if not record.is_scale]
        sign = -1 if self.is_error else 1
        return max(rivals, key=lambda record: sign * record.value, default=None)

    @property
    def is_error(self) -> bool:
        """Whether less is better, on a scale of its own."""
        return self.metric in ERRORS


def read_record(mapping: Mapping[str, Any]) -> ProbeRecord:
    """A checked record; keys that the page does not show are left alone."""
    try:
        return msgspec.convert(mapping, type=ProbeRecord)
    except msgspec.ValidationError as error:
        raise ReportError(f"a probe record does not fit: {error}; see results.json") from None


def group_records(records: Sequence[ProbeRecord]) -> list[Panel]:
    """The records as comparable panels, in the order of their first record."""
    groups: dict[tuple[str, str | None], list[ProbeRecord]] = {}
    for record in records:
        groups.setdefault((record.metric, record.split), []).append(record)
    return [
        Panel(
            metric=metric,
            split=split,
            records=tuple(sorted(rows, key=lambda row: row_order(row.features, row.probe))),
        )
        for (metric, split), rows in groups.items()
    ]
