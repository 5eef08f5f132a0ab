"""Results as markdown tables, each with the origin of its numbers."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from records import Ablation, AblationStudy, Result, ResultFile, RunDifference, TaskResult

from clipset.config import to_mapping
from clipset.evaluation.results import ERROR_METRICS
from clipset.probes.config import ProbeKey
from clipset.report.wording import (
    format_interval,
    format_number,
    format_score,
    row_name,
    row_order,
)

Row = tuple[str, str]
COMPARED: tuple[tuple[Row, Row], ...] = (
    (("scale", "finetune"), ("backbone", "transformer")),
    (("scale", "linear"), ("backbone", "linear")),
    (("scale", "knn"), ("backbone", "knn")),
    (("scale", "finetune"), ("backbone", "ordered")),
)
MODEL_ROWS = (
    ProbeKey("scale", "knn"),
    ProbeKey("scale", "linear"),
    ProbeKey("scale", "finetune"),
)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table."""
    lines = [_line(header), _line(["---"] * len(header)), *(_line(row) for row in rows)]
    return [*lines, ""]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '∣') for cell in cells)} |"


def origin(result: Result, label: str = "") -> list[str]:
    """Where a column comes from: recipe, commit, seeds, machine and command."""
    seeds = ", ".join(map(str, result.seeds))
    return provenance(
        f"{label + ': ' if label else ''}[{result.recipe_file}](../{result.recipe_file}) "
        f"({result.fingerprint}), commit {result.commit}, seeds {seeds}, "
        f"{machine_name(result.machine)}, {result.date[:10]}:",
        result.command,
    )


def provenance(text: str, command: str) -> list[str]:
    """A line and the command that gives the same numbers."""
    return [wrap(text), "", "```sh", command, "```", ""]


def machine_name(machine: Mapping[str, Any]) -> str:
    """Cores and processor."""
    return f"{machine.get('cores', '?')} cores, {machine.get('processor', '?')}"


def wrap(text: str, indent: int = 0) -> str:
    """A paragraph in lines of at most 118 characters; further lines are indented."""
    return textwrap.fill(
        text, 118, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )


def score(record: dict[str, Any] | None) -> str:
    """A score with its interval, or a dash."""
    if record is None:
        return "–"
    value = format_score(record["metric"], record["value"])
    interval = record.get("interval")
    return f"{value} {format_interval(record['metric'], interval)}" if interval else value


def find_row(task: TaskResult, row: Row) -> dict[str, Any] | None:
    """The record of a row."""
    matches = (record for record in task.rows if (record["features"], record["probe"]) == row)
    return next(matches, None)


def scores(columns: Sequence[tuple[str, TaskResult]]) -> list[str]:
    """All probes of any column, in the paper's order."""
    rows = {(record["features"], record["probe"]) for _, task in columns for record in task.rows}
    cells = [
        [row_name(*row), *(score(find_row(task, row)) for _, task in columns)]
        for row in sorted(rows, key=lambda row: (row_order(*row), row))
    ]
    return table(["", *(title for title, _ in columns)], cells)


def differences(columns: Sequence[tuple[str, TaskResult]]) -> list[str]:
    """SCALE probes against their baselines, on the same videos."""
    cells = [
        [
            f"{row_name(*row)} − {row_name(*baseline)}",
            *(difference_text(find_comparison(task, row, baseline)) for _, task in columns),
        ]
        for row, baseline in COMPARED
    ]
    return table(["paired difference", *(title for title, _ in columns)], cells)


def find_comparison(task: TaskResult, row: Row, baseline: Row) -> dict[str, Any] | None:
    """The comparison of two rows."""
    for record in task.comparisons:
        against = (record["baseline_features"], record["baseline_probe"])
        if (record["features"], record["probe"]) == row and against == baseline:
            return record
    return None


def difference_text(record: dict[str, Any] | None) -> str:
    """A difference with its interval and p; accuracies in points."""
    if record is None:
        return "–"
    value, low, high = (
        _signed(number) if record["metric"] in ERROR_METRICS else f"{100 * number:+.1f}"
        for number in (record["difference"], *record["interval"])
    )
    p = "p < 0.001" if record["p"] < 0.001 else f"p = {record['p']:.3f}"
    return f"{value} ({low} to {high}), {p}".replace("-", "−")


def _signed(number: float) -> str:
    return f"{'−' if number < 0 else '+'}{format_number(abs(number))}"


def variants(results: Sequence[Result]) -> list[str]:
    """Trainings side by side: time, and scores of the probes that depend on them."""
    named = [(result.variant, result.tasks[0]) for result in results]
    seconds = [
        "–" if task.training_seconds is None else f"{task.training_seconds:,.0f}"
        for _, task in named
    ]
    rows = [
        [row_name(*row), *(score(find_row(task, row)) for _, task in named)] for row in MODEL_ROWS
    ]
    header = ["", *(name for name, _ in named)]
    return table(header, [["training, seconds", *seconds], *rows])


def run_differences(file: ResultFile, selected: Sequence[Result]) -> list[str]:
    """The first run of a file against the others."""
    pairs: dict[tuple[int, int, str], list[RunDifference]] = {}
    for each in file.differences:
        if file.results[each.run] in selected and file.results[each.baseline] in selected:
            pairs.setdefault((each.run, each.baseline, each.task), []).append(each)
    rows = []
    for (run, baseline, task), differences in pairs.items():
        detail = task or labels(file.results[run])
        name = f"{file.results[run].variant} − {file.results[baseline].variant}, {detail}"
        by_row = {(each.features, each.probe): each for each in differences}
        found = (by_row.get(row) for row in MODEL_ROWS)
        rows.append([name, *(difference_text(to_mapping(d) if d else None) for d in found)])
    header = ["paired difference", *(row_name(*row) for row in MODEL_ROWS)]
    return table(header, rows) if rows else []


