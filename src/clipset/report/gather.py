"""From a run's folder to what the page shows."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from PIL import Image

from clipset.clips.sampling import frames_at
from clipset.errors import ReportError, VideoError
from clipset.features.store import FeatureStore, open_store
from clipset.progress import bar
from clipset.report.content import (
    Counts,
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
from clipset.report.wording import Number
from clipset.representation import Representations, nearest, read_representations
from clipset.runs import read_run
from clipset.videos.catalog import Catalog, read_catalog
from clipset.videos.decode import open_video

MAP_POINTS = 3000  # videos on the map at most, spread evenly over the catalog
THUMBNAILS = 800  # of them with a picture
QUERIES = 6
HITS = 5
STRIP = 5  # frames of a strip
HEIGHT = 72  # pixels of a thumbnail's height


def gather_content(folder: Path) -> ReportContent:
    """Read everything a run left behind; parts that are not there stay empty."""
    run = read_run(folder)
    store = _open_store_of(folder)
    table = read_representations(folder / "representation")
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
            Step(name=s["name"], seconds=s["seconds"], note="done before" if s["skipped"] else "")
            for s in run.get("steps", [])
        ],
        records=read_list(folder / "results.json"),
        comparisons=read_list(folder / "comparisons.json"),
        calibration=read_calibration(folder / "predictions.safetensors"),
        low_shot=read_list(folder / "low_shot.json"),
        curves=_curves(folder / "model" / "metrics.jsonl"),
        map_points=_map(table, catalog, pictures),
        neighbours=_neighbours(table, pictures),
        failed=[FailedVideo(video_id=e.id, reason=e.reason or "") for e in store.failed],
    )


def _open_store_of(folder: Path) -> FeatureStore:
    """The run's own store; a part of a run shares that of the whole."""
    above = folder.absolute().parent / "store"
    own, listed = folder / "store", folder / "catalog.csv"
    where = above if not own.exists() and above.is_dir() else own
    return open_store(where, read_catalog(listed) if listed.is_file() else None)


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
    try:
        kind = dict[str, Number | None]
        lines = [msgspec.json.decode(x, type=kind) for x in path.read_bytes().splitlines()]
        names = [name for name in lines[0] if name not in ("epoch", "seconds")] if lines else []
        return {name: _curve(lines, name) for name in names}
    except (msgspec.DecodeError, RecursionError, KeyError) as error:
        raise ReportError(f"{path} is damaged ({error}); delete it, it holds the curves") from None


def _curve(lines: Sequence[Mapping[str, Number | None]], name: str) -> list[tuple[Number, Number]]:
    points = [(line["epoch"], line.get(name)) for line in lines]
    return [(epoch, value) for epoch, value in points if epoch is not None and value is not None]


def _map(table: Representations, catalog: Catalog, pictures: _Pictures) -> list[MapPoint]:
    targets = {video.id: video.target for video in catalog}
    shown = _spread(len(table.video_ids), MAP_POINTS)
    places = lay_out(table.pooled[shown])
    with_picture = set(shown[_spread(len(shown), THUMBNAILS)].tolist())
    points = []
    with bar("drawing the map", len(shown), "videos") as advance:
        for (x, y), place in zip(places.tolist(), shown.tolist(), strict=True):
            picture = pictures.strip(place, 1) if place in with_picture else ()
            points.append(
                MapPoint(
                    video_id=table.video_ids[place],
                    label=table.labels[place],
                    target=targets.get(table.video_ids[place]),
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
    """Places on a plane where near videos are near: t-SNE, or the principal axes of a handful."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    centred = (vectors - vectors.mean(axis=0)).astype(np.float64)
    if len(centred) < 3 or not centred.any():
        return np.stack([np.arange(len(centred)), np.zeros(len(centred))], axis=1)
    width = min(50, *centred.shape)
    reduced = PCA(width, random_state=0).fit_transform(centred)
    if len(centred) < 12:
        return np.pad(reduced, ((0, 0), (0, 2)))[:, :2]
    perplexity = min(30.0, (len(centred) - 1) / 3)
    found: Float[np.ndarray, "N 2"] = TSNE(
        perplexity=perplexity, init="pca", random_state=0
    ).fit_transform(reduced)
    return found


def _neighbours(table: Representations, pictures: _Pictures) -> list[Neighbours]:
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
                frames=pictures.strip(place, STRIP),
            )
            for place in (query, *hits)
        ]
        rows = tuple(
            Hit(strip=strip, score=score) for strip, score in zip(strips[1:], near, strict=True)
        )
        groups.append(Neighbours(query=strips[0], hits=rows))
    return groups


def _queries(table: Representations) -> NDArray[np.int64]:
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
        self.ids = store.ids

    def strip(self, place: int, count: int) -> tuple[bytes, ...]:
        """Frames at even distances from the start to the end of a video."""
        try:
            with open_video(self.paths[self.ids[place]]) as video:
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
