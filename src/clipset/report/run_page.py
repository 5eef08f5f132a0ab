"""The page of a run: its content collected from the run's folder, or a table of several tasks."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import numpy as np
from jaxtyping import Float, Int
from PIL import Image

from clipset.clips.sampling import frame_indices_at
from clipset.config import parse_json
from clipset.decoding.reader import open_video
from clipset.errors import ConfigError, ReportError, VideoError
from clipset.evaluation.calibration import reliability
from clipset.evaluation.results import (
    Comparison,
    LowShotCurve,
    ProbeResult,
    RetrievalResult,
    Value,
    read_optional,
    read_predictions,
    read_records,
    read_results,
)
from clipset.evaluation.statistics import MEAN
from clipset.features.store import FeatureStore, open_run_store
from clipset.files import check_output
from clipset.process.locks import exclusive
from clipset.progress import bar, log
from clipset.report.content import (
    Calibration,
    Counts,
    Facts,
    MapPoint,
    Neighbours,
    ReportContent,
    Step,
    Strip,
)
from clipset.report.page import PageCell, TablePage, fact_rows, write_report, write_table_page
from clipset.report.video_map import map_positions
from clipset.report.wording import (
    Number,
    format_interval,
    format_p_value,
    format_score,
    metric_name,
    row_name,
    row_order,
)
from clipset.representation import VectorTable, nearest, read_vectors
from clipset.runs import read_run, record_output
from clipset.text import counted

MAX_THUMBNAILS = 800
NUM_QUERIES = 6
NUM_HITS = 5
STRIP_FRAMES = 5
THUMBNAIL_HEIGHT = 72  # pixels
Curves = dict[str, list[tuple[Number, Number]]]


def report_run(run_folder: str | Path) -> Path:
    """Write the page of a run; with several tasks, a table of them with links."""
    run_folder = Path(run_folder)
    page_path = run_folder / "report.html"
    read_run(run_folder)
    check_output(page_path, "file")
    with exclusive(run_folder):
        results = read_optional(run_folder / "results.json", ProbeResult)
        if any(result.task for result in results):
            write_table_page(_collect_tasks(run_folder, results), page_path)
        else:
            write_report(collect_content(run_folder), page_path)
        record_output(run_folder, page_path.name)
    return page_path


def _collect_tasks(run_folder: Path, results: Sequence[ProbeResult]) -> TablePage:
    """The page of a run with several tasks."""
    run_record = read_run(run_folder)
    task_names = [step["name"] for step in run_record.get("steps", [])]
    by_task = {
        name: read_results(run_folder / name)
        for name in task_names
        if (run_folder / name / "results.json").is_file()
    }
    mean_results = [result for result in results if result.task == MEAN]
    comparisons = read_records(run_folder / "comparisons.json", Comparison)
    return _tasks_page(run_record.get("name", ""), by_task, mean_results, comparisons)


def collect_content(run_folder: Path) -> ReportContent:
    """Everything in the folder of a run; files that do not exist leave their part empty."""
    run_record = read_run(run_folder)
    steps = run_record.get("steps", [])
    store = open_run_store(run_folder)
    vector_table = read_vectors(run_folder / "vectors")
    spec = store.manifest.backbone
    start_date = str(run_record.get("started", ""))[:10]
    leak_note = ", splits share videos or groups" if run_record.get("allowed_leaks") else ""
    return ReportContent(
        title=run_record.get("name") or run_folder.resolve().name,
        subtitle=f"{spec.name}, {counted(spec.frames, 'frame')} × {spec.size} px, "
        f"seed {run_record.get('seed')}, {start_date}{leak_note}",
        counts=Counts(
            videos=len(store),
            classes=len(store.catalog.classes) or None,
            clips=int(store.random.count.sum() + store.regular.count.sum()),
            hours=float(store.durations.sum() / 3600),
        ),
        facts=_collect_facts(run_record, store),
        steps=[
            Step(
                name=step["name"],
                seconds=step.get("seconds", 0.0),
                note="done before" if step.get("skipped") else "",
            )
            for step in steps
        ],
        results=read_optional(run_folder / "results.json", ProbeResult),
        note=next((s["note"] for s in steps if s["name"] == "evaluate" and s.get("note")), ""),
        comparisons=read_optional(run_folder / "comparisons.json", Comparison),
        calibration=read_calibration(run_folder / "predictions.safetensors"),
        low_shot=read_optional(run_folder / "low_shot.json", LowShotCurve),
        retrieval=read_optional(run_folder / "retrieval.json", RetrievalResult),
        curves=_readable_curves(run_folder / "model" / "metrics.jsonl"),
        map_points=_collect_map(vector_table, store),
        neighbours=_collect_neighbours(vector_table, store),
        failed={entry.id: entry.reason or "" for entry in store.failed},
        damaged=[entry for entry in store.entries if entry.damage],
    )


def read_calibration(path: Path) -> list[Calibration]:
    """The calibration of each probe; none without predictions of classes."""
    predictions = read_predictions(path) if path.is_file() else None
    if predictions is None or not predictions.classes:
        return []
    outputs = predictions.outputs.items()
    return [measure_calibration(key, own, predictions.truth) for key, own in outputs]


def measure_calibration(
    probe_key: tuple[str, str], outputs: Float[np.ndarray, "S M C"], targets: Int[np.ndarray, " M"]
) -> Calibration:
    """The calibration of a row such as ("scale", "linear")."""
    confidence = outputs.max(axis=2).astype(np.float64).ravel()  # (S M,)
    is_correct = (outputs.argmax(axis=2) == targets).astype(np.float64).ravel()
    reliability_bins = reliability(np.clip(confidence, 0.0, 1.0), is_correct)
    return Calibration(features=probe_key[0], probe=probe_key[1], bins=tuple(reliability_bins))


def _collect_facts(run_record: Mapping[str, Any], store: FeatureStore) -> Facts:
    spec = store.manifest.backbone
    recipe: dict[str, Any] = run_record.get("recipe", {})
    recipe_sections = {name: value for name, value in recipe.items() if isinstance(value, dict)}
    top_level = {name: value for name, value in recipe.items() if name not in recipe_sections}
    return {
        "run": [
            *((name, str(run_record.get(name, ""))) for name in ("started", "seed", "device")),
            *((name, str(line)) for name, line in run_record.get("decisions", {}).items()),
            *(("allowed leak", str(leak)) for leak in run_record.get("allowed_leaks", [])),
        ],
        "backbone": [
            ("name", spec.name),
            ("feature dimension", str(spec.dim)),
            ("clip", f"{counted(spec.frames, 'frame')}, {spec.span:.2f} s, {spec.size} px"),
            ("pooling", spec.pooling),
            ("weights", f"{spec.weights.file} ({spec.weights.licence})"),
            ("weights sha256", spec.weights.sha256 or "unknown"),
            ("engine", store.manifest.made_by.get("engine", "unknown")),
        ],
        "machine and versions": list(run_record.get("environment", {}).items()),
        "recipe": fact_rows(top_level),
        **{f"recipe: {name}": fact_rows(section) for name, section in recipe_sections.items()},
    }


def _readable_curves(path: Path) -> Curves:
    """Training metrics by epoch; none, with a line, if the file is damaged."""
    try:
        return read_curves(path)
    except (ReportError, ConfigError) as error:
        log(f"the report has no training curves: {error}")
        return {}


def read_curves(path: Path) -> Curves:
    """Training metrics by epoch; JSON has null for a number that is not finite."""
    curves: Curves = {}
    metric_lines = path.read_bytes().splitlines() if path.is_file() else []
    for line_number, line in enumerate(metric_lines, start=1):
        source = f"line {line_number} of {path}"
        try:
            metrics = msgspec.convert(parse_json(line, source), type=dict[str, Value | None])
        except msgspec.ValidationError as error:
            raise ReportError(f"{source} is not what clipset wrote: {error}") from None
        epoch = metrics.pop("epoch", None)
        if epoch is None:
            raise ReportError(f"{source} has no epoch")
        for name, value in metrics.items():
            if name != "seconds":
                curves.setdefault(name, []).append((epoch, math.nan if value is None else value))
    return curves


def _collect_map(table: VectorTable, store: FeatureStore) -> list[MapPoint]:
    videos_by_id = {video.id: video for video in store.catalog}
    positions = map_positions(table.pooled)
    with_thumbnail = set(_spread(len(positions), MAX_THUMBNAILS).tolist())
    map_points = []
    with bar("drawing the map", len(positions), "videos") as advance:
        for index, (x, y) in enumerate(positions.tolist()):
            video = videos_by_id.get(table.video_ids[index])
            frames = _read_frames(video.path, 1) if video and index in with_thumbnail else ()
            point = MapPoint(
                video_id=table.video_ids[index],
                label=table.labels[index],
                target=video.target if video else None,
                split=table.splits[index],
                x=x,
                y=y,
                thumbnail=frames[0] if frames else None,
            )
            map_points.append(point)
            advance()
    return map_points


def _collect_neighbours(table: VectorTable, store: FeatureStore) -> list[Neighbours]:
    """A few query videos of different labels (test videos first) and their neighbours."""
    if len(table.video_ids) < 2:
        return []
    video_paths = {video.id: video.path for video in store.catalog}

    def make_strip(index: int, similarity: float | None = None) -> Strip:
        video_id, label = table.video_ids[index], table.labels[index]
        path = video_paths.get(video_id)
        frames = _read_frames(path, STRIP_FRAMES) if path else ()
        return Strip(video_id=video_id, label=label, frames=frames, similarity=similarity)

    order = sorted(range(len(table.video_ids)), key=lambda index: table.splits[index] != "test")
    first_of_label = {table.labels[index]: index for index in reversed(order)}
    if len(first_of_label) > 1:
        order = [index for index in order if first_of_label[table.labels[index]] == index]
    queries = np.array(order)[_spread(len(order), NUM_QUERIES)]
    hits, similarities = nearest(table.pooled, queries, NUM_HITS)
    by_query = zip(queries.tolist(), hits.tolist(), similarities.tolist(), strict=True)
    return [
        Neighbours(query=make_strip(query), hits=tuple(map(make_strip, indices, scores)))
        for query, indices, scores in by_query
    ]


def _spread(total: int, count: int) -> Int[np.ndarray, " K"]:
    """At most `count` of `total` indices, evenly spaced."""
    return np.unique(np.linspace(0, total - 1, min(total, count)).round().astype(np.int64))


def _read_frames(video_path: Path, num_frames: int) -> tuple[bytes, ...]:
    """Evenly spaced frames of a video as small JPEG files; none if it cannot be read."""
    try:
        with open_video(video_path) as video:
            frame_times = (np.arange(num_frames) + 0.5) / num_frames * video.info.duration
            indices = frame_indices_at(frame_times, video.info.frame_times)
            frames = dict(video.frames(np.unique(indices).tolist(), short_side=THUMBNAIL_HEIGHT))
    except VideoError:
        return ()
    jpeg_files = []
    for frame_index in indices.tolist():
        image = Image.fromarray(frames[frame_index])
        image.thumbnail((THUMBNAIL_HEIGHT * 2, THUMBNAIL_HEIGHT))
        jpeg_file = io.BytesIO()
        image.save(jpeg_file, "JPEG", quality=72)
        jpeg_files.append(jpeg_file.getvalue())
    return tuple(jpeg_files)


def _tasks_page(
    title: str,
    by_task: Mapping[str, Sequence[ProbeResult]],
    means: Sequence[ProbeResult],
    comparisons: Sequence[Comparison],
) -> TablePage:
    """A column for each task, a row for each probe, and a link to the report of each task."""
    columns = {**by_task, **({MEAN: means} if means else {})}
    results = [result for column in columns.values() for result in column]
    probe_keys = sorted({result.key for result in results}, key=row_order)
    metric_names = ", ".join(sorted({metric_name(result.metric) for result in results}))
    ssl_splits = ", ".join(sorted({result.ssl_split or "unknown" for result in results}))
    pooled_note = "; in that of a mean, a video of several splits counts once" if means else ""
    return TablePage(
        title=title,
        subtitle=f"{metric_names or 'not scored'}; pre-trained with ssl_split = "
        f"{ssl_splits or 'unknown'}",
        lede=f"Scores with 95 % intervals{pooled_note}.",
        columns=list(columns),
        rows=[
            (row_name(*key), [_cell(column, key) for column in columns.values()])
            for key in probe_keys
        ],
        notes=[_describe(comparison) for comparison in comparisons],
        links=[(f"{task}: report", f"{quote(task)}/report.html") for task in by_task],
    )


def _cell(results: Sequence[ProbeResult], probe_key: tuple[str, str]) -> PageCell:
    result = next((result for result in results if result.key == probe_key), None)
    if result is None:
        return PageCell(note="not run")
    return PageCell(
        score=format_score(result.metric, result.value),
        interval=format_interval(result.metric, result.interval),
    )


def _describe(comparison: Comparison) -> str:
    """A comparison of means over official splits as a sentence."""
    values = (comparison.difference, *comparison.interval)
    difference, low, high = (format_score(comparison.metric, value) for value in values)
    p_value = format_p_value(comparison.p)
    return (
        f"{row_name(*comparison.key)} minus {row_name(*comparison.baseline)}, mean over the "
        f"splits: {difference} ({low} to {high}), "
        f"p {p_value if p_value.startswith('<') else f'= {p_value}'}; {comparison.n} videos, "
        "resampled jointly in all splits that test them"
    )