def labels(result: Result) -> str:
    """The fraction of labels, in words."""
    return label_text(result.label_fraction)


def label_text(fraction: float | None) -> str:
    """All labels, or a percentage."""
    return "all labels" if fraction is None else f"{100 * fraction:g} % of the labels"


def ablation(result: Result) -> list[str]:
    """A table of the paper on our data, next to the paper's numbers."""
    ours = list(dict.fromkeys(cell.column for cell in result.cells))
    theirs = list(dict.fromkeys(column for _, column, _ in result.paper))
    printed = {(row, column): text for row, column, text in result.paper}
    rows = []
    for row in result.table_rows:
        found = {cell.column: cell for cell in result.cells if cell.row == row}
        cells = [found.get(column) for column in ours]
        rows.append(
            [
                row,
                *(score(None if cell is None else cell.record) for cell in cells),
                *(printed.get((row, column), "–") for column in theirs),
            ]
        )
    return table(["", *ours, *(f"paper: {column}" for column in theirs)], rows)


def validation_table(results: Sequence[Result]) -> list[str]:
    """Runs that were evaluated on validation videos."""
    rows = []
    baselines = ("knn", "linear", "transformer", "ordered")
    columns: tuple[Row, ...] = (*MODEL_ROWS, *(("backbone", probe) for probe in baselines))
    for result in results:
        for task in result.tasks:
            where = ", ".join(filter(None, [result.dataset, result.backbone, task.name]))
            seconds = task.training_seconds
            rows.append(
                [
                    where,
                    f"{result.variant}, {labels(result)}",
                    "–" if seconds is None else f"{seconds:,.0f}",
                    *(score(find_row(task, row)) for row in columns),
                ]
            )
    header = ["data", "training", "seconds", *(row_name(*row) for row in columns)]
    return table(header, rows)


def ablation_table(study: AblationStudy) -> list[str]:
    """One change at a time: its time and its differences to the recipe."""
    base, *others = study.ablations
    rows = [_ablation_row(base, base), *(_ablation_row(ablation, base) for ablation in others)]
    kind = "ablation" if study.folds else "training"
    return table([kind, "change", "seeds", "time", *(row_name(*row) for row in MODEL_ROWS)], rows)


def _ablation_row(ablation: Ablation, base: Ablation) -> list[str]:
    """Scores of the recipe, differences of an ablation; time relative to the recipe."""
    changes = [f"`{change}`" for change in ablation.changes]
    if ablation.store != base.store:
        changes.append(f"features `{ablation.store}`")
    time = f"{ablation.training_seconds / base.training_seconds:.1f}"
    found = {(row.features, row.probe): to_mapping(row) for row in ablation.rows}
    differences = (_difference_to_recipe(found.get(row)) for row in MODEL_ROWS)
    return [
        ablation.description,
        ", ".join(changes) or "–",
        str(ablation.num_trainings),
        time,
        *differences,
    ]


def _difference_to_recipe(row: dict[str, Any] | None) -> str:
    if row is None:
        return "–"
    if row["difference"] is None:
        return score(row | {"metric": "top1"})
    if row["difference_interval"] is None:
        return f"{100 * row['difference']:+.1f}".replace("-", "−")
    gap = {"metric": "top1", "difference": row["difference"], "p": row["p"]}
    text = difference_text(gap | {"interval": row["difference_interval"]})
    low, high = row["difference_interval"]
    return f"**{text}**" if low > 0 or high < 0 else text


def study_rows(study: AblationStudy) -> list[str]:
    """All probes of the recipe, and their differences to the baselines, if these were run."""
    if not study.differences:
        return []
    found = [to_mapping(row) | {"metric": "top1"} for row in study.ablations[0].rows]
    found.sort(key=lambda row: row_order(row["features"], row["probe"]))
    told = [[row_name(row["features"], row["probe"]), score(row)] for row in found]
    gaps = [
        [
            f"{row_name(*each.probe)} − {row_name(*each.baseline)}",
            difference_text(
                {"metric": "top1", "difference": each.value, "interval": each.interval, "p": each.p}
            ),
        ]
        for each in study.differences
    ]
    title = study.ablations[0].description
    return table(["", title], told) + table(["paired difference", title], gaps)


def seed_effect(study: AblationStudy) -> str:
    """How far another seed alone moves a score."""
    stds = [(row, study.seed_std.get(" ".join(row))) for row in MODEL_ROWS]
    points = [f"{100 * std:.1f} ({row_name(*row)})" for row, std in stds if std is not None]
    if not points:
        return "Everything was trained with one seed, so its effect is not known."
    subject = "the score of a fold" if study.folds else "the score"
    effect = f"{', '.join(points)} points (standard deviation)"
    return f"Another seed of training moves {subject} by {effect}."


def study_origin(study: AblationStudy) -> list[str]:
    """Where a study comes from: recipe, commits, seeds, machine and settings."""
    num_seeds = study.num_probe_seeds
    seeds = ", ".join(map(str, study.training_seeds))
    lines = [
        f"features: {', '.join(study.stores)}",
        *([f"training seeds: {seeds}"] if seeds and not study.folds else []),
        *study.changes,
    ]
    text = (
        f"[{study.recipe_file}](../{study.recipe_file}), commit {study.commit}, {num_seeds} "
        f"{'seeds' if num_seeds > 1 else 'seed'} of the probes, {machine_name(study.machine)}, "
        f"{study.date[:10]}, with:"
    )
    return [wrap(text), "", "```text", *lines, "```", ""]
