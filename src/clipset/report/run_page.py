"""The page of a run: of its one task, or a table of several with links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from clipset.evaluation.results import Comparison, ProbeResult, read_records, read_results
from clipset.evaluation.statistics import MEAN
from clipset.files import check_output
from clipset.report.collect import collect_content
from clipset.report.page import PageCell, TablePage, write_report, write_table_page
from clipset.report.wording import (
    format_interval,
    format_p_value,
    format_score,
    metric_name,
    row_name,
    row_order,
)
from clipset.runs import read_run


def report_run(run_folder: str | Path) -> Path:
    """Write the page of a run; with several tasks, a table of them with links."""
    run_folder = Path(run_folder)
    run_record, page_path = read_run(run_folder), run_folder / "report.html"
    check_output(page_path, "file")
    results = read_results(run_folder) if (run_folder / "results.json").is_file() else []
    if not any(result.task for result in results):
        write_report(collect_content(run_folder), page_path)
        return page_path
    step_names = [step["name"] for step in run_record.get("steps", [])]
    task_names = [name for name in step_names if (run_folder / name / "results.json").is_file()]
    by_task: dict[str, Sequence[ProbeResult]] = {
        task: read_results(run_folder / task) for task in task_names
    }
    mean_results = [result for result in results if result.task == MEAN]
    comparisons = read_records(run_folder / "comparisons.json", Comparison)
    page = _tasks_page(str(run_record.get("name", "")), by_task, mean_results, comparisons)
    write_table_page(page, page_path)
    return page_path


def _tasks_page(
    title: str,
    by_task: Mapping[str, Sequence[ProbeResult]],
    means: Sequence[ProbeResult],
    comparisons: Sequence[Comparison],
) -> TablePage:
    """A column for each task, a row for each probe, and a link to the report of each task."""
    columns = {**by_task, **({MEAN: means} if means else {})}
    results = [result for column in columns.values() for result in column]
    probe_keys = sorted({result.key for result in results}, key=lambda key: row_order(*key))
    metric_names = ", ".join(sorted({metric_name(result.metric) for result in results}))
    ssl_splits = ", ".join(sorted({result.ssl_split or "unknown" for result in results}))
    pooled_note = "; in that of a mean, a video of several splits counts once" if means else ""
    return TablePage(
        title=title,
        subtitle=f"{metric_names or 'not scored'}; pre-trained with ssl_split = "
        f"{ssl_splits or 'unknown'}",
        lede=f"Scores with 95 % intervals{pooled_note}.",
        columns=list(columns),
        rows=[
            (row_name(*key), [_cell(column, key) for column in columns.values()])
            for key in probe_keys
        ],
        notes=[_describe(comparison) for comparison in comparisons],
        links=[(f"{task}: report", f"{quote(task)}/report.html") for task in by_task],
    )


def _cell(results: Sequence[ProbeResult], probe_key: tuple[str, str]) -> PageCell:
    result = next((result for result in results if result.key == probe_key), None)
    if result is None:
        return PageCell(note="not run")
    return PageCell(
        score=format_score(result.metric, result.value),
        interval=format_interval(result.metric, result.interval),
    )


def _describe(comparison: Comparison) -> str:
    """A comparison of means over official splits as a sentence."""
    difference, low, high = (
        format_score(comparison.metric, value)
        for value in (comparison.difference, *comparison.interval)
    )
    p_value = format_p_value(comparison.p)
    return (
        f"{row_name(*comparison.key)} minus {row_name(*comparison.baseline)}, mean over the "
        f"splits: {difference} ({low} to {high}), "
        f"p {p_value if p_value.startswith('<') else f'= {p_value}'}; {comparison.n} videos, "
        "resampled jointly in all splits that test them"
    )
