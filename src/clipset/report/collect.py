"""From a run's folder to what the page shows."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray
from PIL import Image

from clipset.clips.frame_times import frames_at
from clipset.config import parse_json
from clipset.data.catalog import Catalog, read_catalog_table
from clipset.decoding.reader import open_video
from clipset.errors import ReportError, VideoError
from clipset.features.ledger import Entry
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
from clipset.report.trust import read_calibration, read_list
from clipset.report.wording import Number, Real, duration
from clipset.representation import VectorTable, nearest, read_vectors
from clipset.runs import read_run

MAP_POINTS = 3000  # videos on the map at most, spread evenly over the catalog
THUMBNAILS = 800  # of them with a picture
QUERIES = 6
HITS = 5
STRIP = 5  # frames of a strip
HEIGHT = 72  # pixels of a thumbnail's height
ROUNDING = 1e-6  # vectors that differ by less, relative to their size, are copies
COPY_SPACING = 0.002  # between copies, relative to the map's extent
GOLDEN_ANGLE = 2.399963229728653  # radians; points that turn by it never line up


def gather_content(folder: Path) -> ReportContent:
    """Read everything a run left behind; parts that are not there stay empty."""
    run = read_run(folder)
    store = _open_store_of(folder)
    table = read_vectors(folder / "representation")
    pictures = _Pictures(store)
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
        facts=_facts(run, store),
        steps=[
            Step(
                name=step["name"],
                seconds=step.get("seconds", 0.0),
                note="done before" if step.get("skipped") else "",
            )
            for step in run.get("steps", [])
        ],
        records=read_list(folder / "results.json"),
        comparisons=read_list(folder / "comparisons.json"),
        calibration=read_calibration(folder / "predictions.safetensors"),
        low_shot=read_list(folder / "low_shot.json"),
        curves=_curves(folder / "model" / "metrics.jsonl"),
        map_points=_map(table, catalog, pictures),
        neighbours=_neighbours(table, pictures),
        failed=[FailedVideo(video_id=e.id, reason=e.reason or "") for e in store.failed],
        damaged=[_damaged(entry) for entry in store.entries if entry.damage],
    )


def _damaged(entry: Entry) -> DamagedVideo:
    """What is missing of a video that was used nevertheless."""
    needed, announced, claimed = entry.frames_needed, entry.frames_expected, entry.claimed_duration
    return DamagedVideo(
        video_id=entry.id,
        replaced=f"{entry.frames_missing} of {needed}" if needed else "",
        in_file=f"{entry.frames_found} of {announced}" if announced else str(entry.frames_found),
        duration=duration(entry.duration)
        + (f", not {duration(claimed)} as its timestamps claim" if claimed is not None else ""),
    )


def _open_store_of(folder: Path) -> FeatureStore:
    """The run's own store; a part of a run shares that of the whole."""
    above = folder.absolute().parent / "store"
    own, listed = folder / "store", folder / "catalog.csv"
    where = above if not own.exists() and above.is_dir() else own
    return open_store(where, read_catalog_table(listed) if listed.is_file() else None)


def _subtitle(run: dict[str, Any], store: FeatureStore) -> str:
    spec = store.manifest.backbone
    day = str(run.get("started", ""))[:10]
    leaks = ", splits share videos or groups" if run.get("allowed_leaks") else ""
    shape = f"{spec.frames} frames × {spec.size} px"
    return f"{spec.name}, {shape}, seed {run.get('seed')}, {day}{leaks}"


def _facts(run: dict[str, Any], store: FeatureStore) -> list[FactGroup]:
    spec = store.manifest.backbone
    groups = [
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
                ("feature width", str(spec.dim)),
                ("clip", f"{spec.frames} frames, {spec.span:.2f} s, {spec.size} px"),
                ("pooling", spec.pooling),
                ("weights", f"{spec.weights.file} ({spec.weights.licence})"),
                ("weights sha256", spec.weights.sha256 or "unknown"),
                ("engine", store.manifest.made_by.get("engine", "unknown")),
            ],
        ),
        FactGroup(name="machine and versions", rows=list(run.get("environment", {}).items())),
    ]
    recipe: dict[str, Any] = run.get("recipe", {})
    plain = {name: value for name, value in recipe.items() if not isinstance(value, dict)}
    groups.append(FactGroup(name="recipe", rows=_flat(plain, "")))
    groups += [
        FactGroup(name=f"recipe: {name}", rows=_flat(value, ""))
        for name, value in recipe.items()
        if name not in plain
    ]
    return groups


