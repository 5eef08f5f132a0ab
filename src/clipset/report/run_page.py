"""The page of a run: of its one task, or a table of several with links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from clipset.evaluation.results import Comparison, ProbeResult, read_records, read_results
from clipset.evaluation.statistics import MEAN
from clipset.files import check_output
from clipset.report.collect import collect_content
from clipset.report.page import write_report
from clipset.report.table_page import describe_comparisons, scores_page, write_table_page
from clipset.runs import read_run


def report_run(folder: str | Path) -> Path:
    """Write the page of a run; with several tasks, a table of them with links."""
    folder = Path(folder)
    run, path = read_run(folder), folder / "report.html"
    check_output(path, "file")
    results = read_results(folder) if (folder / "results.json").is_file() else []
    steps = [step["name"] for step in run.get("steps", [])]
    if any(result.task for result in results):
        names = [name for name in steps if (folder / name / "results.json").is_file()]
        by_task = {name: read_results(folder / name) for name in names}
        _report_tasks(folder, str(run.get("name", "")), by_task, results)
    else:
        write_report(collect_content(folder), path)
    return path


def _report_tasks(
    folder: Path,
    name: str,
    by_task: Mapping[str, Sequence[ProbeResult]],
    joined: Sequence[ProbeResult],
) -> None:
    """Write the page of a run with several tasks, with a link to the page of each."""
    means = [result for result in joined if result.task == MEAN]
    page = scores_page(name, {**by_task, **({MEAN: means} if means else {})})
    notes = describe_comparisons(read_records(folder / "comparisons.json", Comparison))
    links = [(f"{task}: report", f"{quote(task)}/report.html") for task in by_task]
    write_table_page(replace(page, links=links, notes=notes), folder / "report.html")
