"""A table as text, markdown, LaTeX and HTML: ours next to the paper's numbers, with notes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from clipset.evaluation.results import ProbeResult
from clipset.evaluation.statistics import mean_result
from clipset.files import write_atomic
from clipset.report.collect import fact_rows
from clipset.report.content import FactGroup
from clipset.report.table_page import PageCell, PageRow, TablePage, write_table_page
from clipset.report.wording import format_duration, format_interval, format_score, metric_name
from clipset.reproduce.paper import BACKBONES
from clipset.reproduce.table import Cell, TableFile, write_table

LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
    "ρ": r"$\rho$", "×": r"$\times$", "–": "--", "·": r"$\cdot$", "…": r"\ldots{}",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CellText:
    """The text of a cell: our score, or that it failed, and the paper's number."""

    score: str = ""
    interval: str = ""
    failed: bool = False
    paper: str = ""

    @property
    def ours(self) -> str:
        """Our score with its interval."""
        return f"{self.score or ('failed' if self.failed else '–')} {self.interval}".strip()


def write_renderings(table: TableFile, folder: Path) -> None:
    """Write `table.json` and the table in all formats."""
    write_table(table, folder)
    texts = {
        "table.txt": render_text(table),
        "table.md": render_markdown(table),
        "table.tex": render_latex(table),
    }
    for name, text in texts.items():
        write_atomic(folder / name, text.encode("utf-8", errors="replace"))
    write_table_page(make_page(table), folder / "table.html")


def cell_text(table: TableFile, row: str, column: str) -> CellText:
    """The text of the cell in a row and column."""
    paper = next((text for r, c, text in table.paper if (r, c) == (row, column)), "")
    result = cell_result(table, row, column)
    if result is None:
        failed = any(cell.status == "failed" for cell in table.find(row, column))
        return CellText(failed=failed, paper=paper)
    return CellText(
        score=format_score(result.metric, result.value),
        interval=format_interval(result.metric, result.interval),
        paper=paper,
    )


def cell_result(table: TableFile, row: str, column: str) -> ProbeResult | None:
    """Our result: the mean over the tasks, once all of them are finished."""
    cells = table.find(row, column)
    results = {cell.task: cell.result for cell in cells if cell.result is not None}
    if not results or len(results) < len(cells):
        return None
    tasks = cells[0].tasks
    if not tasks:
        return results[""]
    return mean_result({t: results[t] for t in tasks}) if set(results) == set(tasks) else None


