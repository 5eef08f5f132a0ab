"""`clipset run`: from videos to a report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from clipset.cli.app import TRAINING, Changes, Switch, Training, app, show_result
from clipset.cli.tables import print_run


@app.command(name="run")
def run_command(
    videos: Path,
    /,
    *,
    out: Path,
    preset: str | None = None,
    backbone: str | None = None,
    epochs: int | None = None,
    retry_failed: Annotated[bool | None, Switch] = None,
    recipe: Path | None = None,
    set: Changes = (),
    allow_leaks: Annotated[bool, Switch, Parameter(show_default=False)] = False,
    common: Training = TRAINING,
) -> None:
    """Extract features, pre-train, evaluate and write a report. Run again, it resumes.

    Exits with 1 if every video failed.

    Example: clipset run ~/videos --out runs/first

    Example: clipset run videos.csv --out runs/paper --preset paper --set extract.frames=16

    Parameters
    ----------
    videos
        A folder (sub-folders are labels) or a catalog (.csv with a column `path`).
    out
        The run's folder: store, model, vectors, results.json, report.html.
    preset
        Named settings for all steps: recommended, paper or official.
    backbone
        The frozen network; `clipset backbones` lists them.
    epochs
        Epochs of pre-training.
    retry_failed
        Decode every failed video again, not only those with a transient error.
    recipe
        A TOML file with settings; `clipset settings --toml` prints one.
    set
        One setting, such as `--set pretrain.epochs=100`; may be repeated.
    allow_leaks
        Continue although splits share files or groups, and list them.
    """
    from clipset.pipeline import run
    from clipset.recipe import read_recipe

    flags = {
        "preset": preset,
        "extract.backbone": backbone,
        "extract.retry_failed": retry_failed,
        "pretrain.epochs": epochs,
    }
    result = run(
        videos, out, read_recipe(recipe, set, flags), seed=common.seed, device=common.device,
        allow_leaks=allow_leaks,
    )  # fmt: skip
    show_result(result, common, lambda: print_run(result))
