"""The summary of a study: scores of each variant and probe, and paired differences.

A score is the mean over the test videos of all folds and over all trainings. Its 95 % interval
covers videos (whole groups, where the catalog has them) and trainings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from tables import table

from clipset.config import to_mapping
from clipset.evaluation.results import read_predictions
from clipset.evaluation.statistics import compare_values, interval, list_pairs
from clipset.files import write_atomic, write_json
from clipset.probes.config import ProbeKey
from clipset.report.wording import (
    format_duration,
    format_interval,
    format_p_value,
    format_score,
    format_signed,
    plural,
    row_name,
)

if TYPE_CHECKING:
    from study import Unit

SEED = 0  # of the bootstrap


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The score of a probe over all folds and trainings of a variant."""

    variant: str
    features: str
    probe: str
    metric: str
    value: float
    interval: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The paired difference of two scores on the same videos."""

    score: tuple[str, str, str]
    """variant, features, probe"""
    baseline: tuple[str, str, str]
    metric: str
    value: float
    interval: tuple[float, float]
    p: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What the trainings of a variant cost; seconds and steps of one, as a mean over folds."""

    variant: str
    num_trainings: int
    num_folds: int
    steps: float
    seconds: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """The results on one dataset with one backbone and one fraction of the labels."""

    dataset: str
    backbone: str
    label_fraction: float
    num_videos: int
    num_groups: int
    """0: videos are resampled one by one"""
    trainings: list[Training] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class VariantValues:
    """Correct or not (or squared errors) of each probe: trainings by videos of all folds."""

    ids: tuple[str, ...]
    groups: tuple[str, ...] | None
    metric: str
    probes: dict[ProbeKey, Float[np.ndarray, "S M"]]


def write_summary(units: Sequence[Unit], name: str, out: Path) -> str:
    """Write `summary.json` and `summary.md` of the finished units; returns the text."""
    by_column: dict[tuple[str, str, float], list[Unit]] = {}
    for unit in units:
        for fraction in unit.label_fractions:
            by_column.setdefault((*unit.row[:2], fraction), []).append(unit)
    every = [summarise(own, fraction) for (_, _, fraction), own in by_column.items()]
    columns = [column for column in every if column]
    records = [record for unit in units if (record := unit.read())]
    origin: dict[str, Any] = {
        "study": name,
        "units": f"{sum(not unit.pending_fractions for unit in units)} of {len(units)}",
        "dates": sorted({record["date"][:10] for record in records}),
        "commits": sorted({record["environment"].get("commit", "?") for record in records}),
        "machines": sorted({machine_text(record["environment"]) for record in records}),
        "budget": to_mapping(units[0].budget),
    }
    write_json(out / "summary.json", origin | {"columns": to_mapping(columns)})
    text = render(origin, columns)
    write_atomic(out / "summary.md", text.encode())
    return text


def machine_text(environment: dict[str, str]) -> str:
    """Processor, cores and threads."""
    return "{processor}, {cores} cores, {threads} threads".format_map(environment)


def summarise(units: Sequence[Unit], label_fraction: float) -> Column | None:
    """One column; only variants with a training in every fold."""
    variants: dict[str, list[Unit]] = {}
    for unit in units:
        variants.setdefault(unit.variant, []).append(unit)
    complete = {
        name: finished
        for name, own in variants.items()
        if (finished := complete_trainings(own, label_fraction))
    }
    if not complete:
        return None
    values = {name: read_values(own, label_fraction) for name, own in complete.items()}
    first = next(iter(values.values()))
    return Column(
        dataset=units[0].dataset,
        backbone=units[0].backbone,
        label_fraction=label_fraction,
        num_videos=len(first.ids),
        num_groups=len(set(first.groups or ())),
        trainings=[describe_training(name, own) for name, own in complete.items()],
        scores=[
            Score(
                variant=name,
                features=key.features,
                probe=key.probe,
                metric=own.metric,
                value=float(rows.mean()),
                interval=interval(rows, np.random.default_rng(SEED)),
            )
            for name, own in values.items()
            for key, rows in own.probes.items()
        ],
        differences=[
            *(
                compare((name, key), (name, baseline), own, own)
                for name, own in values.items()
                for key, baseline in list_pairs(list(own.probes))
            ),
            *(
                compare((name, key), (baseline, key), own, values[baseline])
                for baseline, name in list_variant_pairs(list(values))
                for own in [values[name]]
                for key in own.probes
                if key.features == "scale" and key in values[baseline].probes
            ),
        ],
    )


def list_variant_pairs(names: Sequence[str]) -> list[tuple[str, str]]:
    """Each variant with each later one."""
    return [(first, name) for index, first in enumerate(names) for name in names[index + 1 :]]


def complete_trainings(units: Sequence[Unit], label_fraction: float) -> list[Unit]:
    """The units of the seeds that every fold has."""
    finished = [unit for unit in units if label_fraction not in unit.pending_fractions]
    folds = {unit.fold for unit in units}
    seeds = {
        unit.seed
        for unit in finished
        if {other.fold for other in finished if other.seed == unit.seed} == folds
    }
    return [unit for unit in finished if unit.seed in seeds]


