"""`clipset estimate`: time, disk and memory of a planned run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from clipset.cli import flags
from clipset.cli.app import app, make_table, show_result
from clipset.text import counted

if TYPE_CHECKING:
    from rich.table import Table


@app.command(name="estimate")
def estimate_command(
    source: Path,
    /,
    *,
    videos: flags.Int | None = None,
    machines: flags.Int = 1,
    clips_per_second: float | None = None,
    samples_per_second: float | None = None,
    backbone: str | None = None,
    workers: flags.Workers = None,
    recipe: flags.RecipeFile = None,
    set: flags.Changes = (),
    common: flags.Computing = flags.COMPUTING,
) -> None:
    """Estimate time, disk and memory of all steps of a run. Nothing is written.

    The videos are extracted for a few seconds; pre-training and probes are trained for a few epochs
    on random features.

    Example: clipset estimate videos --videos 240000 --clips-per-second 900

    Args:
        source: A folder of videos, a catalog, or a feature store.
        videos: Estimate for this many videos of the same kind.
        machines: Machines that share the extraction (`clipset extract --part`).
        clips_per_second: Speed of the backbone on another machine, in clips per second (measured on
            this machine by default).
        samples_per_second: Speed of pre-training on another machine, in videos per second (measured
            on this machine by default).
        backbone: The frozen network; `clipset backbones` lists the names.
    """
    from clipset.config import to_mapping
    from clipset.planning.run_estimate import estimate_run
    from clipset.recipe import read_recipe
    from clipset.report.wording import format_duration

    typed_settings = {"extract.backbone": backbone, "extract.workers": workers}
    estimate = estimate_run(
        source,
        read_recipe(recipe, set, typed_settings),
        num_videos=videos,
        num_machines=machines,
        clips_per_second=clips_per_second,
        samples_per_second=samples_per_second,
        device=common.device,
    )
    step_rows = [
        (
            step.name,
            f"{'at most ' if step.at_most else ''}{format_duration(step.seconds)}",
            _size(step.disk_bytes),
            _size(step.memory_bytes),
        )
        for step in estimate.steps
    ]
    total = sum(step.seconds for step in estimate.steps)
    summary_line = (
        f"{counted(estimate.videos, 'video')}, {counted(estimate.clips, 'clip')}; about "
        f"{format_duration(total)} in all; {_size(estimate.free_bytes)} free on this disk"
    )
    step_table = make_table(("step", "time", "disk", "memory"), step_rows)
    lines: list[str | Table] = [step_table, summary_line, *estimate.notes]
    show_result(to_mapping(estimate), common, lines)


def _size(num_bytes: int | None) -> str:
    if num_bytes is None:
        return "–"
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.1f} MB"
