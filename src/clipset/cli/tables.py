"""Tables and lines that several verbs print."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from clipset.cli import flags
from clipset.cli.app import make_table
from clipset.text import counted, visible

if TYPE_CHECKING:
    from rich.table import Table

    from clipset.evaluation.results import Comparison, LowShotCurve, ProbeResult, RetrievalResult
    from clipset.pipeline import RunResult


def run_lines(result: RunResult) -> Iterator[str | Table]:
    """The scores of a run, then what a reader should know about them."""
    probe_results = result.scores
    for task_name in dict.fromkeys(score.task for score in probe_results):
        if task_name:
            yield f"{task_name}:"
        yield score_table([score for score in probe_results if score.task == task_name])
    if result.comparisons:
        yield comparison_table(result.comparisons)
    if result.retrieval:
        yield retrieval_table(result.retrieval)
    num_pretrainings = max((score.num_pretrainings or 1 for score in probe_results), default=1)
    if num_pretrainings > 1:
        yield f"SCALE rows are means over {num_pretrainings} pre-trainings"
    for ssl_split in sorted({score.ssl_split for score in probe_results if score.ssl_split}):
        yield f"pre-trained without labels on: {ssl_split} videos (ssl_split = {ssl_split})"
    if result.note:
        yield result.note
    if result.failed:
        yield f"{counted(result.failed, 'video')} could not be read; the report lists them"
    if result.damaged:
        damaged = counted(result.damaged, "damaged video was", "damaged videos were")
        yield f"{damaged} used; the report lists them"
    yield "  ".join(f"{name} {seconds:.1f} s" for name, seconds in result.seconds.items())
    yield f"report: {result.report}"
    if result.vectors.is_dir():  # not of several tasks
        yield f"search and label the videos: clipset serve {shlex.quote(str(result.folder))}"


def score_table(results: Sequence[ProbeResult]) -> Table:
    """The scores of probes, with their intervals."""
    from clipset.report.wording import row_name

    number_format = "{:.4g}" if results[0].is_error else "{:.1%}"
    metric = "squared error" if results[0].is_error else "top-1"
    rows = [
        (
            row_name(*result.key),
            number_format.format(result.value),
            " – ".join(map(number_format.format, result.interval)),
            str(result.n),
            str(len(result.seeds)),
            "–" if result.num_candidates is None else str(result.num_candidates),
            result.selected_on or "–",
        )
        for result in results
    ]
    columns = ("probe", metric, "95 % interval", "videos", "seeds", "grid", "selected on")
    return make_table(columns, rows)


def comparison_table(comparisons: Sequence[Comparison]) -> Table:
    """Paired differences on the same test videos."""
    from clipset.evaluation.results import ERROR_METRICS
    from clipset.report.wording import format_p_value, row_name

    number_format = "{:+.4g}" if comparisons[0].metric in ERROR_METRICS else "{:+.1%}"
    rows = [
        (
            row_name(*comparison.key),
            row_name(*comparison.baseline),
            number_format.format(comparison.difference),
            " – ".join(map(number_format.format, comparison.interval)),
            format_p_value(comparison.p),
        )
        for comparison in comparisons
    ]
    return make_table(("probe", "baseline", "difference", "95 % interval", "p"), rows)


def retrieval_table(results: Sequence[RetrievalResult]) -> Table:
    """How well the training videos of a test video's label are found."""
    from clipset.report.wording import row_name

    ranks = list(results[0].recall)
    rows = [
        (
            row_name(result.features, result.vectors),
            f"{result.mean_average_precision:.1%}",
            " – ".join(map("{:.1%}".format, result.interval)),
            *(f"{result.recall[rank]:.1%}" if rank in result.recall else "–" for rank in ranks),
        )
        for result in results
    ]
    recall_names = [f"recall@{rank}" for rank in ranks]
    return make_table(("retrieval by", "mAP", "95 % interval", *recall_names), rows)


def curve_table(curves: Sequence[LowShotCurve]) -> Table:
    """Scores by fraction of the labels."""
    from clipset.report.wording import row_name

    points = curves[0].points if curves else ()
    rows = [["videos", *(str(point.videos) for point in points)]]
    rows += [[row_name(*c.key), *(f"{point.value:.1%}" for point in c.points)] for c in curves]
    return make_table(("labels", *(f"{point.fraction:.0%}" for point in points)), rows)


def report_failures(failed: Mapping[str, str], total: int, common: flags.Common) -> None:
    """Name the videos that could not be read; exit with 1 if none could."""
    if not common.json:
        for video, reason in failed.items():
            sys.stderr.write(visible(f"clipset: {video}: {' '.join(reason.split())}") + "\n")
    if len(failed) == total:
        raise SystemExit(1)
