"""Collect the content of the page from a run's folder."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from jaxtyping import Int, UInt8
from PIL import Image

from clipset.clips.frame_times import frame_indices_at
from clipset.config import flatten, parse_json
from clipset.data.catalog import Catalog, read_catalog_table
from clipset.decoding.reader import open_video
from clipset.errors import ProbeError, ReportError, VideoError
from clipset.evaluation.results import (
    Comparison,
    LowShotCurve,
    ProbeResult,
    Value,
    read_predictions,
    read_records,
)
from clipset.features.ledger import LedgerEntry
from clipset.features.store import FeatureStore, open_store
from clipset.progress import bar
from clipset.report.content import (
    Counts,
    DamagedVideo,
    FactGroup,
    FailedVideo,
    Hit,
    MapPoint,
    Neighbours,
    ReportContent,
    Step,
    Strip,
)
from clipset.report.layout import map_positions
from clipset.report.records import Calibration, measure_calibration
from clipset.report.wording import Number, format_duration
from clipset.representation import VectorTable, nearest, read_vectors
from clipset.runs import read_run

T = TypeVar("T")
MAX_MAP_POINTS = 3000
MAX_THUMBNAILS = 800
NUM_QUERIES = 6
NUM_HITS = 5
STRIP_FRAMES = 5
THUMBNAIL_HEIGHT = 72  # pixels


def collect_content(folder: Path) -> ReportContent:
    """Everything in the folder of a run; files that do not exist leave their part empty."""
    run = read_run(folder)
    store = _open_run_store(folder)
    table = read_vectors(folder / "vectors")
    thumbnails = _Thumbnails(store)
    catalog = store.catalog
    return ReportContent(
        title=run.get("name") or folder.resolve().name,
        subtitle=_subtitle(run, store),
        counts=Counts(
            videos=len(store),
            classes=len(catalog.classes) or None,
            clips=int(store.random.count.sum() + store.regular.count.sum()),
            hours=float(store.durations.sum() / 3600),
        ),
        facts=_collect_facts(run, store),
        steps=[
            Step(
                name=step["name"],
                seconds=step.get("seconds", 0.0),
                note="done before" if step.get("skipped") else "",
            )
            for step in run.get("steps", [])
        ],
        results=_read_optional(folder / "results.json", ProbeResult),
        comparisons=_read_optional(folder / "comparisons.json", Comparison),
        calibration=read_calibration(folder / "predictions.safetensors"),
        low_shot=_read_optional(folder / "low_shot.json", LowShotCurve),
        curves=_read_curves(folder / "model" / "metrics.jsonl"),
        map_points=_collect_map(table, catalog, thumbnails),
        neighbours=_collect_neighbours(table, thumbnails),
        failed=[FailedVideo(video_id=e.id, reason=e.reason or "") for e in store.failed],
        damaged=[_damaged_video(entry) for entry in store.entries if entry.damage],
    )


def _read_optional(path: Path, kind: type[T]) -> list[T]:
    return read_records(path, kind) if path.is_file() else []


def read_calibration(path: Path) -> list[Calibration]:
    """The calibration of each probe; none without predictions of classes."""
    if not path.is_file():
        return []
    try:
        predictions = read_predictions(path)
    except ProbeError as error:
        raise ReportError(str(error)) from None
    if not predictions.classes:
        return []
    return [
        measure_calibration(row, outputs, predictions.truth)
        for row, outputs in predictions.outputs.items()
    ]


def _damaged_video(entry: LedgerEntry) -> DamagedVideo:
    needed, announced, claimed = entry.frames_needed, entry.frames_expected, entry.claimed_duration
    duration = format_duration(entry.duration)
    return DamagedVideo(
        video_id=entry.id,
        replaced=f"{entry.frames_missing} of {needed}" if needed else "",
        in_file=f"{entry.frames_found} of {announced}" if announced else str(entry.frames_found),
        duration=duration
        if claimed is None
        else f"{duration} ({format_duration(claimed)} by its timestamps)",
    )


def _open_run_store(folder: Path) -> FeatureStore:
    """The run's own store; a task of a run uses the store of the whole."""
    own, shared = folder / "store", folder.absolute().parent / "store"
    catalog = folder / "catalog.csv"
    path = shared if not own.exists() and shared.is_dir() else own
    return open_store(path, read_catalog_table(catalog) if catalog.is_file() else None)


def _subtitle(run: Mapping[str, Any], store: FeatureStore) -> str:
    spec = store.manifest.backbone
    day = str(run.get("started", ""))[:10]
    leaks = ", splits share videos or groups" if run.get("allowed_leaks") else ""
    clip = f"{spec.frames} frames × {spec.size} px"
    return f"{spec.name}, {clip}, seed {run.get('seed')}, {day}{leaks}"


def _collect_facts(run: Mapping[str, Any], store: FeatureStore) -> list[FactGroup]:
    spec = store.manifest.backbone
    recipe: dict[str, Any] = run.get("recipe", {})
    sections = {name: value for name, value in recipe.items() if isinstance(value, dict)}
    top_level = {name: value for name, value in recipe.items() if name not in sections}
    return [
        FactGroup(
            name="run",
            rows=[
                *((name, str(run.get(name, ""))) for name in ("started", "seed", "device")),
                *(("allowed leak", str(leak)) for leak in run.get("allowed_leaks", [])),
            ],
        ),
        FactGroup(
            name="backbone",
            rows=[
                ("name", spec.name),
                ("feature dimension", str(spec.dim)),
                ("clip", f"{spec.frames} frames, {spec.span:.2f} s, {spec.size} px"),
                ("pooling", spec.pooling),
                ("weights", f"{spec.weights.file} ({spec.weights.licence})"),
                ("weights sha256", spec.weights.sha256 or "unknown"),
                ("engine", store.manifest.made_by.get("engine", "unknown")),
            ],
        ),
        FactGroup(name="machine and versions", rows=list(run.get("environment", {}).items())),
        FactGroup(name="recipe", rows=fact_rows(top_level)),
        *(
            FactGroup(name=f"recipe: {name}", rows=fact_rows(section))
            for name, section in sections.items()
        ),
    ]


