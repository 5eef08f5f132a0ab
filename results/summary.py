"""The summary of a study: scores of each variant and probe, and paired differences.

A score is the mean over the test videos of all folds and over all trainings. Its 95 % interval
covers videos (whole groups, where the catalog has them) and trainings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from tables import difference_text, label_text, machine_name, score, table
from units import Unit

from clipset.config import to_mapping
from clipset.evaluation.results import read_predictions
from clipset.evaluation.statistics import compare_values, interval, list_pairs
from clipset.files import write_atomic, write_json
from clipset.probes.config import ProbeKey
from clipset.report.wording import format_duration, plural, row_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """The trainings of a variant; steps and seconds of one, as a mean over folds."""

    variant: str
    num_trainings: int
    num_folds: int
    steps: float
    seconds: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantProbe:
    """A probe over all folds and trainings of a variant, and the interval of its value."""

    variant: str
    features: str
    probe: str
    metric: str
    interval: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Score(VariantProbe):
    """The score of a probe."""

    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference(VariantProbe):
    """The paired difference of two probes of one variant, or of one probe of two variants."""

    baseline_variant: str
    baseline_features: str
    baseline_probe: str
    difference: float
    p: float

    @property
    def name(self) -> str:
        """`paper: SCALE linear − Linear`, or `paper − official: SCALE linear`."""
        probe = row_name(self.features, self.probe)
        if self.variant != self.baseline_variant:
            return f"{self.variant} − {self.baseline_variant}: {probe}"
        return f"{self.variant}: {probe} − {row_name(self.baseline_features, self.baseline_probe)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """The results on one dataset with one backbone and one fraction of the labels."""

    dataset: str
    backbone: str
    label_fraction: float
    num_videos: int
    num_groups: int
    """0: videos are independent"""
    trainings: list[Training]
    scores: list[Score]
    differences: list[Difference]


@dataclass(frozen=True, slots=True)
class VideoScores:
    """The scores of a variant for each probe, training and test video of all folds."""

    variant: str
    ids: tuple[str, ...]
    groups: tuple[str | None, ...]
    folds: tuple[str, ...]
    metric: str
    values: dict[ProbeKey, Float[np.ndarray, "S M"]]

    def summarise(self, key: ProbeKey) -> Score:
        """The mean of a probe and its interval."""
        return Score(
            variant=self.variant,
            features=key.features,
            probe=key.probe,
            metric=self.metric,
            value=float(self.values[key].mean()),
            interval=interval(self.values[key], self.groups, self.folds),
        )

    def compare(self, key: ProbeKey, other: VideoScores, baseline: ProbeKey) -> Difference:
        """The paired difference of a probe to another one."""
        assert self.ids == other.ids  # all variants have the same folds
        values = self.values[key], other.values[baseline]
        test = compare_values(*values, self.groups, self.folds)
        return Difference(
            variant=self.variant,
            features=key.features,
            probe=key.probe,
            baseline_variant=other.variant,
            baseline_features=baseline.features,
            baseline_probe=baseline.probe,
            metric=self.metric,
            difference=test.difference,
            interval=test.interval,
            p=test.p,
        )


def write_summary(units: Sequence[Unit], name: str, out: Path) -> str:
    """Write `summary.json` and `summary.md` of the finished units; returns the text."""
    by_column: dict[tuple[str, str, float], list[Unit]] = {}
    for unit in units:
        for fraction in unit.label_fractions:
            by_column.setdefault((unit.dataset, unit.backbone, fraction), []).append(unit)
    every = [summarise(own, fraction) for (_, _, fraction), own in by_column.items()]
    columns = [column for column in every if column]
    records = [record for unit in units if (record := unit.read())]
    origin: dict[str, Any] = {
        "study": name,
        "units": len(units),
        "finished": sum(not unit.pending_fractions for unit in units),
        "budget": to_mapping(units[0].budget),
        "commits": sorted({record["environment"].get("commit", "?") for record in records}),
        "dates": sorted({record["date"][:10] for record in records}),
        "machines": sorted({machine_name(record["environment"]) for record in records}),
    }
    write_json(out / "summary.json", origin | {"columns": to_mapping(columns)})
    text = render(origin, columns)
    write_atomic(out / "summary.md", text.encode())
    return text


def summarise(units: Sequence[Unit], label_fraction: float) -> Column | None:
    """One column of variants with at least one training in every fold; None without any."""
    complete = {
        name: finished
        for name in dict.fromkeys(unit.variant for unit in units)
        if (finished := complete_units([u for u in units if u.variant == name], label_fraction))
    }
    if not complete:
        return None
    variants = [read_scores(own, label_fraction) for own in complete.values()]
    return Column(
        dataset=units[0].dataset,
        backbone=units[0].backbone,
        label_fraction=label_fraction,
        num_videos=len(variants[0].ids),
        num_groups=len(set(variants[0].groups) - {None}),
        trainings=[describe_trainings(own) for own in complete.values()],
        scores=[variant.summarise(key) for variant in variants for key in variant.values],
        differences=[
            *(
                variant.compare(key, variant, baseline)
                for variant in variants
                for key, baseline in list_pairs(list(variant.values))
            ),
            *(
                variant.compare(key, other, key)
                for other, variant in combinations(variants, 2)
                for key in variant.values
                if key.features == "scale" and key in other.values
            ),
        ],
    )


def complete_units(units: Sequence[Unit], label_fraction: float) -> list[Unit]:
    """The finished units of the seeds that all folds have."""
    finished = [unit for unit in units if label_fraction not in unit.pending_fractions]
    num_folds, seeds = len({unit.fold for unit in units}), [unit.seed for unit in finished]
    return [unit for unit in finished if seeds.count(unit.seed) == num_folds]


def read_scores(units: Sequence[Unit], label_fraction: float) -> VideoScores:
    """The scores of one variant, with all folds side by side; means over seeds of the probes."""
    trainings = [
        [
            read_predictions(unit.scores_folder(label_fraction) / "predictions.safetensors")
            for unit in sorted(units, key=lambda unit: unit.fold)
            if unit.seed == seed
        ]
        for seed in sorted({unit.seed for unit in units})
    ]
    ids = tuple(id for fold in trainings[0] for id in fold.ids)
    names = sorted({unit.fold for unit in units})
    return VideoScores(
        variant=units[0].variant,
        ids=ids,
        groups=tuple(group for fold in trainings[0] for group in fold.groups),
        folds=tuple(name for name, fold in zip(names, trainings[0], strict=True) for _ in fold.ids),
        metric=trainings[0][0].metric,
        values={
            key: np.stack(
                [np.concatenate([f.values(key).mean(axis=0) for f in folds]) for folds in trainings]
            )
            for key in trainings[0][0].outputs
        },
    )


def describe_trainings(units: Sequence[Unit]) -> Training:
    """What the trainings of a variant cost."""
    records = [unit.read() for unit in units]
    return Training(
        variant=units[0].variant,
        num_trainings=len({unit.seed for unit in units}),
        num_folds=len({unit.fold for unit in units}),
        steps=float(np.mean([record["steps"] for record in records])),
        seconds={
            name: float(np.mean([record["seconds"].get(name, 0.0) for record in records]))
            for name in records[0]["seconds"]
        },
    )


def render(origin: dict[str, Any], columns: Sequence[Column]) -> str:
    """The summary as text with tables."""
    budget = [f"{value:g} {name}" for name, value in origin["budget"].items() if value is not None]
    facts = [
        f"{origin['finished']} of {origin['units']} units",
        f"each variant trained for {budget[0] if budget else 'its own epochs'}",
        f"commit {', '.join(origin['commits'])}",
        ", ".join(origin["dates"]),
        *origin["machines"],
    ]
    lines = [f"# {origin['study']}", "", "; ".join(facts), ""]
    for column in columns:
        lines += render_column(column)
    return "\n".join(lines).rstrip() + "\n"


def render_column(column: Column) -> list[str]:
    """Scores, costs and differences."""
    labels = label_text(None if column.label_fraction == 1 else column.label_fraction)
    units = f"{column.num_groups} whole groups" if column.num_groups else "videos"
    probes = list(dict.fromkeys((each.features, each.probe) for each in column.scores))
    scores = {(each.variant, each.features, each.probe): to_mapping(each) for each in column.scores}
    return [
        f"## {column.dataset}, {column.backbone}, {labels}",
        "",
        f"{plural(column.num_videos, 'video')}, each tested once; intervals over {units} and "
        f"trainings.",
        "",
        *table(
            ["", *(row_name(*probe) for probe in probes)],
            [
                [each.variant, *(score(scores.get((each.variant, *probe))) for probe in probes)]
                for each in column.trainings
            ],
        ),
        *table(
            ["", "trainings", "steps", "pre-training", "with evaluation"],
            [
                [
                    each.variant,
                    f"{each.num_trainings} × {plural(each.num_folds, 'fold')}",
                    f"{each.steps:.0f}",
                    format_duration(each.seconds["pretrain"]),
                    format_duration(sum(each.seconds.values())),
                ]
                for each in column.trainings
            ],
        ),
        *table(
            ["paired difference", ""],
            [[each.name, difference_text(to_mapping(each))] for each in column.differences],
        ),
    ]
