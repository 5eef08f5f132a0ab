"""The summary of a study: scores of each variant and probe, and paired differences.

A score is the mean over the test videos of all folds and over all trainings. Its 95 % interval
covers videos (whole groups, where the catalog has them), and trainings where each fold has several,
or where there are five folds or more. Two folds with one training each say nothing of others.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from units import Unit

from clipset.config import to_mapping
from clipset.evaluation.results import ERROR_METRICS, read_predictions
from clipset.evaluation.statistics import compare_values, interval, list_pairs
from clipset.files import write_atomic, write_json
from clipset.probes.config import ProbeKey
from clipset.report.wording import (
    format_duration,
    format_interval,
    format_score,
    row_name,
)
from clipset.text import counted

VECTOR, PAPER_KNN = ProbeKey("scale", "course_knn"), ProbeKey("backbone", "knn")


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

    @property
    def text(self) -> str:
        """With its interval."""
        value = format_score(self.metric, self.value)
        return f"{value} {format_interval(self.metric, self.interval)}"


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
        """`SCALE linear − Linear`, or `paper − official`."""
        if self.variant != self.baseline_variant:
            return f"{self.variant} − {self.baseline_variant}"
        baseline = row_name(self.baseline_features, self.baseline_probe)
        return f"{row_name(self.features, self.probe)} − {baseline}"

    @property
    def text(self) -> str:
        """With its interval and p; accuracies in points."""
        scale, form = (1, "+.3g") if self.metric in ERROR_METRICS else (100, "+.1f")
        low, high = (format(scale * bound, form) for bound in self.interval)
        p = "p < 0.001" if self.p < 0.001 else f"p = {self.p:.3f}"
        text = f"{format(scale * self.difference, form)} ({low} to {high}), {p}"
        return text.replace("-", "−")


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
        "machines": sorted({_machine(record["environment"]) for record in records}),
    }
    write_json(out / "summary.json", origin | {"columns": to_mapping(columns)})
    text = render(origin, columns)
    write_atomic(out / "summary.md", text.encode())
    return text


def _machine(environment: Mapping[str, str]) -> str:
    return f"{environment.get('cores', '?')} cores, {environment.get('processor', '?')}"


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
                for key, baseline in compared_pairs(list(variant.values))
            ),
            *(
                variant.compare(key, other, key)
                for other, variant in combinations(variants, 2)
                for key in variant.values
                if key.features == "scale" and key in other.values
            ),
        ],
    )


def compared_pairs(keys: Sequence[ProbeKey]) -> list[tuple[ProbeKey, ProbeKey]]:
    """Those of a run's report; and the vector of search and `embed` against the paper's k-NN."""
    pairs = list_pairs(list(keys))
    if VECTOR in keys and PAPER_KNN in keys:
        pairs.append((VECTOR, PAPER_KNN))
    return pairs


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
    """The summary as text with tables: the datasets, or the variants on a dataset, side by side."""
    budget = [f"{value:g} {name}" for name, value in origin["budget"].items() if value is not None]
    facts = [
        f"{origin['finished']} of {origin['units']} trainings finished",
        f"each trained for {budget[0] if budget else 'the steps of its settings'}",
        f"commit {', '.join(origin['commits'])}",
        ", ".join(origin["dates"]),
        *origin["machines"],
    ]
    lines = [f"# {origin['study']}", "", textwrap.fill("; ".join(facts) + ".", 118), ""]
    if all(len(column.trainings) == 1 for column in columns):
        lines += render_tables([(describe_column(column), column, None) for column in columns])
    else:
        for column in columns:
            variants = [training.variant for training in column.trainings]
            lines += [f"## {describe_column(column)}", ""]
            lines += render_tables([(variant, column, variant) for variant in variants])
    return "\n".join(lines).rstrip() + "\n"


def describe_column(column: Column) -> str:
    """Dataset, backbone and labels."""
    parts = [column.dataset] + ([column.backbone] if column.backbone != "default" else [])
    if column.label_fraction < 1:
        parts.append(f"{100 * column.label_fraction:g} % of the labels")
    return ", ".join(parts)


def render_tables(titled: Sequence[tuple[str, Column, str | None]]) -> list[str]:
    """Scores, differences and costs; a column for each title, dataset and variant (None: all)."""
    titles = [title for title, _, _ in titled]
    scores: dict[str, dict[str, str]] = {}
    differences: dict[str, dict[str, str]] = {}
    costs: dict[str, dict[str, str]] = {}
    for title, column, variant in titled:
        for score in column.scores:
            if variant in (None, score.variant):
                scores.setdefault(row_name(score.features, score.probe), {})[title] = score.text
        for difference in column.differences:
            same_variant = difference.variant == difference.baseline_variant
            if same_variant and variant in (None, difference.variant):
                differences.setdefault(difference.name, {})[title] = difference.text
        for training in column.trainings:
            if variant in (None, training.variant):
                for name, text in describe_cost(training, column).items():
                    costs.setdefault(name, {})[title] = text
    lines = table("probe", titles, scores) + table("paired difference", titles, differences)
    lines += table("cost of one training", titles, costs)
    between: dict[str, dict[str, str]] = {}
    for _, column, _ in titled:
        for difference in column.differences:
            if differ_by_one_word(difference.variant, difference.baseline_variant):
                probe = row_name(difference.features, difference.probe)
                between.setdefault(difference.name, {})[probe] = difference.text
    if between:
        probes = list(dict.fromkeys(probe for cells in between.values() for probe in cells))
        lines += table("between trainings", probes, between)
    return lines


def differ_by_one_word(name: str, other: str) -> bool:
    """Whether two variants differ by one thing: `paper-mixed` and `paper-signer` do."""
    return len(set(name.split("-")) ^ set(other.split("-"))) == 2


def describe_cost(training: Training, column: Column) -> dict[str, str]:
    """Videos, trainings, steps and times."""
    groups = f", {column.num_groups} groups" if column.num_groups else ""
    return {
        "test videos": f"{column.num_videos:,}{groups}",
        "trainings": f"{training.num_trainings} × {counted(training.num_folds, 'fold')}",
        "steps": f"{training.steps:.0f}",
        "pre-training": format_duration(training.seconds["pretrain"]),
        "with evaluation": format_duration(sum(training.seconds.values())),
    }


def table(corner: str, titles: Sequence[str], rows: Mapping[str, Mapping[str, str]]) -> list[str]:
    """The lines of a table: names of rows, then a cell for each title."""
    lines = [[corner, *titles], ["---"] * (1 + len(titles))]
    lines += [[name, *(cells.get(title, "–") for title in titles)] for name, cells in rows.items()]
    return [*(f"| {' | '.join(cells)} |" for cells in lines), ""]
