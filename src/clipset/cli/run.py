"""`clipset run`: from videos to a report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from clipset.cli import flags
from clipset.cli.app import app, show_result
from clipset.cli.tables import run_lines


@app.command(name="run")
def run_command(
    videos: Path,
    /,
    *,
    out: Path,
    preset: flags.Preset = None,
    backbone: str | None = None,
    epochs: flags.Int | None = None,
    minutes: float | None = None,
    retry_failed: Annotated[bool | None, flags.SWITCH] = None,
    recipe: flags.RecipeFile = None,
    set: flags.Changes = (),
    allow_leaks: flags.AllowLeaks = False,
    common: flags.Training = flags.TRAINING,
) -> None:
    """Extract features, pre-train, evaluate and write a report. Run again, it resumes.

    Exits with 1 if every video failed.

    Example: clipset run ~/videos --out runs/first

    Example: clipset run videos.csv --out runs/paper --preset paper \\
        --set extract.frames=16

    Args:
        videos: A folder (sub-folders are labels) or a catalog (.csv with a column `path`).
        out: The run's folder: store, model, vectors, results.json, report.html.
        backbone: The frozen network; `clipset backbones` lists the names.
        epochs: Epochs of pre-training (chosen from the data by default).
        minutes: Time for the whole run: pre-training and probes are cut to fit, extraction is not.
        retry_failed: Decode all failed videos again (by default only those with an error that may
            be gone, such as a missing file or a timeout).
    """
    from clipset.pipeline import run
    from clipset.recipe import read_recipe

    typed_settings = {
        "preset": preset,
        "extract.backbone": backbone,
        "extract.retry_failed": retry_failed,
        "pretrain.epochs": epochs,
    }
    run_recipe, seed = read_recipe(recipe, set, typed_settings), common.random_seed
    run_result = run(
        videos, out, run_recipe, seed=seed, device=common.device, allow_leaks=allow_leaks,
        minutes=minutes,
    )  # fmt: skip
    show_result(run_result, common, run_lines(run_result))
