"""A table as text, markdown, LaTeX and a page: ours next to the paper's, and what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clipset.config import write_atomic
from clipset.report.content import FactGroup
from clipset.report.parts import mean_record, write_interval, write_score
from clipset.report.table import PageCell, PageRow, TablePage, write_table_page
from clipset.report.wording import duration, metric_name
from clipset.reproduce.paper import BACKBONES
from clipset.reproduce.table import TableFile, write_table

FILES = ("table.txt", "table.md", "table.tex", "table.html")
LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
    "ρ": r"$\rho$", "×": r"$\times$", "–": "--", "·": r"$\cdot$", "…": r"\ldots{}",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What a place in the table shows: our score, or why there is none, and the paper's."""

    score: str = ""
    interval: str = ""
    failed: bool = False
    paper: str = ""

    @property
    def ours(self) -> str:
        """Our part in one piece."""
        return f"{self.score or ('failed' if self.failed else '–')} {self.interval}".strip()


def write_renderings(table: TableFile, folder: Path) -> None:
    """Write `table.json` and all forms of the table beside it."""
    write_table(table, folder)
    texts = (render_text(table), render_markdown(table), render_latex(table))
    for name, text in zip(FILES, texts, strict=False):
        write_atomic(folder / name, text.encode("utf-8", errors="replace"))
    write_table_page(make_page(table), folder / "table.html")


def show(table: TableFile, row: str, column: str) -> Shown:
    """What stands in a place of the table."""
    printed = next((text for r, c, text in table.paper if (r, c) == (row, column)), "")
    record = score_of(table, row, column)
    failed = any(cell.status == "failed" for cell in table.find(row, column))
    if record is None:
        return Shown(failed=failed, paper=printed)
    return Shown(score=write_score(record), interval=write_interval(record), paper=printed)


def score_of(table: TableFile, row: str, column: str) -> dict[str, Any] | None:
    """Our record for a place: the mean over the parts, once all of them are finished."""
    cells = table.find(row, column)
    done = {cell.part: cell.record for cell in cells if cell.status == "done"}
    if not done or len(done) < len(cells):
        return None
    parts = cells[0].parts
    if not parts:
        return done[""]
    return mean_record({part: done[part] for part in parts}) if set(done) == set(parts) else None


def notes(table: TableFile) -> list[str]:
    """What a reader has to know: how scores were made, what failed, what is missing and why."""
    found = _how(table)
    failed: dict[str, list[str]] = {}
    for cell in table.cells:
        if cell.status == "failed":
            place = f"{cell.row} · {cell.column}{f' · {cell.part}' if cell.part else ''}"
            failed.setdefault(cell.reason, []).append(place)
    found += [f"Failed: {'; '.join(places)}: {reason}" for reason, places in failed.items()]
    found += [f"Not here: {name}: {where}" for name, where in table.missing.items()]
    idle = [name for name in table.columns if not any(c.column == name for c in table.cells)]
    if idle and table.table != "lvu":
        names = sorted({BACKBONES[t] for name in idle for t in name.split(", ") if t in BACKBONES})
        found.append(
            f"Not run: the columns {'; '.join(idle)}. Name the backbones with --backbone "
            f"({', '.join(names)})."
        )
    if table.quoted:
        found.append(f"Quoted by the paper from others, not run: {', '.join(table.quoted)}.")
    return found


def _how(table: TableFile) -> list[str]:
    records = [cell.record for cell in table.cells if cell.status == "done"]
    if not records:
        return ["Nothing has been run yet: all numbers are the paper's."]
    said = {
        name: ", ".join(sorted({str(record[name]) for record in records if name in record}))
        for name in ("metric", "split", "ssl_split", "label_fraction")
    }
    metrics = ", ".join(metric_name(name) for name in said["metric"].split(", "))
    seeds = sorted({len(record["seeds"]) for record in records})
    share = f", labels of a share of {said['label_fraction']}" if said["label_fraction"] else ""
    lines = [
        f"Ours: {metrics} on the split {said['split']} with 95 % intervals, "
        f"seeds: {' or '.join(map(str, seeds))}, pre-trained with ssl_split = {said['ssl_split']}"
        f"{share}. Rates and epochs were never chosen on the judged videos; the paper does not say "
        f"on what it chose."
    ]
    for parts in sorted({cell.parts for cell in table.cells if cell.parts}):
        lines.append(f"Ours is the mean over {', '.join(parts)}; the paper's is of split 1.")
    if table.table == "lvu":
        lines.append("The paper's numbers fit the size of LVU's validation split.")
    return lines


