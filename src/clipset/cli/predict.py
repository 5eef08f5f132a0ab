"""`clipset predict`: labels of new videos."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from clipset.cli.app import COMPUTING, Computing, app, print_line, print_table, show_result
from clipset.cli.tables import report_failures
from clipset.inference import DEFAULT_TOP
from clipset.probes.config import ProbeName
from clipset.text import csv_text


@app.command(name="predict")
def predict_command(
    *videos: Path,
    run: Path,
    top: int = DEFAULT_TOP,
    window: float | None = None,
    step: float | None = None,
    timeline: bool | None = None,
    csv: Path | None = None,
    probe: ProbeName | None = None,
    backbone: str | None = None,
    workers: int | None = None,
    common: Computing = COMPUTING,
) -> None:
    """Predict the labels of new videos, with calibrated probabilities. Exits with 1 if all fail.

    The first time, a classifier is selected, calibrated and trained on the run's training videos.
    A video much longer than those also gets a timeline.

    Example: clipset predict new.mp4 --run runs/first

    Example: clipset predict new.mp4 --run runs/first --probe scale_linear

    Example: clipset predict film.mp4 --run runs/first --window 4 --step 2 --csv timeline.csv

    Parameters
    ----------
    videos
        Files, folders or catalogs.
    run
        The folder of a finished run.
    top
        Labels per video.
    window
        Seconds of one window of a timeline (the run's median duration by default).
    step
        Seconds between windows (half a window by default).
    timeline
        Make a timeline of every video, or of none; by default of the long ones.
    csv
        A file for the rows: video, start, end, label, probability.
    probe
        The probe to predict with (the best on validation videos by default).
    backbone
        The run's backbone, if that is a file or a hub model: mine.py:make, hf:FOLDER.
    workers
        Decoding processes (one per core, at most 8; 0: decode in the main process).
    """
    from clipset.files import check_output
    from clipset.inference.run import load_run

    if csv is not None:
        check_output(csv, "file")
    opened = load_run(run, device=common.device, workers=workers, probe=probe, backbone=backbone)
    predictions = opened.predict(videos, top=top, window=window, step=step, timeline=timeline)
    card = opened.head.card
    failed = {
        prediction.video: prediction.reason for prediction in predictions if prediction.reason
    }
    result = {
        "run": run,
        "classifier": {
            "features": card.key.features, "probe": card.key.probe, "selected_on": card.selected_on,
            "reason": card.reason, "candidates": card.candidates,
            "temperature": card.temperature, "calibration_error": card.calibration_error,
        },
        "videos": [prediction for prediction in predictions if prediction.reason is None],
        "failed": failed,
    }  # fmt: skip
    try:
        if csv is not None:
            write_rows(csv, predictions)
    finally:  # predictions are printed even if they cannot be written
        show_result(result, common, lambda: print_predictions(predictions, card))
    report_failures(failed, len(predictions), common)


def print_predictions(predictions: Iterable[Any], card: Any) -> None:
    """One line for each label, then the timelines."""
    from clipset.report.wording import row_name

    readable = [prediction for prediction in predictions if prediction.reason is None]
    rows = [
        (prediction.video if index == 0 else "", top_class.label, f"{top_class.probability:.1%}")
        for prediction in readable
        for index, top_class in enumerate(prediction.classes)
    ]
    if readable:
        print_table(("video", "label", "probability"), rows)
    for prediction in readable:
        if prediction.timeline:
            print_line(f"{prediction.video}, from window to window:")
        for moment in prediction.timeline:
            span = f"{moment.start:8.1f} s – {moment.end:.1f} s"
            print_line(f"{span}  {moment.label}  {moment.probability:.1%}")
    print_line(f"{row_name(*card.key)}: {card.reason}")


def write_rows(path: Path, predictions: Iterable[Any]) -> None:
    """Write the labels of each video, and its timeline, as a table; whole videos have no start.

    A name or label that a spreadsheet would take for a formula has an apostrophe before it.
    """
    from clipset.files import write_atomic

    rows: list[tuple[str, ...]] = [("video", "start", "end", "label", "probability")]
    for prediction in predictions:
        for top_class in prediction.classes:
            rows.append((prediction.video, "", "", top_class.label, f"{top_class.probability:.6f}"))
        for moment in prediction.timeline:
            times = f"{moment.start:.3f}", f"{moment.end:.3f}"
            rows.append((prediction.video, *times, moment.label, f"{moment.probability:.6f}"))
    write_atomic(path, csv_text(rows).encode())
