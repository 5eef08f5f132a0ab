"""`run`, `demo`, `report`: the whole walk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from clipset.cli.app import COMMON, Changes, Common, app, print_line, show_result
from clipset.cli.tables import print_summary


@app.command
def run(
    videos: Path,
    *,
    out: Path,
    recipe: Path | None = None,
    retry_failed: Annotated[bool, Parameter(negative="")] = False,
    set: Changes = (),
    allow_leaks: Annotated[bool, Parameter(negative="")] = False,
    common: Common = COMMON,
) -> None:
    """The main job: from videos to a report. Run again, it goes on where it stopped.

    Exits with 1 if every video failed.

    Example: clipset run ~/videos --out runs/first

    Parameters
    ----------
    videos
        A folder (sub-folders are labels) or a catalog (.csv with a column `path`).
    out
        Where everything goes: store, model, results.json, report.html.
    recipe
        A TOML file with the settings of all steps; the defaults otherwise.
    retry_failed
        Try every failed video again, not only those whose cause may be gone.
    set
        One setting, such as `--set pretrain.epochs=100`; may be repeated.
    allow_leaks
        Go on where splits share a file or a group; what they share is said.
    """
    from clipset.pipeline import run
    from clipset.recipe import read_recipe

    changes = (*set, *(["extract.retry_failed=true"] if retry_failed else []))
    summary = run(
        videos, out, read_recipe(recipe, changes), seed=common.seed, device=common.device,
        allow_leaks=allow_leaks,
    )  # fmt: skip
    show_result(summary, common, lambda: print_summary(summary))


@app.command
def demo(*, out: Path = Path("demo"), videos: int = 240, common: Common = COMMON) -> None:
    """Render videos, run the main job on them, and print the table. CPU only, in minutes.

    The label of a video is the order in which four things happen: no single clip tells it.

    Example: clipset demo --out demo

    Parameters
    ----------
    out
        Where the videos and the run go.
    videos
        How many videos are rendered (at least 16).
    """
    from clipset.pipeline import run_demo

    summary = run_demo(out, videos=videos, seed=common.seed, device=common.device)
    show_result(summary, common, lambda: print_summary(summary))


@app.command
def report(run: Path, *, common: Common = COMMON) -> None:
    """Write the report of a run again: one HTML file that opens offline.

    Example: clipset report runs/first

    Parameters
    ----------
    run
        The folder of a run.
    """
    from clipset.pipeline import report_run

    page = report_run(run)
    show_result({"report": page}, common, lambda: print_line(page))
