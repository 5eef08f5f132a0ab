"""A table as text, markdown, LaTeX and HTML: ours next to the paper's numbers, with notes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from clipset.evaluation.statistics import mean_result
from clipset.files import write_atomic
from clipset.report.page import PageCell, TablePage, fact_rows, write_table_page
from clipset.report.wording import format_duration, format_interval, format_score, metric_name
from clipset.reproduce.paper import BACKBONES
from clipset.reproduce.table import Cell, TableFile, write_table

LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
    "ρ": r"$\rho$", "≈": r"$\approx$",
    "×": r"$\times$", "–": "--", "·": r"$\cdot$", "…": r"\ldots{}",
}  # fmt: skip


def write_renderings(table: TableFile, folder: Path) -> None:
    """Write `table.json` and the table in all formats."""
    write_table(table, folder)
    file_texts = {
        "table.txt": render_text(table),
        "table.md": render_markdown(table),
        "table.tex": render_latex(table),
    }
    for name, text in file_texts.items():
        write_atomic(folder / name, text.encode("utf-8", errors="replace"))
    write_table_page(make_page(table), folder / "table.html")


def make_cell(table: TableFile, row: str, column: str) -> PageCell:
    """Our score beside the paper's: the mean over the tasks, once all of them are finished."""
    cells = table.find(row, column)
    notes = [f"paper {text}" for r, c, text in table.paper if (r, c) == (row, column)]
    note = notes[0] if notes else ""
    if any(cell.status == "failed" for cell in cells):
        return PageCell(score="failed", note=note, failed=True)
    if cells and cells[0].measurement is not None:
        return PageCell(score=cells[0].measurement.text, note=note)
    results = {cell.task: cell.result for cell in cells if cell.result is not None}
    tasks = cells[0].tasks if cells else ()
    if set(results) != set(tasks or ("",)):
        return PageCell(note=note)
    result = mean_result({task: results[task] for task in tasks}) if tasks else results[""]
    return PageCell(
        score=format_score(result.metric, result.value),
        interval=format_interval(result.metric, result.interval),
        note=note,
    )


def _text_rows(table: TableFile) -> list[tuple[str, list[str], list[str]]]:
    """Each row with our scores and the paper's numbers."""
    paper = {(row, column): text for row, column, text in table.paper}
    rows = []
    for row in table.rows:
        cells = (make_cell(table, row, column) for column in table.columns)
        ours = [f"{cell.score or '–'} {cell.interval}".strip() for cell in cells]
        rows.append((row, ours, [paper.get((row, column), "–") for column in table.columns]))
    return rows


def render_text(table: TableFile) -> str:
    """Plain text: two lines for each row, ours and the paper's."""
    lines = [["", "", *table.columns]]
    for row, ours, paper in _text_rows(table):
        lines.append([row, "ours", *ours])
        if any(row == paper_row for paper_row, _, _ in table.paper):
            lines.append(["", "paper", *paper])
    column_widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    aligned_lines = [
        "  ".join(
            text.ljust(width) for text, width in zip(line, column_widths, strict=True)
        ).rstrip()
        for line in lines
    ]
    return "\n".join([_heading(table), "", *aligned_lines, "", *write_notes(table)]) + "\n"


def render_markdown(table: TableFile) -> str:
    """Markdown: ours / the paper's."""
    lines = _escaped_lines(table, _markdown)
    lines.insert(1, ["---"] * len(lines[0]))
    heading = f"**{_markdown(_heading(table))}** (ours / paper)"
    rows = [f"| {' | '.join(line)} |" for line in lines]
    notes = [f"- {_markdown(note)}" for note in write_notes(table)]
    return "\n".join([heading, "", *rows, "", *notes]) + "\n"


def render_latex(table: TableFile) -> str:
    """LaTeX with booktabs: ours / the paper's."""
    header, *rows = (" & ".join(line) + r" \\" for line in _escaped_lines(table, _latex))
    caption = " ".join([f"{_heading(table)}: ours / paper.", *write_notes(table)])
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\begin{{tabular}}{{l{'c' * len(table.columns)}}}",
        r"\toprule",
        header,
        r"\midrule",
        *rows,
        r"\bottomrule",
        r"\end{tabular}",
        rf"\caption{{{_latex(caption)}}}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _escaped_lines(table: TableFile, escape: Callable[[str], str]) -> list[list[str]]:
    """The header, then each row with cells of ours / the paper's."""
    lines = [["", *map(escape, table.columns)]]
    for row, ours, paper in _text_rows(table):
        cell_pairs = zip(map(escape, ours), map(escape, paper), strict=True)
        lines.append([escape(row), *map(" / ".join, cell_pairs)])
    return lines


