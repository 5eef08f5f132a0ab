"""`clipset embed`: vectors of a store's videos, or of new videos."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clipset.cli import flags
from clipset.cli.app import app, show_result
from clipset.cli.tables import report_failures
from clipset.text import counted


@app.command(name="embed", usage="clipset embed [OPTIONS] VIDEOS...")
def embed_command(
    *videos: Path,
    model: flags.Model = None,
    run: Path | None = None,
    backbone: str | None = None,
    out: Path = Path("vectors"),
    parts: str | None = None,
    window: float | None = None,
    workers: flags.Workers = None,
    common: flags.Computing = flags.COMPUTING,
) -> None:
    """Write one vector for every clip and video: of a feature store, or of new videos.

    Exits with 1 if no video can be read.

    Example: clipset embed store --model model --out vectors

    Example: clipset embed new.mp4 --run runs/first --out vectors

    Example: clipset embed videos --backbone efficientnet_lite0

    To read the vectors in Python, one row for each video:

        from pandas import read_csv
        from safetensors.numpy import load_file

        rows = load_file("vectors/vectors.safetensors")["pooled"]
        videos = read_csv("vectors/videos.csv")

    Args:
        videos: One feature store; or new videos (files, folders and catalogs) with --run or
            --backbone.
        model: Only for a store: a model's folder or hub name (without one, the vectors are the
            backbone's features).
        run: Only for new videos: the folder of a finished run.
        backbone: Only for new videos. Without --run: the backbone to use. With --run: needed if the
            run's backbone is a file of yours or a hub model (mine.py:make, hf:OWNER/NAME).
        out: The folder of `vectors.safetensors`, `videos.csv` and (with pyarrow) `videos.parquet`.
        parts: Parts of a vector: clip (the backbone's feature), token (the clip's output of the
            transformer), set (the set token, as in the paper); clip,token by default.
        window: Only for a store: length of a window in seconds. A video that is longer than one
            window also gets a row for each of its windows.
    """
    from clipset.api import embed
    from clipset.errors import ConfigError
    from clipset.features.store import open_store
    from clipset.files import check_output
    from clipset.representation import check_vectors_folder, parse_parts, write_vectors

    vector_parts = parse_parts(parts) if parts else None
    is_new = run is not None or backbone is not None
    if is_new and (model is not None or window is not None):
        raise ConfigError("--model and --window need a feature store instead of videos")
    if not is_new and (len(videos) != 1 or not videos[0].is_dir()):
        raise ConfigError("embed needs one feature store, or videos with --run or --backbone")
    if not is_new and model is None and vector_parts not in (None, ("clip",)):
        raise ConfigError(f"--parts {parts} needs a model; give one with --model")
    check_output(out, "folder")
    check_vectors_folder(out)
    table = embed(
        videos if is_new else open_store(videos[0]), run=run, backbone=backbone, model=model,
        parts=vector_parts, window=window, device=common.device, workers=workers,
    )  # fmt: skip
    rows, num_clips, width = table.vectors.shape
    count = f"{rows} videos and windows"
    if window is None:
        count = f"{counted(rows, 'video')} × {counted(num_clips, 'clip')}"
    summary_line = f"{count} × {width} numbers ({', '.join(table.parts)})"
    result: dict[str, Any] = {"vectors": out, "shape": table.vectors.shape, "parts": table.parts}
    if is_new:
        by_video = zip(table.video_ids, table.pooled.tolist() if rows else [], strict=True)
        result |= {"failed": table.failed, "videos": dict(by_video)}
    try:
        if rows:
            write_vectors(table, out)
            summary_line = f"{summary_line} → {out}"
    finally:  # vectors are printed even if they cannot be written
        show_result(result, common, [summary_line] if rows else [])
    if is_new:
        report_failures(table.failed, rows + len(table.failed), common)