def _flat(mapping: dict[str, Any], prefix: str) -> Sequence[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for name, value in mapping.items():
        if isinstance(value, dict):
            rows.extend(_flat(value, f"{prefix}{name}."))
        else:
            rows.append((f"{prefix}{name}", str(value)))
    return rows


def _curves(path: Path) -> dict[str, list[tuple[Number, Number]]]:
    if not path.is_file():
        return {}
    texts = path.read_bytes().splitlines()
    lines = [_epoch(text, f"line {number} of {path}") for number, text in enumerate(texts, 1)]
    names = [name for name in lines[0] if name not in ("epoch", "seconds")] if lines else []
    return {name: [(line["epoch"], line[name]) for line in lines if name in line] for name in names}


def _epoch(text: bytes, where: str) -> dict[str, float]:
    """The metrics of an epoch; null is what JSON makes of a number that is not finite."""
    try:
        line = msgspec.convert(parse_json(text, where), type=dict[str, Real | None])
    except msgspec.ValidationError as error:
        raise ReportError(f"{where} does not fit: {error}") from None
    found = {name: math.nan if value is None else value for name, value in line.items()}
    if not math.isfinite(found.get("epoch", math.nan)):
        raise ReportError(f"{where} does not say which epoch it is about")
    return found


def _map(table: VectorTable, catalog: Catalog, pictures: _Pictures) -> list[MapPoint]:
    targets = {video.id: video.target for video in catalog}
    shown = _spread(len(table.video_ids), MAP_POINTS)
    places = lay_out(table.pooled[shown])
    with_picture = set(shown[_spread(len(shown), THUMBNAILS)].tolist())
    points = []
    with bar("drawing the map", len(shown), "videos") as advance:
        for (x, y), place in zip(places.tolist(), shown.tolist(), strict=True):
            video_id = table.video_ids[place]
            picture = pictures.strip(video_id, 1) if place in with_picture else ()
            points.append(
                MapPoint(
                    video_id=video_id,
                    label=table.labels[place],
                    target=targets.get(video_id),
                    split=table.splits[place],
                    x=x,
                    y=y,
                    thumbnail=picture[0] if picture else None,
                )
            )
            advance()
    return points


def _spread(total: int, count: int) -> NDArray[np.int64]:
    """At most `count` of `total` places, evenly spread."""
    return np.unique(np.linspace(0, total - 1, min(total, count)).round().astype(np.int64))


def lay_out(vectors: Float[np.ndarray, "N R"]) -> Float[np.ndarray, "N 2"]:
    """Positions on a plane where near videos are near, finite for any finite vectors.

    Only distinct vectors are laid out; copies lie in a small spiral around the first of them.
    """
    if not np.isfinite(vectors).all():
        raise ReportError("the representation holds values that are not finite; represent again")
    distinct, group = _distinct_rows(vectors.astype(np.float64))
    positions = _lay_out_distinct(distinct)
    extent = float(np.ptp(positions, axis=0).max()) or 1.0
    placed: Float[np.ndarray, "N 2"] = positions[group] + extent * _copy_offsets(group)
    return placed


def _distinct_rows(
    vectors: Float[np.ndarray, "N R"],
) -> tuple[Float[np.ndarray, "D R"], Int[np.ndarray, " N"]]:
    """The rows that differ by more than rounding, in their order, and which of them each row is."""
    tolerance = ROUNDING * float(np.median(np.abs(vectors).max(axis=1)))
    rounded = np.round(vectors / tolerance) if tolerance > 0 else vectors
    _, first, inverse = np.unique(rounded, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return vectors[first[order]], np.argsort(order)[inverse.reshape(-1)]


def _lay_out_distinct(vectors: Float[np.ndarray, "D R"]) -> Float[np.ndarray, "D 2"]:
    """Distinct vectors by t-SNE, or by their principal axes if they are a handful."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    count, dim = vectors.shape
    if count < 3:
        return np.stack([np.arange(count), np.zeros(count)], axis=1)
    scaled = vectors / np.abs(vectors).max()  # so that no square overflows
    centred = scaled - scaled.mean(axis=0)
    centred /= np.abs(centred).max()  # nor underflows
    reduced = PCA(min(50, count, dim), random_state=0).fit_transform(centred)
    if reduced.shape[1] < 2:
        reduced = np.pad(reduced, ((0, 0), (0, 1)))
    if count < 12:
        axes: Float[np.ndarray, "D 2"] = reduced[:, :2]
        return axes
    positions: Float[np.ndarray, "D 2"] = TSNE(
        perplexity=min(30.0, (count - 1) / 3), init="pca", random_state=0
    ).fit_transform(reduced)
    return positions.astype(np.float64)


def _copy_offsets(group: Int[np.ndarray, " N"]) -> Float[np.ndarray, "N 2"]:
    """Where each row lies beside the first of its group: on a spiral, the first at its centre."""
    order = np.argsort(group, kind="stable")
    _, starts, counts = np.unique(group[order], return_index=True, return_counts=True)
    rank = np.empty(len(group), dtype=np.int64)
    rank[order] = np.arange(len(group)) - np.repeat(starts, counts)
    angle, radius = rank * GOLDEN_ANGLE, COPY_SPACING * np.sqrt(rank)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)


def _neighbours(table: VectorTable, pictures: _Pictures) -> list[Neighbours]:
    """A few videos of different labels (test videos first) and what lies nearest to each."""
    if len(table.video_ids) < 2:
        return []
    queries = _queries(table)
    found, scores = nearest(table.pooled, queries, HITS)
    groups = []
    for query, hits, near in zip(queries.tolist(), found.tolist(), scores.tolist(), strict=True):
        strips = [
            Strip(
                video_id=table.video_ids[place],
                label=table.labels[place],
                frames=pictures.strip(table.video_ids[place], STRIP),
            )
            for place in (query, *hits)
        ]
        rows = tuple(
            Hit(strip=strip, score=score) for strip, score in zip(strips[1:], near, strict=True)
        )
        groups.append(Neighbours(query=strips[0], hits=rows))
    return groups


def _queries(table: VectorTable) -> NDArray[np.int64]:
    by_label: dict[str | None, int] = {}
    order = sorted(range(len(table.video_ids)), key=lambda place: table.splits[place] != "test")
    for place in order:
        by_label.setdefault(table.labels[place], place)
    chosen = list(by_label.values()) if len(by_label) > 1 else order
    return np.array(chosen)[_spread(len(chosen), QUERIES)]


class _Pictures:
    """Small JPEG frames of the videos of a store; empty where a file is gone."""

    def __init__(self, store: FeatureStore) -> None:
        self.paths = {video.id: video.path for video in store.catalog}

    def strip(self, video_id: str, count: int) -> tuple[bytes, ...]:
        """Frames at even distances from the start to the end of a video."""
        if video_id not in self.paths:
            return ()
        try:
            with open_video(self.paths[video_id]) as video:
                times = (np.arange(count) + 0.5) / count * video.info.duration
                wanted = frames_at(times, video.info.frame_times)
                frames = dict(video.frames(np.unique(wanted).tolist(), short_side=HEIGHT))
        except VideoError:
            return ()
        return tuple(_jpeg(frames[int(number)]) for number in wanted)


def _jpeg(pixels: NDArray[np.uint8]) -> bytes:
    image = Image.fromarray(pixels)
    image.thumbnail((HEIGHT * 2, HEIGHT))
    content = io.BytesIO()
    image.save(content, "JPEG", quality=72)
    return content.getvalue()
