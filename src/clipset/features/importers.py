"""Imports existing features to a store: one file for each video, nothing is decoded or encoded.

`times` (V, 2) are starts and ends in seconds, (V,) starts; `boxes` (V, 4) are fractions of the
frame, (V, 7) whole rows of a store. Random and regular clips are the same rows.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from clipset.backbones.registry import BackboneSpec, Weights
from clipset.clips.config import Sampling
from clipset.data.catalog import Catalog, label_by_folder
from clipset.data.feature_files import (
    Arrays,
    describe_read_error,
    list_feature_files,
    read_arrays,
)
from clipset.data.file_state import read_file_state
from clipset.errors import StoreError
from clipset.features.config import ImportConfig
from clipset.features.decode_clips import VideoFacts
from clipset.features.encode import ClipRows, EncodedVideo
from clipset.features.store import IMPORTED, FeatureStore, Manifest
from clipset.features.writer import StoreWriter
from clipset.progress import bar
from clipset.text import escape_undecodable, name_text, path_text

MAX_SECONDS = 1e9  # 30 years of video


def import_features(
    source: str | Path, out: str | Path, catalog: Catalog, config: ImportConfig | None = None
) -> FeatureStore:
    """Store the features of every video of the catalog; stored videos are skipped."""
    config, source, out = config or ImportConfig(), Path(source), Path(out)
    files = match_files(catalog, list_feature_files(source))
    dim, num_clips = _survey(files, config, source)
    manifest = Manifest(
        backbone=_spec(source, dim, config),
        sampling=Sampling(num_clips=num_clips, num_times=num_clips, num_crops=1, flip=False),
        seed=0,
        dtype=config.dtype,
    )
    sources = [replace(v, path=files[v.id], end=None) for v in catalog if v.id in files]
    with (
        StoreWriter(out, manifest, catalog, sources=sources) as writer,
        bar("importing", len(writer.pending), "videos") as advance,
    ):
        writer.record_provenance({"engine": "import"})
        for index, entry in enumerate(writer.pending):
            writer.put(_import_video(index, files.get(entry.id), dim, num_clips, config))
            advance()
    return FeatureStore(out)


def catalog_of(source: Path) -> Catalog:
    """A catalog of the files themselves: sub-folders are labels (or splits, and then labels)."""
    files = list_feature_files(source, quiet=True)  # `import_features` lists them again
    title = name_text(source.absolute().name) or "features"
    return label_by_folder(files, source, name=title)


def match_files(catalog: Catalog, files: Mapping[str, Path]) -> dict[str, Path]:
    """The file of each video: its own path, or the file with its id or file name."""
    by_base_name: dict[str, list[Path]] = {}
    for name, path in files.items():
        by_base_name.setdefault(posixpath.basename(name), []).append(path)
    by_path = {path.absolute(): path for path in files.values()}
    matches: dict[str, Path] = {}
    for video in catalog:
        base_names = (name_text(video.path.stem), name_text(video.path.name))
        same_name = [by_base_name.get(name, []) for name in base_names]
        candidates = (
            by_path.get(video.path.absolute()),
            files.get(video.id),
            files.get(Path(video.id).with_suffix("").as_posix()),
            *(paths[0] for paths in same_name if len(paths) == 1),
        )
        match = next((path for path in candidates if path is not None), None)
        if match is not None:
            matches[video.id] = match
    if not matches:
        raise StoreError(
            f"no video of the catalog {catalog.name!r} has a feature file; looked for names "
            f"such as {next(iter(catalog)).id!r}, there are names such as {next(iter(files))!r}"
        )
    return matches


def read_rows(path: Path, config: ImportConfig) -> ClipRows:
    """The features of a file, with the box and the middle of each clip."""
    arrays = read_arrays(path, config.key)
    features = _as_rows(arrays[config.key])
    if not np.isfinite(features).all():
        raise StoreError("features hold NaN or infinity")
    largest = float(np.finfo(config.dtype).max)
    if max(float(features.max()), -float(features.min())) > largest:
        remedy = "; store them as float32" if config.dtype == "float16" else ""
        raise StoreError(f"features are too large for {config.dtype}{remedy}")
    boxes = make_boxes(len(features), arrays, config.clip_seconds)
    middles = boxes[:, :2].mean(axis=1, keepdims=True)
    return ClipRows(features.astype(np.float32), boxes, middles)


def make_boxes(count: int, arrays: Arrays, seconds: float) -> Float[np.ndarray, "V 7"]:
    """The boxes of the clips: as in the file, else consecutive clips of the whole frame."""
    boxes, times = arrays.get("boxes"), arrays.get("times")
    for name, array in (("boxes", boxes), ("times", times)):
        if array is not None and array.dtype.kind not in "fiu":
            raise StoreError(f"{name} must be numbers, got {_describe(array)}")
        if array is not None and not (np.abs(array.astype(np.float64)) < MAX_SECONDS).all():
            raise StoreError(f"{name} hold NaN or more than {MAX_SECONDS:g}")
    rows = np.tile(np.array([0, 0, 0, 0, 1, 1, 0], np.float32), (count, 1))
    rows[:, 0] = np.arange(count) * seconds
    rows[:, 1] = rows[:, 0] + seconds
    if times is not None and times.shape == (count, 2):
        rows[:, :2] = times
    elif times is not None and times.shape == (count,):
        rows[:, 0], rows[:, 1] = times, times + seconds
    elif times is not None:
        raise StoreError(f"times must be ({count}, 2) or ({count},), got {_describe(times)}")
    if boxes is not None and boxes.shape == (count, 7):
        rows[:] = boxes
    elif boxes is not None and boxes.shape == (count, 4):
        rows[:, 2:6] = boxes
    elif boxes is not None:
        raise StoreError(f"boxes must be ({count}, 4) or ({count}, 7), got {_describe(boxes)}")
    low, high = rows[:, [0, 2, 3]], rows[:, [1, 4, 5]]
    inside = (rows[:, 2:6] >= 0).all() and (rows[:, 2:6] <= 1).all()
    if not (np.isfinite(rows).all() and (low < high).all() and inside):
        raise StoreError("a clip must end after it starts, and its box must lie within 0 and 1")
    return rows


def _import_video(
    index: int, path: Path | None, dim: int, num_clips: int, config: ImportConfig
) -> EncodedVideo:
    """The rows of one video, or the reason why there are none."""
    if path is None:
        return EncodedVideo(index, reason="it has no feature file", transient=True)
    file = read_file_state(path)
    try:
        rows = read_rows(path, config)
        if rows.features.shape[1] != dim:
            raise StoreError(f"its features have {rows.features.shape[1]} numbers, others {dim}")
    except Exception as error:  # damaged files make a library raise anything
        reason = escape_undecodable(f"{path_text(path.name)}: {describe_read_error(error)}")
        return EncodedVideo(index, reason=reason)
    clips = np.linspace(0, len(rows.features) - 1, num_clips).round().astype(np.int64)
    both = np.concatenate([clips, clips])  # random clips, regular clips
    facts = VideoFacts(
        random_count=num_clips, regular_count=num_clips, duration=float(rows.boxes[:, 1].max()),
        width=0, height=0, frames_expected=None, frames_found=0, frames_missing=0, file=file,
    )  # fmt: skip
    selected = ClipRows(rows.features[both], rows.boxes[both], rows.times[both])
    return EncodedVideo(index, facts=facts, rows=selected, seconds=0.0)


def _survey(files: Mapping[str, Path], config: ImportConfig, source: Path) -> tuple[int, int]:
    """The feature width of most files, and the number of clips of a video."""
    dims: Counter[int] = Counter()
    counts: dict[int, dict[int, Path]] = {}
    reason = ""
    for path in files.values():
        try:
            count, dim = _as_rows(read_arrays(path, config.key)[config.key]).shape
        except Exception as error:  # damaged files make a library raise anything
            reason = reason or f"{path.name}: {describe_read_error(error)}"
            continue
        dims[dim] += 1
        counts.setdefault(dim, {}).setdefault(count, path)
    if not dims:
        raise StoreError(f"no file in {source} could be read ({reason})")
    [(dim, _)] = dims.most_common(1)
    (count, first), *others = counts[dim].items()
    if config.clips is None and others:
        raise StoreError(
            f"the videos have different numbers of clips ({first.name}: {count}, "
            f"{others[0][1].name}: {others[0][0]}); set how many to use of each: --clips {count}"
        )
    return dim, config.clips or count


def _as_rows(features: NDArray[Any]) -> NDArray[Any]:
    """Features as (V, D); an error if they are something else."""
    rows = features[None] if features.ndim == 1 else features
    if rows.ndim != 2 or 0 in rows.shape or rows.dtype.kind not in "fiu":
        raise StoreError(f"features must be numbers (V, D) or (D,), got {_describe(features)}")
    return rows


def _spec(source: Path, dim: int, config: ImportConfig) -> BackboneSpec:
    file = name_text(source.name)
    return BackboneSpec(
        name=IMPORTED,
        dim=dim,
        frames=1,
        stride=max(1, round(30 * config.clip_seconds)),
        size=1,
        mean=(0.0, 0.0, 0.0),
        std=(1.0, 1.0, 1.0),
        pooling="not known",
        weights=Weights(file=file, licence="not known", source="imported features"),
        paper="not known",
    )


def _describe(array: NDArray[Any]) -> str:
    return f"{array.dtype} {array.shape}"
