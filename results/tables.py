"""Results as tables in markdown, each with where its numbers come from."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from records import Between, Idea, PartResult, Result, ResultFile, Study

from clipset.config import to_mapping
from clipset.evaluation.results import ERROR_METRICS
from clipset.report.wording import (
    format_interval,
    format_number,
    format_score,
    row_name,
    row_order,
)

Row = tuple[str, str]
CLAIMS: tuple[tuple[Row, Row], ...] = (
    (("scale", "finetune"), ("backbone", "transformer")),
    (("scale", "linear"), ("backbone", "linear")),
    (("scale", "knn"), ("backbone", "knn")),
    (("scale", "finetune"), ("backbone", "ordered")),
)
MODEL_ROWS: tuple[Row, ...] = (("scale", "knn"), ("scale", "linear"), ("scale", "finetune"))


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table."""
    lines = [_line(header), _line(["---"] * len(header)), *(_line(row) for row in rows)]
    return [*lines, ""]


def _line(words: Sequence[str]) -> str:
    return f"| {' | '.join(word.replace('|', '∣') for word in words)} |"


def origin(result: Result, what: str = "") -> list[str]:
    """Where a column comes from: recipe, commit, seeds, machine and command."""
    seeds = ", ".join(map(str, result.seeds))
    return provenance(
        f"{what + ': ' if what else ''}[{result.recipe_file}](../{result.recipe_file}) "
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


def find_row(part: PartResult, row: Row) -> dict[str, Any] | None:
    """The record of a row."""
    found = (each for each in part.rows if (each["features"], each["probe"]) == row)
    return next(found, None)


def scores(columns: Sequence[tuple[str, PartResult]]) -> list[str]:
    """All rows that any column has, in the paper's order."""
    rows = {(each["features"], each["probe"]) for _, part in columns for each in part.rows}
    ordered = sorted(rows, key=lambda row: (row_order(*row), row))
    told = [
        [row_name(*row), *(score(find_row(part, row)) for _, part in columns)] for row in ordered
    ]
    return table(["", *(title for title, _ in columns)], told)


def claims(columns: Sequence[tuple[str, PartResult]]) -> list[str]:
    """The differences that the method claims, on the same videos."""
    told = [
        [
            f"{row_name(*row)} − {row_name(*other)}",
            *(difference(find_claim(part, row, other)) for _, part in columns),
        ]
        for row, other in CLAIMS
    ]
    return table(["paired difference", *(title for title, _ in columns)], told)


def find_claim(part: PartResult, row: Row, other: Row) -> dict[str, Any] | None:
    """The comparison of two rows."""
    for each in part.comparisons:
        against = (each["baseline_features"], each["baseline_probe"])
        if (each["features"], each["probe"]) == row and against == other:
            return each
    return None


def difference(found: dict[str, Any] | None) -> str:
    """A difference with its interval and p; shares in points of a hundred."""
    if found is None:
        return "–"
    value, low, high = (
        _signed(number) if found["metric"] in ERROR_METRICS else f"{100 * number:+.1f}"
        for number in (found["difference"], *found["interval"])
    )
    p = "p < 0.001" if found["p"] < 0.001 else f"p = {found['p']:.3f}"
    return f"{value} ({low} to {high}), {p}".replace("-", "−")


def _signed(number: float) -> str:
    return f"{'−' if number < 0 else '+'}{format_number(abs(number))}"


def variants(results: Sequence[Result]) -> list[str]:
    """Trainings side by side: what they cost, and what the rows that depend on them score."""
    named = [(result.variant, result.parts[0]) for result in results]
    seconds = [
        "–" if part.training_seconds is None else f"{part.training_seconds:,.0f}"
        for _, part in named
    ]
    rows = [
        [row_name(*row), *(score(find_row(part, row)) for _, part in named)] for row in MODEL_ROWS
    ]
    header = ["", *(name for name, _ in named)]
    return table(header, [["training, seconds", *seconds], *rows])


def between(file: ResultFile, chosen: Sequence[Result]) -> list[str]:
    """How the runs of a file compare with its first one."""
    pairs: dict[tuple[int, int, str], list[Between]] = {}
    for each in file.between:
        if file.results[each.of] in chosen and file.results[each.against] in chosen:
            pairs.setdefault((each.of, each.against, each.part), []).append(each)
    told = []
    for (one, two, part), found in pairs.items():
        share = labels(file.results[one])
        name = f"{file.results[one].variant} − {file.results[two].variant}, {part or share}"
        by_row = {(each.features, each.probe): each for each in found}
        told.append([name, *(_between(by_row.get(row)) for row in MODEL_ROWS)])
    header = ["paired difference", *(row_name(*row) for row in MODEL_ROWS)]
    return table(header, told) if told else []


def _between(each: Between | None) -> str:
    if each is None:
        return "–"
    return difference(
        {"metric": each.metric, "difference": each.difference, "interval": each.interval}
        | {"p": each.p}
    )


def labels(result: Result) -> str:
    """How many labels the probes saw, in words."""
    return share_of_labels(result.low_shot)


def share_of_labels(share: float | None) -> str:
    """All labels, or how many percent of them."""
    return "all labels" if share is None else f"{100 * share:g} % of the labels"


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


def tried(results: Sequence[Result]) -> list[str]:
    """Runs that were judged on validation videos: what was changed, and what came of it."""
    rows = []
    rivals = ("knn", "linear", "transformer", "ordered")
    shown: tuple[Row, ...] = (*MODEL_ROWS, *(("backbone", rival) for rival in rivals))
    for result in results:
        for part in result.parts:
            where = ", ".join(filter(None, [result.dataset, result.backbone, part.name]))
            seconds = part.training_seconds
            rows.append(
                [
                    where,
                    f"{result.variant}, {labels(result)}",
                    "–" if seconds is None else f"{seconds:,.0f}",
                    *(score(find_row(part, row)) for row in shown),
                ]
            )
    header = ["data", "training", "seconds", *(row_name(*row) for row in shown)]
    return table(header, rows)


def ideas(study: Study) -> list[str]:
    """One change at a time: what it is, what it costs, and how far each row moves."""
    base, *others = study.ideas
    rows = [_idea(base, base), *(_idea(idea, base) for idea in others)]
    what = "idea" if study.folds else "training"
    return table([what, "change", "seeds", "time", *(row_name(*row) for row in MODEL_ROWS)], rows)


def _idea(idea: Idea, base: Idea) -> list[str]:
    """Scores of the recipe, differences of an idea; time as a multiple of the recipe's."""
    changes = [f"`{change}`" for change in idea.changes]
    own = ", ".join(changes + [f"features `{idea.store}`"] * (idea.store != base.store)) or "–"
    time = f"{idea.training_seconds / base.training_seconds:.1f}"
    found = {(row.features, row.probe): to_mapping(row) for row in idea.rows}
    moved = (_moved(found.get(row)) for row in MODEL_ROWS)
    return [idea.what, own, str(idea.seeds), time, *moved]


def _moved(row: dict[str, Any] | None) -> str:
    if row is None:
        return "–"
    if row["difference"] is None:
        return score(row | {"metric": "top1"})
    if row["difference_interval"] is None:
        return f"{100 * row['difference']:+.1f}".replace("-", "−")
    gap = {"metric": "top1", "difference": row["difference"], "p": row["p"]}
    told = difference(gap | {"interval": row["difference_interval"]})
    low, high = row["difference_interval"]
    return f"**{told}**" if low > 0 or high < 0 else told


def study_rows(study: Study) -> list[str]:
    """All rows of the recipe, and what the method claims of them, if rivals were run, too."""
    if not study.claims:
        return []
    found = [to_mapping(row) | {"metric": "top1"} for row in study.ideas[0].rows]
    found.sort(key=lambda row: row_order(row["features"], row["probe"]))
    told = [[row_name(row["features"], row["probe"]), score(row)] for row in found]
    gaps = [
        [
            f"{row_name(*each.row)} − {row_name(*each.other)}",
            difference(
                {"metric": "top1", "difference": each.value, "interval": each.interval, "p": each.p}
            ),
        ]
        for each in study.claims
    ]
    title = study.ideas[0].what
    return table(["", title], told) + table(["paired difference", title], gaps)


def seed_effect(study: Study) -> str:
    """How far another seed alone moves a score."""
    spreads = [(row, study.spreads.get(" ".join(row))) for row in MODEL_ROWS]
    shown = [f"{100 * value:.1f} ({row_name(*row)})" for row, value in spreads if value is not None]
    if not shown:
        return "Everything was trained with one seed, so its effect is not known."
    what = "the score of a fold" if study.folds else "the score"
    return (
        f"Another seed of training moves {what} by {', '.join(shown)} points (standard deviation)."
    )


def study_origin(study: Study) -> list[str]:
    """Where a study comes from: recipe, commits, seeds, machine and command."""
    stores = "".join(f" --store {each}" for each in study.stores)
    changes = "".join(f" --set {shlex.quote(change)}" for change in study.changes)
    scored = f"--folds {study.folds}" if study.folds else "--test"
    if not study.folds:  # what was scored on test videos, and nothing else
        scored += "".join(f" --seed {seed}" for seed in study.trainings)
        scored += f" --only {' '.join(idea.name for idea in study.ideas)}"
    return provenance(
        f"[{study.recipe_file}](../{study.recipe_file}), commit {study.commit}, {study.seeds} "
        f"{'seeds' if study.seeds > 1 else 'seed'} of the probes, {machine_name(study.machine)}, "
        f"{study.date[:10]}:",
        f"python results/study.py{stores} --recipe {study.recipe_file} {scored} "
        f"--out studies/{study.name} --name {study.name}{changes}",
    )
