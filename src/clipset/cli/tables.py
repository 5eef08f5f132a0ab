"""Tables and lines that several verbs print."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from clipset.cli.app import Common, print_line, print_table
from clipset.text import visible

if TYPE_CHECKING:
    from clipset.evaluation.results import Comparison, LowShotCurve, ProbeResult
    from clipset.pipeline import RunResult


def print_run(result: RunResult) -> None:
    """The scores of a run, then what a reader should know about them."""
    records = result.scores
    for task in dict.fromkeys(record.task for record in records):
        if task:
            print_line(f"{task}:")
        print_records([record for record in records if record.task == task])
    print_comparisons(result.comparisons)
    num_pretrainings = max((record.num_pretrainings or 1 for record in records), default=1)
    if num_pretrainings > 1:
        print_line(f"SCALE rows are means over {num_pretrainings} pre-trainings")
    for ssl_split in sorted({r.ssl_split for r in records if r.ssl_split}):
        print_line(f"pre-trained without labels on: {ssl_split} videos (ssl_split = {ssl_split})")
    if result.note:
        print_line(result.note)
    if result.failed:
        print_line(f"{result.failed} videos could not be read; the report lists them")
    if result.damaged:
        print_line(f"{result.damaged} damaged videos were used; the report lists them")
    print_line("  ".join(f"{name} {seconds:.1f} s" for name, seconds in result.seconds.items()))
    print_line(f"report: {result.report}")


def print_records(results: Sequence[ProbeResult]) -> None:
    """The scores of probes, with their intervals."""
    from clipset.report.wording import row_name

    percent = not results[0].is_error
    columns = (
        "probe", "top-1" if percent else "squared error", "95 % interval", "videos", "seeds",
        "grid", "selected on",
    )  # fmt: skip
    rows = []
    for result in results:
        counts = (result.n, len(result.seeds), result.num_candidates)
        rows.append(
            (
                row_name(*result.key),
                _figure(result.value, percent),
                " – ".join(_figure(end, percent) for end in result.interval),
                *("–" if count is None else str(count) for count in counts),
                result.selected_on or "–",
            )
        )
    print_table(columns, rows)


def print_comparisons(comparisons: Sequence[Comparison]) -> None:
    """Paired differences on the same test videos."""
    from clipset.evaluation.results import ERROR_METRICS
    from clipset.report.wording import format_p_value, row_name

    if not comparisons:
        return
    percent = comparisons[0].metric not in ERROR_METRICS
    rows = [
        (
            row_name(*comparison.key),
            row_name(*comparison.baseline),
            _figure(comparison.difference, percent, sign=True),
            " – ".join(_figure(end, percent, sign=True) for end in comparison.interval),
            format_p_value(comparison.p),
        )
        for comparison in comparisons
    ]
    print_table(("probe", "baseline", "difference", "95 % interval", "p"), rows)


def _figure(value: float, percent: bool, *, sign: bool = False) -> str:
    plus = "+" if sign else ""
    return f"{value:{plus}.1%}" if percent else f"{value:{plus}.4g}"


def print_curves(curves: Sequence[LowShotCurve]) -> None:
    """Scores by fraction of the labels."""
    from clipset.report.wording import row_name

    points = curves[0].points if curves else ()
    rows = [["videos", *(str(point.videos) for point in points)]]
    for curve in curves:
        scores = (f"{point.value:.1%}" for point in curve.points)
        rows.append([row_name(*curve.key), *scores])
    print_table(("labels", *(f"{point.fraction:.0%}" for point in points)), rows)


def report_failures(failed: Mapping[str, str], total: int, common: Common) -> None:
    """Name the videos that could not be read; exit with 1 if none could."""
    if not common.json:
        for video, reason in failed.items():
            sys.stderr.write(visible(f"clipset: {video}: {' '.join(reason.split())}") + "\n")
    if len(failed) == total:
        raise SystemExit(1)