def _markdown(text: str) -> str:
    """The text with the special characters of markdown escaped."""
    flat_text = " ".join(text.split())
    return "".join(f"\\{letter}" if letter in "\\`*_[]<>|#~" else letter for letter in flat_text)


def _latex(text: str) -> str:
    """The text with the special characters of LaTeX escaped."""
    return "".join(LATEX.get(letter, letter) for letter in " ".join(text.split()))


def _heading(table: TableFile) -> str:
    return f"{table.title} (table {table.number} of the paper), on {table.data or 'nothing yet'}"


def make_page(table: TableFile) -> TablePage:
    """The table as an HTML page."""
    page_facts = {
        "cells": [(cell.label, _describe(cell)) for cell in table.cells],
        **{f"environment {key}": list(own.items()) for key, own in table.environments.items()},
        **{f"recipe {key}": fact_rows(own) for key, own in table.recipes.items()},
    }
    return TablePage(
        title=table.title,
        subtitle=f"Table {table.number} of the paper, run on {table.data or 'nothing yet'}",
        lede=f"Large: {'here' if table.notes else 'our score with its 95 % interval'}. "
        "Small: the paper's number.",
        columns=table.columns,
        rows=[
            (row, [make_cell(table, row, column) for column in table.columns]) for row in table.rows
        ],
        notes=write_notes(table),
        facts={title: rows for title, rows in page_facts.items() if rows},
    )


def _describe(cell: Cell) -> str:
    if cell.measurement is not None:
        return f"{cell.date}, {cell.measurement.kind}: {cell.measurement.value:,.2f}"
    if cell.result is None:
        return f"{cell.date}, failed: {cell.reason}"
    return (
        f"{cell.date}, {format_duration(cell.seconds)}, seed {cell.seed}, recipe {cell.recipe}, "
        f"environment {cell.environment}, selected on {cell.result.selected_on}"
    )


def write_notes(table: TableFile) -> list[str]:
    """The protocol, failed cells, and missing columns."""
    notes = list(table.notes) or _protocol_notes(table)
    failed_labels: dict[str, list[str]] = {}
    for cell in table.cells:
        if cell.status == "failed":
            failed_labels.setdefault(cell.reason, []).append(cell.label)
    notes += [f"Failed: {'; '.join(own)}: {reason}" for reason, own in failed_labels.items()]
    notes += [f"Weights not found: {name}: {advice}" for name, advice in table.missing.items()]
    pending_columns = [
        name for name in table.columns if not any(c.column == name for c in table.cells)
    ]
    if pending_columns and table.table != "lvu":
        backbone_names = {
            BACKBONES[t] for name in pending_columns for t in name.split(", ") if t in BACKBONES
        }
        notes.append(
            f"Not run: the columns {'; '.join(pending_columns)}. Add --backbone "
            f"({', '.join(sorted(backbone_names))})."
        )
    if table.quoted:
        notes.append(f"Quoted by the paper from other papers, not run: {', '.join(table.quoted)}.")
    return notes


def _protocol_notes(table: TableFile) -> list[str]:
    results = [cell.result for cell in table.cells if cell.result is not None]
    if not results:
        return ["Nothing has been run yet: all numbers are the paper's."]

    def join(values: set[str]) -> str:
        return ", ".join(sorted(values))

    metric_names = join({metric_name(result.metric) for result in results})
    splits = join({str(result.split) for result in results})
    ssl_splits = join({str(result.ssl_split) for result in results})
    num_seeds = " or ".join(map(str, sorted({len(result.seeds) for result in results})))
    label_fractions = join({str(r.label_fraction) for r in results if r.label_fraction is not None})
    pretrainings = max(result.num_pretrainings or 1 for result in results)
    repeated = f", {pretrainings} pre-trainings" if pretrainings > 1 else ""
    label_note = f", with a fraction of {label_fractions} of the labels" if label_fractions else ""
    notes = [
        f"Ours: {metric_names} on the {splits} split with 95 % intervals, {num_seeds} "
        f"seeds{repeated}, pre-trained with ssl_split = {ssl_splits}{label_note}. Hyperparameters "
        "were never selected on the test videos; the paper does not say how it selected them."
    ]
    for tasks in sorted({cell.tasks for cell in table.cells if cell.tasks}):
        notes.append(f"Ours is the mean over {', '.join(tasks)}; the paper's is of split 1.")
    if table.table == "lvu":
        notes.append("The paper's numbers fit the size of LVU's validation split.")
    return notes