def write_notes(table: TableFile) -> list[str]:
    """The protocol, failed cells, and missing columns."""
    notes = _protocol_notes(table)
    failed: dict[str, list[str]] = {}
    for cell in table.cells:
        if cell.status == "failed":
            failed.setdefault(cell.reason, []).append(cell.label)
    notes += [f"Failed: {'; '.join(labels)}: {reason}" for reason, labels in failed.items()]
    notes += [f"Weights not found: {name}: {advice}" for name, advice in table.missing.items()]
    pending = [name for name in table.columns if not any(c.column == name for c in table.cells)]
    if pending and table.table != "lvu":
        names = {BACKBONES[t] for name in pending for t in name.split(", ") if t in BACKBONES}
        notes.append(
            f"Not run: the columns {'; '.join(pending)}. Add --backbone "
            f"({', '.join(sorted(names))})."
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

    metrics = join({metric_name(result.metric) for result in results})
    splits = join({str(result.split) for result in results})
    ssl_splits = join({str(result.ssl_split) for result in results})
    num_seeds = " or ".join(map(str, sorted({len(result.seeds) for result in results})))
    fractions = join({str(r.label_fraction) for r in results if r.label_fraction is not None})
    pretrainings = max(result.num_pretrainings or 1 for result in results)
    repeated = f", {pretrainings} pre-trainings" if pretrainings > 1 else ""
    labels = f", with a fraction of {fractions} of the labels" if fractions else ""
    notes = [
        f"Ours: {metrics} on the {splits} split with 95 % intervals, {num_seeds} seeds{repeated}, "
        f"pre-trained with ssl_split = {ssl_splits}{labels}. Hyperparameters were never selected "
        "on the test videos; the paper does not say how it selected them."
    ]
    for tasks in sorted({cell.tasks for cell in table.cells if cell.tasks}):
        notes.append(f"Ours is the mean over {', '.join(tasks)}; the paper's is of split 1.")
    if table.table == "lvu":
        notes.append("The paper's numbers fit the size of LVU's validation split.")
    return notes


def render_text(table: TableFile) -> str:
    """Plain text: two lines for each row, ours and the paper's."""
    lines = [["", "", *table.columns]]
    for row in table.rows:
        cells = [cell_text(table, row, column) for column in table.columns]
        lines.append([row, "ours", *(cell.ours for cell in cells)])
        if any(cell.paper for cell in cells):
            lines.append(["", "paper", *(cell.paper or "–" for cell in cells)])
    widths = [max(len(line[index]) for line in lines) for index in range(len(table.columns) + 2)]
    aligned = [
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    return "\n".join([_heading(table), "", *aligned, "", *write_notes(table)]) + "\n"


def render_markdown(table: TableFile) -> str:
    """Markdown: ours / the paper's."""
    header = ["", *(_markdown(column) for column in table.columns)]
    lines = [_line(header), _line(["---"] * len(header))]
    for row in table.rows:
        cells = [cell_text(table, row, column) for column in table.columns]
        texts = [f"{_markdown(cell.ours)} / {_markdown(cell.paper or '–')}" for cell in cells]
        lines.append(_line([_markdown(row), *texts]))
    notes = [f"- {_markdown(note)}" for note in write_notes(table)]
    heading = f"**{_markdown(_heading(table))}** (ours / paper)"
    return "\n".join([heading, "", *lines, "", *notes]) + "\n"


def render_latex(table: TableFile) -> str:
    """LaTeX with booktabs: ours / the paper's."""
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\begin{{tabular}}{{l{'c' * len(table.columns)}}}",
        r"\toprule",
        " & ".join(["", *(_latex(column) for column in table.columns)]) + r" \\",
        r"\midrule",
    ]
    for row in table.rows:
        cells = [cell_text(table, row, column) for column in table.columns]
        texts = [f"{_latex(cell.ours)} / {_latex(cell.paper or '–')}" for cell in cells]
        lines.append(" & ".join([_latex(row), *texts]) + r" \\")
    caption = " ".join([f"{_heading(table)}: ours / paper.", *write_notes(table)])
    lines += [r"\bottomrule", r"\end{tabular}", rf"\caption{{{_latex(caption)}}}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def make_page(table: TableFile) -> TablePage:
    """The table as an HTML page."""
    rows = [
        PageRow(
            name=row,
            cells=[_page_cell(cell_text(table, row, column)) for column in table.columns],
        )
        for row in table.rows
    ]
    return TablePage(
        title=table.title,
        subtitle=f"Table {table.number} of the paper, run on {table.data or 'nothing yet'}",
        lede="Large: our score with its 95 % interval. Small: the paper's number.",
        columns=table.columns,
        rows=rows,
        notes=write_notes(table),
        facts=_facts(table),
    )


def _page_cell(cell: CellText) -> PageCell:
    return PageCell(
        score=cell.score or ("failed" if cell.failed else ""),
        beside=cell.interval,
        below=f"paper {cell.paper}" if cell.paper else "",
        failed=cell.failed,
    )


def _facts(table: TableFile) -> list[FactGroup]:
    cells = FactGroup(name="cells", rows=[(cell.label, _describe(cell)) for cell in table.cells])
    recipes = [
        FactGroup(name=f"recipe {name}", rows=fact_rows(content))
        for name, content in table.recipes.items()
    ]
    machines = [
        FactGroup(name=f"environment {name}", rows=list(content.items()))
        for name, content in table.environments.items()
    ]
    return [group for group in (cells, *machines, *recipes) if group.rows]


def _describe(cell: Cell) -> str:
    if cell.result is None:
        return f"{cell.date}, failed: {cell.reason}"
    return (
        f"{cell.date}, {format_duration(cell.seconds)}, seed {cell.seed}, recipe {cell.recipe}, "
        f"environment {cell.environment}, selected on {cell.result.selected_on}"
    )


def _heading(table: TableFile) -> str:
    return f"{table.title} (table {table.number} of the paper), on {table.data or 'nothing yet'}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown(text: str) -> str:
    """The text with the special characters of markdown escaped."""
    flat = " ".join(text.split())
    return "".join(f"\\{letter}" if letter in "\\`*_[]<>|#~" else letter for letter in flat)


def _latex(text: str) -> str:
    """The text with the special characters of LaTeX escaped."""
    return "".join(LATEX.get(letter, letter) for letter in " ".join(text.split()))