def read_values(units: Sequence[Unit], label_fraction: float) -> VariantValues:
    """The values of one variant, with all folds side by side."""
    by_seed: dict[int, dict[str, Unit]] = {}
    for unit in units:
        by_seed.setdefault(unit.seed, {})[unit.fold] = unit
    trainings = [
        [
            read_predictions(own[fold].scores_folder(label_fraction) / "predictions.safetensors")
            for fold in sorted(own)
        ]
        for own in by_seed.values()
    ]
    ids = tuple(id for fold in trainings[0] for id in fold.ids)
    groups = {video.id: video.group for video in units[0].catalog}
    known = tuple(group for id in ids if (group := groups[id]) is not None)
    return VariantValues(
        ids=ids,
        groups=known if len(known) == len(ids) else None,
        metric=trainings[0][0].metric,
        probes={
            key: np.stack(
                [
                    np.concatenate([fold.values(key).mean(axis=0) for fold in folds])
                    for folds in trainings
                ]
            )
            for key in trainings[0][0].outputs
        },
    )


def compare(
    score: tuple[str, ProbeKey],
    baseline: tuple[str, ProbeKey],
    own: VariantValues,
    other: VariantValues,
) -> Difference:
    """The paired difference of two probes, perhaps of two variants."""
    assert own.ids == other.ids  # the folds of a dataset are the same for all variants
    test = compare_values(
        own.probes[score[1]], other.probes[baseline[1]], np.random.default_rng(SEED)
    )
    return Difference(
        score=(score[0], *score[1]),
        baseline=(baseline[0], *baseline[1]),
        metric=own.metric,
        value=test.difference,
        interval=test.interval,
        p=test.p,
    )


def describe_training(variant: str, units: Sequence[Unit]) -> Training:
    """The cost of a variant."""
    records = [unit.read() for unit in units]
    names = dict.fromkeys(name for record in records for name in record["seconds"])
    return Training(
        variant=variant,
        num_trainings=len({unit.seed for unit in units}),
        num_folds=len({unit.fold for unit in units}),
        steps=float(np.mean([record["steps"] for record in records])),
        seconds={
            name: float(np.mean([record["seconds"].get(name, 0.0) for record in records]))
            for name in names
        },
    )


def render(origin: dict[str, Any], columns: Sequence[Column]) -> str:
    """The summary as text with tables."""
    budget = [f"{value:g} {name}" for name, value in origin["budget"].items() if value is not None]
    lines = [
        f"# {origin['study']}",
        "",
        f"{origin['units']} units; budget: {budget[0] if budget else 'none'}; "
        f"commit {', '.join(origin['commits'])}; {', '.join(origin['dates'])}; "
        f"{'; '.join(origin['machines'])}.",
        "",
    ]
    for column in columns:
        lines += render_column(column)
    return "\n".join(lines).rstrip() + "\n"


def render_column(column: Column) -> list[str]:
    """Scores, costs and differences of one column."""
    labels = "all labels" if column.label_fraction == 1 else f"{column.label_fraction:.0%} labels"
    resampled = f"{column.num_groups} whole groups" if column.num_groups else "single videos"
    probes = list(dict.fromkeys((score.features, score.probe) for score in column.scores))
    scores = {(score.variant, score.features, score.probe): score for score in column.scores}
    rows = []
    for training in column.trainings:
        cells = [scores.get((training.variant, *probe)) for probe in probes]
        rows.append([training.variant, *(score_text(cell) for cell in cells)])
    costs = [
        [
            training.variant,
            f"{training.num_trainings} × {plural(training.num_folds, 'fold')}",
            f"{training.steps:.0f}",
            format_duration(training.seconds.get("pretrain", 0.0)),
            format_duration(sum(training.seconds.values())),
        ]
        for training in column.trainings
    ]
    return [
        f"## {column.dataset}, {column.backbone}, {labels}",
        "",
        f"{plural(column.num_videos, 'video')}, each scored once; intervals over trainings and "
        f"{resampled}.",
        "",
        *table(["variant", *(row_name(*probe) for probe in probes)], rows),
        *table(["variant", "trainings", "steps", "pre-training", "unit"], costs),
        *table(
            ["paired difference", "", "95 % interval", "p"],
            [difference_row(difference) for difference in column.differences],
        ),
    ]


def score_text(score: Score | None) -> str:
    if score is None:
        return "–"
    value = format_score(score.metric, score.value)
    return f"{value} {format_interval(score.metric, score.interval)}"


def difference_row(difference: Difference) -> list[str]:
    """`paper: SCALE linear − Linear`, or `paper − official: SCALE linear`."""
    (variant, *probe), (other, *baseline) = difference.score, difference.baseline
    name = f"{variant}: {row_name(*probe)} − {row_name(*baseline)}"
    if variant != other:
        name = f"{variant} − {other}: {row_name(*probe)}"
    low, high = (format_signed(difference.metric, end) for end in difference.interval)
    value = format_signed(difference.metric, difference.value)
    return [name, value, f"{low} to {high}", format_p_value(difference.p)]
