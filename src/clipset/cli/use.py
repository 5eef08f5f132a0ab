"""`predict`, `embed`: what a run learned, for new videos."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from clipset.cli.app import COMMON, Common, app, print_line, print_table, show_result
from clipset.evaluation.config import ProbeName
from clipset.text import csv_text, visible


@app.command
def predict(
    *videos: Path,
    run: Path,
    top: int = 3,
    window: float | None = None,
    step: float | None = None,
    timeline: bool | None = None,
    csv: Path | None = None,
    row: ProbeName | None = None,
    backbone: str | None = None,
    workers: int | None = None,
    common: Common = COMMON,
) -> None:
    """Say what new videos show, with calibrated probabilities. Exits with 1 if none can be read.

    The first time, a classifier is chosen, calibrated and trained on the run's training videos. A
    video much longer than those also gets a timeline.

    Example: clipset predict new.mp4 --run runs/first

    Example: clipset predict new.mp4 --run runs/first --row scale_linear

    Example: clipset predict film.mp4 --run runs/first --window 4 --step 2 --csv timeline.csv

    Parameters
    ----------
    videos
        Files, folders or catalogs.
    run
        The folder of a finished run.
    top
        How many labels of each video are shown.
    window
        Seconds of one window of a timeline (the run's usual video if not given).
    step
        Seconds from one window to the next (half a window if not given).
    timeline
        Make a timeline of every video, or of none; otherwise of the long ones.
    csv
        A file for the rows: video, start, end, label, probability.
    row
        The row of the probes' table to predict by (the best on validation videos if not given).
    backbone
        The run's backbone, where that is a file or a model of the hub: mine.py:make, hf:FOLDER.
    workers
        Processes that decode (as many as cores, at most 8; 0: decode in the main process).
    """
    from clipset.config import check_output
    from clipset.inference.run import load_run

    if csv is not None:
        check_output(csv, "file")
    opened = load_run(run, device=common.device, workers=workers, row=row, backbone=backbone)
    found = opened.predict(videos, top=top, window=window, step=step, timeline=timeline)
    card = opened.head.card
    result = {
        "run": run,
        "classifier": {
            "features": card.features, "probe": card.probe, "selected_on": card.selected_on,
            "why": card.why, "trials": card.trials,
            "temperature": card.temperature, "calibration_error": card.calibration_error,
        },
        "videos": [each for each in found if each.reason is None],
        "failed": {each.video: each.reason for each in found if each.reason is not None},
    }  # fmt: skip
    try:
        if csv is not None:
            write_rows(csv, found)
    finally:  # what is known is said, wherever else it cannot be put
        show_result(result, common, lambda: show_predictions(found, card))
    _finish({each.video: each.reason for each in found if each.reason}, len(found), common)


@app.command
def embed(
    *videos: Path,
    run: Path | None = None,
    backbone: str | None = None,
    parts: tuple[Literal["clip", "token", "set"], ...] = ("clip", "set"),
    out: Path = Path("vectors"),
    workers: int | None = None,
    common: Common = COMMON,
) -> None:
    """Write the vectors of new videos, by a run or by a backbone alone. Exits with 1 if none can.

    Example: clipset embed new.mp4 --run runs/first --out vectors

    Example: clipset embed videos --backbone efficientnet_lite0

    Parameters
    ----------
    videos
        Files, folders or catalogs.
    run
        The folder of a finished run.
    backbone
        Without a run: the backbone whose features are wanted. With a run: its backbone, where that
        is a file or a model of the hub (mine.py:make, hf:FOLDER).
    parts
        What stands side by side in a vector: clip (the backbone's feature), token (the same clip
        as the transformer sees it), set (the whole video). With a run that has a model.
    out
        Where `vectors.safetensors` and `videos.csv` go.
    workers
        Processes that decode (as many as cores, at most 8; 0: decode in the main process).
    """
    from clipset.config import check_output
    from clipset.errors import ConfigError
    from clipset.features.config import ExtractConfig
    from clipset.inference.clips import open_backbone
    from clipset.inference.run import embed_videos, load_run
    from clipset.representation import write_vectors

    if run is None and backbone is None:
        raise ConfigError("embed needs --run RUN or --backbone NAME")
    check_output(out, "folder")
    if run is not None:
        opened = load_run(run, device=common.device, workers=workers, backbone=backbone)
        table = opened.embed(videos, parts=parts)
    else:
        config = ExtractConfig(backbone=backbone or "", workers=workers)
        reader = open_backbone(config, seed=common.seed, device=common.device)
        table = embed_videos(reader, None, videos)
    count, clips, width = table.vectors.shape
    result = {
        "representation": out, "shape": table.vectors.shape, "failed": table.failed,
        "videos": dict(zip(table.video_ids, table.pooled.tolist(), strict=True)) if count else {},
    }  # fmt: skip
    line = f"{count} videos × {clips} clips × {width} numbers"
    try:
        if table.video_ids:
            write_vectors(table, out)
            line = f"{line} → {out}"
    finally:
        show_result(result, common, lambda: print_line(line) if count else None)
    _finish(table.failed, count + len(table.failed), common)


def show_predictions(found: Iterable[Any], card: Any) -> None:
    """One row for each label, then the timelines."""
    from clipset.report.wording import row_name

    good = [each for each in found if each.reason is None]
    rows = [
        (each.video if place == 0 else "", guess.label, f"{guess.probability:.1%}")
        for each in good
        for place, guess in enumerate(each.guesses)
    ]
    if good:
        print_table(("video", "label", "probability"), rows)
    for each in good:
        if each.timeline:
            print_line(f"{each.video}, from window to window:")
        for moment in each.timeline:
            span = f"{moment.start:8.1f} s – {moment.end:.1f} s"
            print_line(f"{span}  {moment.label}  {moment.probability:.1%}")
    print_line(f"{row_name(card.features, card.probe)}: {card.why}")


def write_rows(path: Path, found: Iterable[Any]) -> None:
    """The guesses of each video, and its timeline, as a table; whole videos have no start.

    A name or label that a spreadsheet would take for a formula has an apostrophe before it.
    """
    from clipset.config import write_atomic

    rows: list[tuple[str, ...]] = [("video", "start", "end", "label", "probability")]
    for each in found:
        for guess in each.guesses:
            rows.append((each.video, "", "", guess.label, f"{guess.probability:.6f}"))
        for moment in each.timeline:
            times = f"{moment.start:.3f}", f"{moment.end:.3f}"
            rows.append((each.video, *times, moment.label, f"{moment.probability:.6f}"))
    write_atomic(path, csv_text(rows).encode())


def _finish(failed: dict[str, str], total: int, common: Common) -> None:
    """Say which files could not be read; it is an error only if none could."""
    if not common.json:
        for video, reason in failed.items():
            sys.stderr.write(visible(f"clipset: {video}: {' '.join(reason.split())}") + "\n")
    if len(failed) == total:
        raise SystemExit(1)
