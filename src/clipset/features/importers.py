"""Imports existing features to a store: one file for each video, nothing is decoded or encoded.

Random and regular clips are the same rows.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from clipset.backbones.registry import BackboneSpec, Weights
from clipset.clips.config import Sampling
from clipset.clips.decode import VideoFacts
from clipset.data.catalog import Catalog, label_by_folder
from clipset.data.feature_files import (
    as_rows,
    describe_read_error,
    list_feature_files,
    make_boxes,
    read_arrays,
)
from clipset.data.file_state import read_file_state
from clipset.errors import StoreError, VideoError
from clipset.features.config import ImportConfig
from clipset.features.encode import ClipRows, EncodedVideo
from clipset.features.store import IMPORTED, FeatureStore, Manifest
from clipset.features.writer import StoreWriter
from clipset.text import escape_undecodable, name_text, path_text


def import_features(
    source: str | Path, out: str | Path, catalog: Catalog, config: ImportConfig | None = None
) -> FeatureStore:
    """Store the features of every video of the catalog; stored videos are skipped."""
    config, source = config or ImportConfig(), Path(source)
    files = match_files(catalog, list_feature_files(source))
    feature_dim, num_clips = _survey(files, config, source)
    spec = BackboneSpec(
        name=IMPORTED,
        dim=feature_dim,
        frames=1,
        stride=max(1, round(30 * config.clip_seconds)),
        size=1,
        mean=(0.0, 0.0, 0.0),
        std=(1.0, 1.0, 1.0),
        pooling="not known",
        weights=Weights(
            file=name_text(source.name), licence="not known", source="imported features"
        ),
        paper="not known",
    )
    sampling = Sampling(num_clips=num_clips, num_times=num_clips, num_crops=1, flip=False)
    manifest = Manifest(backbone=spec, sampling=sampling, seed=0, dtype=config.dtype)
    sources = [replace(v, path=files[v.id], end=None) for v in catalog if v.id in files]
    with StoreWriter(Path(out), manifest, catalog, sources=sources) as writer:
        writer.record_provenance("import", IMPORTED)
        feature_paths = (files.get(entry.id) for entry in writer.pending)
        video_rows = (_import_video(path, feature_dim, num_clips, config) for path in feature_paths)
        writer.write_all(enumerate(video_rows), "importing")
    return FeatureStore(out)


def catalog_of_features(source: str | Path) -> Catalog:
    """A catalog of the files themselves: sub-folders are labels (or splits, and then labels)."""
    source = Path(source)
    feature_files = list_feature_files(source, quiet=True)  # `import_features` lists them again
    title = name_text(source.absolute().name) or "features"
    return label_by_folder(feature_files, source, name=title)


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
        if match := next(filter(None, candidates), None):
            matches[video.id] = match
    if not matches:
        raise StoreError(
            f"no video of the catalog {catalog.name!r} has a feature file; looked for names "
            f"such as {next(iter(catalog)).id!r}, there are names such as {next(iter(files))!r}"
        )
    return matches


def _survey(files: Mapping[str, Path], config: ImportConfig, source: Path) -> tuple[int, int]:
    """The feature width of most files, and the number of clips of a video."""
    shapes: list[tuple[int, int, Path]] = []  # feature width, number of clips
    first_reason = ""
    for path in files.values():
        try:
            count, feature_dim = as_rows(read_arrays(path, config.key)[config.key]).shape
            shapes.append((feature_dim, count, path))
        except Exception as error:  # damaged files make a library raise anything
            first_reason = first_reason or f"{path.name}: {describe_read_error(error)}"
    if not shapes:
        raise StoreError(f"no file in {source} could be read ({first_reason})")
    [(feature_dim, _)] = Counter(dim for dim, _, _ in shapes).most_common(1)
    (count, first_path), *others = [(n, path) for dim, n, path in shapes if dim == feature_dim]
    for other_count, path in others:
        if config.clips is None and other_count != count:
            raise StoreError(
                f"the videos have different numbers of clips ({first_path.name}: {count}, "
                f"{path.name}: {other_count}); set how many to use of each: --clips {count}"
            )
    return feature_dim, config.clips or count


def _import_video(
    path: Path | None, feature_dim: int, num_clips: int, config: ImportConfig
) -> EncodedVideo | VideoError:
    """The rows of one video, or the reason why there are none."""
    if path is None:
        return VideoError("it has no feature file", transient=True)
    file_state = read_file_state(path)
    try:
        rows = _read_rows(path, feature_dim, config)
    except Exception as error:  # damaged files make a library raise anything
        reason = f"{path_text(path.name)}: {describe_read_error(error)}"
        return VideoError(escape_undecodable(reason))
    clip_indices = np.linspace(0, len(rows.features) - 1, num_clips).round().astype(np.int64)
    both = np.concatenate([clip_indices, clip_indices])  # random clips, regular clips
    facts = VideoFacts(
        random_count=num_clips, regular_count=num_clips, duration=float(rows.boxes[:, 1].max()),
        width=0, height=0, frames_expected=None, frames_found=0, frames_missing=0, file=file_state,
    )  # fmt: skip
    return EncodedVideo(facts, ClipRows(*(column[both] for column in rows)))


def _read_rows(path: Path, feature_dim: int, config: ImportConfig) -> ClipRows:
    """The features of a file, with the box and the middle of each clip."""
    arrays = read_arrays(path, config.key)
    features = as_rows(arrays[config.key])
    if not np.isfinite(features).all():
        raise StoreError("features hold NaN or infinity")
    if max(float(features.max()), -float(features.min())) > float(np.finfo(config.dtype).max):
        remedy = "; store them as float32" if config.dtype == "float16" else ""
        raise StoreError(f"features are too large for {config.dtype}{remedy}")
    boxes = make_boxes(len(features), arrays, config.clip_seconds)
    if features.shape[1] != feature_dim:
        raise StoreError(f"its features have {features.shape[1]} numbers, others {feature_dim}")
    return ClipRows(features.astype(np.float32), boxes, boxes[:, :2].mean(axis=1, keepdims=True))
