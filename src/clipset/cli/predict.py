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


@app.command(name="predict", usage="clipset predict --run PATH [OPTIONS] VIDEOS...")
def predict_command(
    *videos: Path,
    run: Path,
    top: flags.Int = DEFAULT_TOP,
    window: float | None = None,
    step: float | None = None,
    timeline: bool | None = None,
    csv: Path | None = None,
    probe: Literal[ProbeName, "labels"] | None = None,
    backbone: flags.OwnBackbone = None,
    workers: flags.Workers = None,
    common: flags.Computing = flags.COMPUTING,
) -> None:
    """Predict the labels of new videos, with calibrated probabilities.

    The first time, a classifier is selected, calibrated and trained on the run's training videos.
    A long video also gets a timeline: the label of each window. A video is long if it is longer
    than every video of the run and than three times their median. Exits with 1 if no video can be
    read.

    Example: clipset predict new.mp4 --run runs/first

    Example: clipset predict new.mp4 --run runs/first --probe scale_linear

    Example: clipset predict new.mp4 --run runs/first --probe labels

    Example: clipset predict film.mp4 --run runs/first --window 4 --step 2 \\
        --csv timeline.csv

    Args:
        videos: Video files, folders or catalogs, at least one.
        run: The folder of a finished run.
        top: Labels per video.
        window: Length of a window of a timeline in seconds (by default the median duration of the
            run's videos).
        step: Seconds between windows (half a window by default).
        timeline: Make a timeline of every video, or of none (by default of long videos; of
            every video if --window or --step is given).
        csv: A file for the rows: video, start, end, label, probability.
        probe: The probe that predicts (by default the best on validation videos). `labels` is not a
            probe: it is the classifier that was exported from the page of `clipset serve`.
    """
    from clipset.files import check_output
    from clipset.inference.run import load_run

    if csv is not None:
        check_output(csv, "file")
    trained = load_run(run, device=common.device, workers=workers, probe=probe, backbone=backbone)
    predictions = trained.predict(videos, top=top, window=window, step=step, timeline=timeline)
    card = trained.head.card
    failed = {video.video: video.reason for video in predictions if video.reason}
    readable = [video for video in predictions if video.reason is None]
    facts = ("selected_on", "reason", "candidates", "temperature", "calibration_error")
    classifier = {**card.key._asdict(), **{fact: getattr(card, fact) for fact in facts}}
    result = {"run": run, "classifier": classifier, "videos": readable, "failed": failed}
    try:
        if csv is not None:
            write_rows(csv, readable)
    finally:  # predictions are printed even if they cannot be written
        show_result(result, common, prediction_lines(readable, card))
    report_failures(failed, len(predictions), common)


def prediction_lines(predictions: Sequence[Any], card: Any) -> Iterator[str | Table]:
    """A table of the labels, then the timelines."""
    from clipset.report.wording import row_name

    rows = [
        (prediction.video if index == 0 else "", likely.label, f"{likely.probability:.1%}")
        for prediction in predictions
        for index, likely in enumerate(prediction.classes)
    ]
    if predictions:
        yield make_table(("video", "label", "probability"), rows)
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
        for likely in prediction.classes:
            rows.append((prediction.video, "", "", likely.label, f"{likely.probability:.6f}"))
        for moment in prediction.timeline:
            span_times = f"{moment.start:.3f}", f"{moment.end:.3f}"
            rows.append((prediction.video, *span_times, moment.label, f"{moment.probability:.6f}"))
    write_atomic(path, csv_text(rows).encode())
