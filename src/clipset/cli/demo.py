"""`clipset demo`: render videos and run the pipeline on them."""

from __future__ import annotations

from pathlib import Path

from clipset.cli import flags
from clipset.cli.app import app, show_result
from clipset.cli.tables import run_lines


@app.command(name="demo")
def demo_command(
    *, out: Path = Path("demo"), videos: flags.Int = 200, common: flags.Training = flags.TRAINING
) -> None:
    """Render videos, run the pipeline on them, and print the scores. Takes minutes, needs no GPU.

    The label of a video is the order of four events: no single clip shows it.

    Example: clipset demo --out demo

    Args:
        out: The folder of the videos and of the run.
        videos: Number of videos (at least 16).
    """
    from clipset.pipeline import run_demo

    run_result = run_demo(out, videos=videos, seed=common.random_seed, device=common.device)
    show_result(run_result, common, run_lines(run_result))
