"""`clipset embed`: vectors of a store's videos, or of new videos."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from clipset.cli.app import COMPUTING, Computing, app, print_line, show_result
from clipset.cli.tables import report_failures

if TYPE_CHECKING:
    from clipset.representation import VectorPart


@app.command(name="embed")
def embed_command(
    *videos: Path,
    model: Path | None = None,
    run: Path | None = None,
    backbone: str | None = None,
    out: Path = Path("vectors"),
    parts: str | None = None,
    window: float | None = None,
    workers: int | None = None,
    common: Computing = COMPUTING,
) -> None:
    """Write one vector for every clip and video: of a feature store, or of new videos.

    Exits with 1 if no video can be read.

    Example: clipset embed store --model model --out vectors

    Example: clipset embed new.mp4 --run runs/first --out vectors

    Example: clipset embed videos --backbone efficientnet_lite0

    The vectors in two lines of Python:

        pooled = safetensors.numpy.load_file("vectors/vectors.safetensors")["pooled"]

        videos = pandas.read_csv("vectors/videos.csv")

    Parameters
    ----------
    videos
        A feature store; or video files, folders and catalogs.
    model
        Store: a model's folder or hub name (without one, the backbone's features).
    run
        New videos: the folder of a finished run.
    backbone
        New videos without a run: the backbone. With a run: its backbone, if that is a file or a hub
        model (mine.py:make, hf:FOLDER).
    out
        The folder of `vectors.safetensors`, `videos.csv` and (with pyarrow) `videos.parquet`.
    parts
        Parts of a vector: clip (the backbone's feature), token (the clip's output of the
        transformer), set (the set token), such as `clip,token,set`; clip,set by default.
    window
        Store: longer videos also get a row for each window of so many seconds.
    workers
        New videos: decoding processes (one per core, at most 8; 0: in the main process).
    """
    from clipset.errors import ConfigError
    from clipset.files import check_output
    from clipset.representation import DEFAULT_PARTS, parse_parts

    vector_parts = parse_parts(parts) if parts else DEFAULT_PARTS
    if run is not None or backbone is not None:
        if model is not None or window is not None:
            raise ConfigError("--model and --window need a feature store instead of videos")
        check_output(out, "folder")
        _embed_videos(videos, run, backbone, out, vector_parts, workers, common)
        return
    if len(videos) != 1 or not videos[0].is_dir():
        raise ConfigError("embed needs one feature store, or videos with --run or --backbone")
    if parts and model is None and vector_parts != ("clip",):
        raise ConfigError(f"the parts {parts} need a model; give one with --model")
    check_output(out, "folder")
    _embed_store(videos[0], model, out, vector_parts, window, common)


def _embed_store(
    folder: Path,
    model: Path | None,
    out: Path,
    parts: tuple[VectorPart, ...],
    window: float | None,
    common: Computing,
) -> None:
    from clipset.devices import find_device
    from clipset.features.store import open_store
    from clipset.representation import embed_store, write_vectors
    from clipset.training.checkpoint import find_model, load_model

    encoder = load_model(find_model(model)).encoder if model else None
    device = find_device(common.device)
    table = embed_store(open_store(folder), encoder, parts=parts, window=window, device=device)
    write_vectors(table, out)
    result = {"vectors": out, "shape": table.vectors.shape, "parts": table.parts}
    rows, clips, width = table.vectors.shape
    count = f"{rows} videos × {clips} clips" if window is None else f"{rows} videos and windows"
    line = f"{count} × {width} numbers ({', '.join(table.parts)}) → {out}"
    show_result(result, common, lambda: print_line(line))


def _embed_videos(
    videos: tuple[Path, ...],
    run: Path | None,
    backbone: str | None,
    out: Path,
    parts: tuple[VectorPart, ...],
    workers: int | None,
    common: Computing,
) -> None:
    from clipset.features.config import ExtractConfig
    from clipset.inference.clips import open_backbone
    from clipset.inference.run import embed_videos, load_run
    from clipset.representation import write_vectors

    if run is not None:
        opened = load_run(run, device=common.device, workers=workers, backbone=backbone)
        table = opened.embed(videos, parts=parts)
    else:
        config = ExtractConfig(backbone=backbone or "", workers=workers)
        reader = open_backbone(config, device=common.device)
        table = embed_videos(reader, None, videos)
    count, clips, width = table.vectors.shape
    result = {
        "vectors": out, "shape": table.vectors.shape, "failed": table.failed,
        "videos": dict(zip(table.video_ids, table.pooled.tolist(), strict=True)) if count else {},
    }  # fmt: skip
    line = f"{count} videos × {clips} clips × {width} numbers"
    try:
        if table.video_ids:
            write_vectors(table, out)
            line = f"{line} → {out}"
    finally:  # vectors are printed even if they cannot be written
        show_result(result, common, lambda: print_line(line) if count else None)
    report_failures(table.failed, count + len(table.failed), common)
