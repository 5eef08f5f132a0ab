"""`clipset predict`: labels of new videos."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from clipset.cli import flags
from clipset.cli.app import app, make_table, show_result
from clipset.cli.tables import report_failures
from clipset.inference import DEFAULT_TOP
from clipset.probes.config import ProbeName
from clipset.text import csv_text

if TYPE_CHECKING:
    from rich.table import Table


@app.command(name="predict")
def predict_command(
    *videos: Path,
    run: Path,
    top: int = DEFAULT_TOP,
    window: float | None = None,
    step: float | None = None,
    timeline: bool | None = None,
    csv: Path | None = None,
    probe: ProbeName | Literal["labels"] | None = None,
    backbone: flags.OwnBackbone = None,
    workers: flags.Workers = None,
    common: flags.Computing = flags.COMPUTING,
) -> None:
    """Predict the labels of new videos, with calibrated probabilities. Exits with 1 if all fail.

    The first time, a classifier is selected, calibrated and trained on the run's training videos.
    A video much longer than those also gets a timeline.

    Example: clipset predict new.mp4 --run runs/first

    Example: clipset predict new.mp4 --run runs/first --probe scale_linear

    Example: clipset predict new.mp4 --run runs/first --probe labels

    Example: clipset predict film.mp4 --run runs/first --window 4 --step 2 --csv timeline.csv

    Args:
        videos: Files, folders or catalogs.
        run: The folder of a finished run.
        top: Labels per video.
        window: Seconds of one window of a timeline (the run's median duration by default).
        step: Seconds between windows (half a window by default).
        timeline: Make a timeline of every video, or of none; by default of the long ones.
        csv: A file for the rows: video, start, end, label, probability.
        probe: The probe to predict with (the best on validation videos by default); labels: the
            head that was exported from the page of `clipset serve`.
    """
    from clipset.files import check_output
    from clipset.inference.run import load_run

    if csv is not None:
        check_output(csv, "file")
    trained_run = load_run(
        run, device=common.device, workers=workers, probe=probe, backbone=backbone
    )
    predictions = trained_run.predict(videos, top=top, window=window, step=step, timeline=timeline)
    card = trained_run.head.card
    failed_videos = {
        prediction.video: prediction.reason for prediction in predictions if prediction.reason
    }
    readable_videos = [prediction for prediction in predictions if prediction.reason is None]
    result = {
        "run": run,
        "classifier": {
            "features": card.key.features, "probe": card.key.probe, "selected_on": card.selected_on,
            "reason": card.reason, "candidates": card.candidates,
            "temperature": card.temperature, "calibration_error": card.calibration_error,
        },
        "videos": readable_videos,
        "failed": failed_videos,
    }  # fmt: skip
    try:
        if csv is not None:
            write_rows(csv, readable_videos)
    finally:  # predictions are printed even if they cannot be written
        show_result(result, common, prediction_lines(readable_videos, card))
    report_failures(failed_videos, len(predictions), common)


def prediction_lines(predictions: Sequence[Any], card: Any) -> Iterator[str | Table]:
    """A table of the labels, then the timelines."""
    from clipset.report.wording import row_name

    class_rows = [
        (prediction.video if index == 0 else "", top_class.label, f"{top_class.probability:.1%}")
        for prediction in predictions
        for index, top_class in enumerate(prediction.classes)
    ]
    if predictions:
        yield make_table(("video", "label", "probability"), class_rows)
    for prediction in predictions:
        if prediction.timeline:
            yield f"{prediction.video}, from window to window:"
        for moment in prediction.timeline:
            span_text = f"{moment.start:8.1f} s – {moment.end:.1f} s"
            yield f"{span_text}  {moment.label}  {moment.probability:.1%}"
    yield f"{row_name(*card.key)}: {card.reason}"


def write_rows(path: Path, predictions: Sequence[Any]) -> None:
    """Write the labels of each video, and its timeline, as a table; whole videos have no start.

    A name or label that a spreadsheet would take for a formula has an apostrophe before it.
    """
    from clipset.files import write_atomic

    rows: list[tuple[str, ...]] = [("video", "start", "end", "label", "probability")]
    for prediction in predictions:
        for top_class in prediction.classes:
            rows.append((prediction.video, "", "", top_class.label, f"{top_class.probability:.6f}"))
        for moment in prediction.timeline:
            span_times = f"{moment.start:.3f}", f"{moment.end:.3f}"
            rows.append((prediction.video, *span_times, moment.label, f"{moment.probability:.6f}"))
    write_atomic(path, csv_text(rows).encode())
