"""A page with one table and notes, and the table of scores by task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from clipset.evaluation.results import Comparison, ProbeResult
from clipset.evaluation.statistics import MEAN
from clipset.files import write_atomic
from clipset.report.content import FactGroup
from clipset.report.page import content_policy, read_asset, template_environment
from clipset.report.wording import (
    format_interval,
    format_p_value,
    format_score,
    metric_name,
    row_name,
    row_order,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageCell:
    """A cell: its score, small text beside and below it, and whether it is marked as failed."""

    score: str = ""
    beside: str = ""
    below: str = ""
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRow:
    """A row of cells."""

    name: str
    cells: Sequence[PageCell]


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePage:
    """The content of a page with one table; a link is a text and its address."""

    title: str
    subtitle: str
    lede: str
    columns: Sequence[str]
    rows: Sequence[PageRow]
    notes: Sequence[str] = ()
    links: Sequence[tuple[str, str]] = ()
    facts: Sequence[FactGroup] = ()


def write_table_page(page: TablePage, path: Path) -> None:
    """Write the page to `path` atomically."""
    write_atomic(path, render_table_page(page).encode("utf-8", errors="replace"))


def render_table_page(page: TablePage) -> str:
    """The page as text."""
    template = template_environment().get_template("table.html.j2")
    return template.render(
        page=page, style=Markup(read_asset("report.css")), policy=content_policy()
    )


def scores_page(title: str, columns: Mapping[str, Sequence[ProbeResult]]) -> TablePage:
    """Scores as a table: a column for each task, a row for each probe."""
    results = [result for column in columns.values() for result in column]
    rows = sorted({(r.features, r.probe) for r in results}, key=lambda row: row_order(*row))
    metrics = ", ".join(sorted({metric_name(result.metric) for result in results}))
    ssl_splits = ", ".join(sorted({result.ssl_split or "unknown" for result in results}))
    pooled = "; in that of a mean, a video of several splits counts once"
    return TablePage(
        title=title,
        subtitle=f"{metrics or 'not scored'}; pre-trained with ssl_split = "
        f"{ssl_splits or 'unknown'}",
        lede=f"Scores with 95 % intervals{pooled if MEAN in columns else ''}.",
        columns=list(columns),
        rows=[
            PageRow(name=row_name(*row), cells=[_cell(column, row) for column in columns.values()])
            for row in rows
        ],
    )


def _cell(results: Sequence[ProbeResult], row: tuple[str, str]) -> PageCell:
    for result in results:
        if (result.features, result.probe) == row:
            return PageCell(
                score=format_score(result.metric, result.value),
                beside=format_interval(result.metric, result.interval),
            )
    return PageCell(below="not run")


def describe_comparisons(comparisons: Sequence[Comparison]) -> list[str]:
    """A sentence for each comparison of means over official splits."""
    sentences = []
    for comparison in comparisons:
        low, high = (format_score(comparison.metric, end) for end in comparison.interval)
        p_value = format_p_value(comparison.p)
        sentences.append(
            f"{row_name(*comparison.key)} minus "
            f"{row_name(*comparison.baseline)}, mean over the splits: "
            f"{format_score(comparison.metric, comparison.difference)} ({low} to {high}), "
            f"p {p_value if p_value.startswith('<') else f'= {p_value}'}; {comparison.n} videos, "
            "resampled jointly in all splits that test them"
        )
    return sentences