def render_text(table: TableFile) -> str:
    """The table in plain characters: two lines for each row, ours and the paper's."""
    columns = table.columns
    lines = [["", "", *columns]]
    for row in table.rows:
        shown = [show(table, row, column) for column in columns]
        lines.append([row, "ours", *(each.ours for each in shown)])
        if any(each.paper for each in shown):
            lines.append(["", "paper", *(each.paper or "–" for each in shown)])
    widths = [max(len(line[place]) for line in lines) for place in range(len(columns) + 2)]
    told = [
        "  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    return "\n".join([_heading(table), "", *told, "", *notes(table)]) + "\n"


def render_markdown(table: TableFile) -> str:
    """The table for a README: ours, a slash, the paper's."""
    header = ["", *(_markdown(column) for column in table.columns)]
    lines = [_line(header), _line(["---"] * len(header))]
    for row in table.rows:
        cells = [show(table, row, column) for column in table.columns]
        told = [f"{_markdown(cell.ours)} / {_markdown(cell.paper or '–')}" for cell in cells]
        lines.append(_line([_markdown(row), *told]))
    said = [f"- {_markdown(note)}" for note in notes(table)]
    heading = f"**{_markdown(_heading(table))}** (ours / paper)"
    return "\n".join([heading, "", *lines, "", *said]) + "\n"


def render_latex(table: TableFile) -> str:
    """The table for a paper (booktabs): ours, a slash, the paper's."""
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\begin{{tabular}}{{l{'c' * len(table.columns)}}}",
        r"\toprule",
        " & ".join(["", *(_latex(column) for column in table.columns)]) + r" \\",
        r"\midrule",
    ]
    for row in table.rows:
        cells = [show(table, row, column) for column in table.columns]
        told = [f"{_latex(cell.ours)} / {_latex(cell.paper or '–')}" for cell in cells]
        lines.append(" & ".join([_latex(row), *told]) + r" \\")
    caption = " ".join([f"{_heading(table)}: ours / paper.", *notes(table)])
    lines += [r"\bottomrule", r"\end{tabular}", rf"\caption{{{_latex(caption)}}}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def make_page(table: TableFile) -> TablePage:
    """The table as a page."""
    rows = [
        PageRow(
            name=row,
            cells=[_page_cell(show(table, row, column)) for column in table.columns],
        )
        for row in table.rows
    ]
    return TablePage(
        title=table.title,
        subtitle=f"Table {table.number} of the paper, run on {table.data or 'nothing yet'}",
        lede="Large: ours, with its 95 % interval. Small, below: the number in the paper.",
        columns=table.columns,
        rows=rows,
        notes=notes(table),
        facts=_facts(table),
    )


def _page_cell(shown: Shown) -> PageCell:
    figure = shown.score or ("failed" if shown.failed else "")
    below = f"paper {shown.paper}" if shown.paper else ""
    return PageCell(figure=figure, beside=shown.interval, below=below, failed=shown.failed)


def _facts(table: TableFile) -> list[FactGroup]:
    cells = FactGroup(
        name="cells",
        rows=[
            (
                f"{cell.row} · {cell.column}{f' · {cell.part}' if cell.part else ''}",
                f"{cell.date}, {duration(cell.seconds)}, seed {cell.seed}, recipe {cell.recipe}, "
                f"environment {cell.environment}, chosen on {cell.record.get('selected_on')}"
                if cell.status == "done"
                else f"{cell.date}, failed: {cell.reason}",
            )
            for cell in table.cells
        ],
    )
    recipes = [
        FactGroup(name=f"recipe {name}", rows=_flat(content, ""))
        for name, content in table.recipes.items()
    ]
    machines = [
        FactGroup(name=f"environment {name}", rows=list(content.items()))
        for name, content in table.environments.items()
    ]
    return [group for group in (cells, *machines, *recipes) if group.rows]


def _flat(mapping: dict[str, Any], prefix: str) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for name, value in mapping.items():
        if isinstance(value, dict):
            rows += _flat(value, f"{prefix}{name}.")
        else:
            rows.append((f"{prefix}{name}", str(value)))
    return rows


def _heading(table: TableFile) -> str:
    return f"{table.title} (table {table.number} of the paper), on {table.data or 'nothing yet'}"


def _line(words: Sequence[str]) -> str:
    return f"| {' | '.join(words)} |"


def _markdown(text: str) -> str:
    """The text with all that markdown would take for its own."""
    flat = " ".join(text.split())
    return "".join(f"\\{letter}" if letter in "\\`*_[]<>|#~" else letter for letter in flat)


def _latex(text: str) -> str:
    """The text with all that LaTeX would take for its own."""
    return "".join(LATEX.get(letter, letter) for letter in " ".join(text.split()))
