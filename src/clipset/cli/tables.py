"""Results as a person likes to read them in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from clipset.cli.app import print_line, print_table

if TYPE_CHECKING:
    from clipset.evaluation.results import Comparison, LowShotCurve, ProbeResult
    from clipset.pipeline import RunResult


def print_summary(summary: RunResult) -> None:
    for task in dict.fromkeys(result.task for result in summary.records):
        if task:
            print_line(f"{task}:")
        print_records([result for result in summary.records if result.task == task])
    print_comparisons(summary.comparisons)
    for ssl_split in sorted({r.ssl_split for r in summary.records if r.ssl_split}):
        print_line(f"pre-trained without labels on: {ssl_split} videos (ssl_split = {ssl_split})")
    if summary.note:
        print_line(summary.note)
    if summary.failed:
        print_line(f"{summary.failed} videos could not be read; the report lists them")
    if summary.damaged:
        print_line(f"{summary.damaged} videos are damaged but were used; the report lists them")
    print_line("  ".join(f"{name} {seconds:.1f} s" for name, seconds in summary.seconds.items()))
    print_line(f"report: {summary.report}")


def print_records(results: Sequence[ProbeResult]) -> None:
    from clipset.report.wording import row_name

    share = not results[0].is_error
    columns = (
        "probe", "top-1" if share else "squared error", "95 % interval", "videos", "seeds",
        "grid", "selected on",
    )  # fmt: skip
    rows = []
    for result in results:
        counts = (result.n, len(result.seeds), result.num_candidates)
        rows.append(
            (
                row_name(*result.key),
                _figure(result.value, share),
                " – ".join(_figure(end, share) for end in result.interval),
                *("–" if count is None else str(count) for count in counts),
                result.selected_on or "–",
            )
        )
    print_table(columns, rows)


def print_comparisons(comparisons: Sequence[Comparison]) -> None:
    """Paired differences, by a bootstrap over the same test videos."""
    from clipset.evaluation.results import ERROR_METRICS
    from clipset.report.wording import format_p_value, row_name

    if not comparisons:
        return
    share = comparisons[0].metric not in ERROR_METRICS
    rows = [
        (
            row_name(*each.key),
            row_name(*each.baseline),
            _figure(each.difference, share, sign=True),
            " – ".join(_figure(end, share, sign=True) for end in each.interval),
            format_p_value(each.p),
        )
        for each in comparisons
    ]
    print_table(("probe", "baseline", "difference", "95 % interval", "p"), rows)


def _figure(value: float, share: bool, *, sign: bool = False) -> str:
    plus = "+" if sign else ""
    return f"{value:{plus}.1%}" if share else f"{value:{plus}.4g}"


def print_curves(curves: Sequence[LowShotCurve]) -> None:
    from clipset.report.wording import row_name

    points = curves[0].points if curves else ()
    rows = [["videos", *(str(point.videos) for point in points)]]
    for curve in curves:
        scores = (f"{point.value:.1%}" for point in curve.points)
        rows.append([row_name(*curve.key), *scores])
    print_table(("labels", *(f"{point.fraction:.0%}" for point in points)), rows)


def print_backbones(rows: Sequence[Any]) -> None:
    from rich.table import Column

    names = ("dim", "frames", "stride", "size", "licence")
    columns = (Column("name", no_wrap=True), *names, Column("weights", no_wrap=True))
    cells = []
    for row in rows:
        facts = ("–" if getattr(row, name) is None else str(getattr(row, name)) for name in names)
        cells.append((row.name, *facts, "ready" if row.available else "missing"))
    print_table(columns, cells)
    for row in rows:
        if row.available:
            print_line(f"{row.name}: {row.file + ' from ' if row.file else ''}{row.source}")
    for row in rows:
        if not row.available:
            print_line(f"{row.name}: weights are missing; {row.how_to_get}")


def print_check(result: Any) -> None:
    spec = result.spec
    print_line(f"{spec.name}: {spec.frames} frames, stride {spec.stride}, {spec.size} pixels")
    weights = f", {result.parameters:,} parameters" if result.parameters else ""
    print_line(f"{result.engine} on {result.device}{weights}")
    print_line(f"loaded in {result.load_seconds:.1f} s, {result.clips_per_second:.1f} clips/s")
    statistics = ("mean", "std", "min", "max", "norm")
    values = "  ".join(f"{name} {getattr(result, name):.4g}" for name in statistics)
    print_line(f"feature of {spec.dim} numbers: {values}  zeros {result.zeros:.1%}")
    if not result.repeatable:
        print_line("the same clip gave another feature the second time: not a frozen backbone")