def fact_rows(table: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Nested settings as rows of facts."""
    return [(name, str(value)) for name, value in flatten(table).items()]


def _read_curves(path: Path) -> dict[str, list[tuple[Number, Number]]]:
    """Training metrics by epoch."""
    if not path.is_file():
        return {}
    lines = [
        _parse_epoch(line, f"line {number} of {path}")
        for number, line in enumerate(path.read_bytes().splitlines(), start=1)
    ]
    names = [name for name in lines[0] if name not in ("epoch", "seconds")] if lines else []
    return {name: [(line["epoch"], line[name]) for line in lines if name in line] for name in names}


def _parse_epoch(text: bytes, source: str) -> dict[str, float]:
    """The metrics of an epoch; JSON has null for a number that is not finite."""
    try:
        line = msgspec.convert(parse_json(text, source), type=dict[str, Value | None])
    except msgspec.ValidationError as error:
        raise ReportError(f"{source} is not what clipset wrote: {error}") from None
    metrics = {name: math.nan if value is None else value for name, value in line.items()}
    if not math.isfinite(metrics.get("epoch", math.nan)):
        raise ReportError(f"{source} has no epoch")
    return metrics


def _collect_map(table: VectorTable, catalog: Catalog, thumbnails: _Thumbnails) -> list[MapPoint]:
    targets = {video.id: video.target for video in catalog}
    indices = _spread(len(table.video_ids), MAX_MAP_POINTS)
    positions = map_positions(table.pooled[indices])
    with_thumbnail = set(indices[_spread(len(indices), MAX_THUMBNAILS)].tolist())
    points = []
    with bar("drawing the map", len(indices), "videos") as advance:
        for (x, y), index in zip(positions.tolist(), indices.tolist(), strict=True):
            video_id = table.video_ids[index]
            frames = thumbnails.read(video_id, 1) if index in with_thumbnail else ()
            points.append(
                MapPoint(
                    video_id=video_id,
                    label=table.labels[index],
                    target=targets.get(video_id),
                    split=table.splits[index],
                    x=x,
                    y=y,
                    thumbnail=frames[0] if frames else None,
                )
            )
            advance()
    return points


def _spread(total: int, count: int) -> Int[np.ndarray, " K"]:
    """At most `count` of `total` indices, evenly spaced."""
    return np.unique(np.linspace(0, total - 1, min(total, count)).round().astype(np.int64))


def _collect_neighbours(table: VectorTable, thumbnails: _Thumbnails) -> list[Neighbours]:
    """A few query videos of different labels (test videos first) and their neighbours."""
    if len(table.video_ids) < 2:
        return []

    def strip(index: int) -> Strip:
        video_id = table.video_ids[index]
        frames = thumbnails.read(video_id, STRIP_FRAMES)
        return Strip(video_id=video_id, label=table.labels[index], frames=frames)

    queries = _select_queries(table)
    indices, similarities = nearest(table.pooled, queries, NUM_HITS)
    return [
        Neighbours(
            query=strip(query),
            hits=tuple(
                Hit(strip=strip(index), score=score)
                for index, score in zip(hits, scores, strict=True)
            ),
        )
        for query, hits, scores in zip(
            queries.tolist(), indices.tolist(), similarities.tolist(), strict=True
        )
    ]


def _select_queries(table: VectorTable) -> Int[np.ndarray, " Q"]:
    by_label: dict[str | None, int] = {}
    order = sorted(range(len(table.video_ids)), key=lambda index: table.splits[index] != "test")
    for index in order:
        by_label.setdefault(table.labels[index], index)
    candidates = list(by_label.values()) if len(by_label) > 1 else order
    queries: Int[np.ndarray, " Q"] = np.array(candidates)[_spread(len(candidates), NUM_QUERIES)]
    return queries


class _Thumbnails:
    """Small JPEG frames of the videos of a store; none where a file cannot be read."""

    def __init__(self, store: FeatureStore) -> None:
        self.paths = {video.id: video.path for video in store.catalog}

    def read(self, video_id: str, count: int) -> tuple[bytes, ...]:
        """Evenly spaced frames of a video."""
        if video_id not in self.paths:
            return ()
        try:
            with open_video(self.paths[video_id]) as video:
                times = (np.arange(count) + 0.5) / count * video.info.duration
                indices = frame_indices_at(times, video.info.frame_times)
                frames = dict(
                    video.frames(np.unique(indices).tolist(), short_side=THUMBNAIL_HEIGHT)
                )
        except VideoError:
            return ()
        return tuple(_encode_jpeg(frames[int(index)]) for index in indices)


def _encode_jpeg(pixels: UInt8[np.ndarray, "H W 3"]) -> bytes:
    image = Image.fromarray(pixels)
    image.thumbnail((THUMBNAIL_HEIGHT * 2, THUMBNAIL_HEIGHT))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=72)
    return file.getvalue()
