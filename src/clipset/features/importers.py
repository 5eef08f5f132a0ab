"""Features that already exist → a store: one file for each video, nothing is decoded or run.

A file holds an array (V, D), a row for each clip, or (D,) for one. Files with named arrays may also
hold `times` (V, 2), starts and ends in seconds, or (V,), starts; and `boxes` (V, 4), fractions of
the frame, or (V, 7), whole rows of a store. Random and regular clips are the same rows.
"""

from __future__ import annotations

import math
import os
import pickle
import posixpath
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray

from clipset.backbones.registry import BackboneSpec, Weights
from clipset.clips.config import Sampling
from clipset.data.catalog import Catalog, label_by_folder
from clipset.data.file_state import read_file_state
from clipset.data.folder import natural_key
from clipset.errors import StoreError
from clipset.features.cutting import CutFacts
from clipset.features.encode import ClipRows, Seen
from clipset.features.import_config import ImportConfig
from clipset.features.store import IMPORTED, FeatureStore, Manifest
from clipset.features.writer import StoreWriter
from clipset.progress import bar, say
from clipset.text import escape_undecodable, name_text, path_text, unique_ids

Arrays = Mapping[str, NDArray[Any]]
SIDECARS = ("times", "boxes")  # a.times.npy and a.boxes.npy belong to a.npy
LONGEST = 1e9  # seconds; 30 years of video
SMALL, DENSEST = 2**28, 32  # bytes that any file may announce, and for each of its own
OWN_FILTERS = {1, 2, 3, 4, 5, 6, 32000}  # HDF5's gzip, shuffle, …, scale-offset, and h5py's lzf


def import_features(
    source: Path, folder: Path, catalog: Catalog, config: ImportConfig | None = None
) -> FeatureStore:
    """Store the features of every video of the catalog; what is stored already is left alone."""
    config = config or ImportConfig()
    files = match_files(catalog, list_files(source))
    dim, clips = _survey(files, config, source)
    manifest = Manifest(
        backbone=_spec(source, dim, config),
        sampling=Sampling(num_clips=clips, num_times=clips, num_crops=1, flip=False),
        seed=0,
        dtype=config.dtype,
    )
    sources = [replace(v, path=files[v.id], end=None) for v in catalog if v.id in files]
    with (
        StoreWriter(folder, manifest, catalog, sources=sources) as writer,
        bar("importing", len(writer.todo), "videos") as advance,
    ):
        writer.sign({"engine": "import"})
        for place, entry in enumerate(writer.todo):
            writer.put(_take(place, files.get(entry.id), dim, clips, config))
            advance()
    return FeatureStore(folder)


def catalog_of(source: Path) -> Catalog:
    """A catalog of the files themselves: sub-folders are labels (or splits, and then labels)."""
    files = list_files(source, quiet=True)  # `import_features` lists them again
    title = name_text(source.absolute().name) or "features"
    return label_by_folder(files, source, name=title)


def list_files(source: Path, *, quiet: bool = False) -> dict[str, Path]:
    """The files of features under a folder, by their name in it without the ending.

    A sub-folder that cannot be read is passed over, and said unless `quiet`.
    """
    if not source.is_dir():
        raise StoreError(f"there is no folder {source}; features are read from a folder of files")
    found: dict[str, Path] = {}
    for path in sorted(
        _walk(source, quiet), key=lambda path: natural_key(path_text(path.as_posix()))
    ):
        if path.suffix.lower() in READERS and path.is_file() and not _is_sidecar(path):
            name = path_text(path.relative_to(source).with_suffix("").as_posix())
            if name in found:
                raise StoreError(f"{path} and {found[name]} are both of one video; keep one")
            found[name] = path
    ids = unique_ids(found)
    files = {ids[name]: path for name, path in found.items()}
    if not files:
        known = ", ".join(READERS)
        raise StoreError(f"{source} holds no features; looked for files ending in {known}")
    return files


def _walk(source: Path, quiet: bool) -> Iterator[Path]:
    """Every file under a folder."""

    def skip(error: OSError) -> None:
        reason = (error.strerror or str(error)).lower()
        if not quiet:
            say(f"skipped: cannot read the folder {error.filename}: {reason}")

    for folder, _, names in os.walk(source, onerror=skip):
        yield from (Path(folder) / name for name in names)


def match_files(catalog: Catalog, files: Mapping[str, Path]) -> dict[str, Path]:
    """Each video's file: its own path, or the one with its id or the name of its file."""
    by_last: dict[str, list[Path]] = {}
    for name, path in files.items():
        by_last.setdefault(posixpath.basename(name), []).append(path)
    own = {path.absolute(): path for path in files.values()}
    found: dict[str, Path] = {}
    for video in catalog:
        last_names = (name_text(video.path.stem), name_text(video.path.name))
        alike = [by_last.get(last, []) for last in last_names]
        candidates = (
            own.get(video.path.absolute()),
            files.get(video.id),
            files.get(Path(video.id).with_suffix("").as_posix()),
            *(paths[0] for paths in alike if len(paths) == 1),
        )
        matches = [path for path in candidates if path is not None]
        if matches:
            found[video.id] = matches[0]
    if not found:
        raise StoreError(
            f"no video of the catalog {catalog.name!r} has a file of features; looked for names "
            f"such as {next(iter(catalog)).id!r}, there are names such as {next(iter(files))!r}"
        )
    return found


def read_rows(path: Path, config: ImportConfig) -> ClipRows:
    """The features of a file, with the box and the middle of each clip."""
    arrays = _read(path, config)
    features = _as_rows(arrays[config.key])
    if not np.isfinite(features).all():
        raise StoreError("features hold NaN or infinity")
    largest = float(np.finfo(config.dtype).max)
    if max(float(features.max()), -float(features.min())) > largest:
        other = "; store them as float32" if config.dtype == "float16" else ""
        raise StoreError(f"features are too large for {config.dtype}{other}")
    boxes = place_clips(len(features), arrays, config.clip_seconds)
    middles = boxes[:, :2].mean(axis=1, keepdims=True)
    return ClipRows(features.astype(np.float32), boxes, middles)


def _as_rows(features: NDArray[Any]) -> NDArray[Any]:
    """Features as (V, D); an error if they are something else."""
    rows = features[None] if features.ndim == 1 else features
    if rows.ndim != 2 or 0 in rows.shape or rows.dtype.kind not in "fiu":
        raise StoreError(f"features must be numbers (V, D) or (D,), got {_kind(features)}")
    return rows


def place_clips(count: int, arrays: Arrays, seconds: float) -> Float[np.ndarray, "V 7"]:
    """Where the clips are: as the file says, else one after the other over the whole frame."""
    boxes, times = arrays.get("boxes"), arrays.get("times")
    for name, array in (("boxes", boxes), ("times", times)):
        if array is not None and array.dtype.kind not in "fiu":
            raise StoreError(f"{name} must be numbers, got {_kind(array)}")
        if array is not None and not (np.abs(array.astype(np.float64)) < LONGEST).all():
            raise StoreError(f"{name} hold NaN or more than {LONGEST:g}")
    rows = np.tile(np.array([0, 0, 0, 0, 1, 1, 0], np.float32), (count, 1))
    rows[:, 0] = np.arange(count) * seconds
    rows[:, 1] = rows[:, 0] + seconds
    if times is not None and times.shape == (count, 2):
        rows[:, :2] = times
    elif times is not None and times.shape == (count,):
        rows[:, 0], rows[:, 1] = times, times + seconds
    elif times is not None:
        raise StoreError(f"times must be ({count}, 2) or ({count},), got {_kind(times)}")
    if boxes is not None and boxes.shape == (count, 7):
        rows[:] = boxes
    elif boxes is not None and boxes.shape == (count, 4):
        rows[:, 2:6] = boxes
    elif boxes is not None:
        raise StoreError(f"boxes must be ({count}, 4) or ({count}, 7), got {_kind(boxes)}")
    low, high = rows[:, [0, 2, 3]], rows[:, [1, 4, 5]]
    inside = (rows[:, 2:6] >= 0).all() and (rows[:, 2:6] <= 1).all()
    if not (np.isfinite(rows).all() and (low < high).all() and inside):
        raise StoreError("a clip must end after it starts, and its box must lie within 0 and 1")
    return rows


def _take(place: int, path: Path | None, dim: int, clips: int, config: ImportConfig) -> Seen:
    """The rows of one video, or the reason why there are none."""
    if path is None:
        return Seen(place, reason="there is no file of features for it", transient=True)
    file = read_file_state(path)
    try:
        rows = read_rows(path, config)
        if rows.features.shape[1] != dim:
            raise StoreError(f"its features have {rows.features.shape[1]} numbers, others {dim}")
    except Exception as error:  # odd bytes make a library raise anything
        reason = escape_undecodable(f"{path_text(path.name)}: {_reason(error)}")
        return Seen(place, reason=reason)
    chosen = np.linspace(0, len(rows.features) - 1, clips).round().astype(np.int64)
    both = np.concatenate([chosen, chosen])  # random clips, regular clips
    facts = CutFacts(
        random_clips=clips, regular_clips=clips, duration=float(rows.boxes[:, 1].max()),
        width=0, height=0, frames_expected=None, frames_found=0, frames_missing=0, file=file,
    )  # fmt: skip
    kept = ClipRows(rows.features[both], rows.boxes[both], rows.times[both])
    return Seen(place, facts=facts, rows=kept, seconds=0.0)


def _survey(files: Mapping[str, Path], config: ImportConfig, source: Path) -> tuple[int, int]:
    """How wide the features of most files are, and how many clips a video gets."""
    dims: Counter[int] = Counter()
    counts: dict[int, dict[int, Path]] = {}
    reason = ""
    for path in files.values():
        try:
            count, dim = _as_rows(_read(path, config)[config.key]).shape
        except Exception as error:  # odd bytes make a library raise anything
            reason = reason or f"{path.name}: {_reason(error)}"
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
            f"{others[0][1].name}: {others[0][0]}); say how many to take of each: --clips {count}"
        )
    return dim, config.clips or count


def _spec(source: Path, dim: int, config: ImportConfig) -> BackboneSpec:
    return BackboneSpec(
        name=IMPORTED,
        dim=dim,
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


def _read(path: Path, config: ImportConfig) -> Arrays:
    """The arrays of a file; a single one is the features, whatever its name."""
    try:
        arrays = dict(READERS[path.suffix.lower()](path))
    except StoreError:
        raise
    except Exception as error:  # odd bytes make a library raise anything
        raise StoreError(f"it cannot be read ({_reason(error)})") from None
    if config.key not in arrays:
        others = [name for name in arrays if name not in SIDECARS]
        if len(others) != 1:
            found = ", ".join(others) or "none"
            raise StoreError(f"it has no array {config.key!r}, it has: {found}; --key names it")
        arrays[config.key] = arrays.pop(others[0])
    return arrays


def _read_npy(path: Path) -> Arrays:
    beside = {name: path.with_suffix(f".{name}.npy") for name in SIDECARS}
    found = {name: file for name, file in beside.items() if file.is_file()}
    return {
        name: np.load(file, mmap_mode="r", allow_pickle=False)  # never more than the file holds
        for name, file in {"features": path, **found}.items()
    }


def _read_npz(path: Path) -> Arrays:
    _refuse_bomb(path)
    with path.open("rb") as file, np.load(file, allow_pickle=False) as content:
        return {name: content[name] for name in content.files}


def _read_torch(path: Path) -> Arrays:
    if zipfile.is_zipfile(path):
        _refuse_bomb(path)
    content = torch.load(path, map_location="cpu", weights_only=True)
    given = content if isinstance(content, dict) else {"features": content}
    tensors = {str(k): v.detach() for k, v in given.items() if isinstance(v, torch.Tensor)}
    for value in tensors.values():  # one number can be shown as if it were many
        _refuse_size(value.numel() * value.element_size(), path)
    return {
        name: (value.float() if value.is_floating_point() else value).numpy()
        for name, value in tensors.items()
    }


def _read_h5(path: Path) -> Arrays:
    try:
        h5py = import_module("h5py")
    except ImportError:
        raise StoreError("reading .h5 needs h5py; install it: pip install h5py") from None
    while h5py.h5pl.size():
        h5py.h5pl.remove(0)  # a filter of a plug-in is code of somebody's
    with h5py.File(path, "r") as content:
        for name in content:
            if not isinstance(content.get(name, getlink=True), h5py.HardLink):
                raise StoreError(f"{name} is a link, perhaps to another file; copy the data here")
        found = {name: content[name] for name in content}
        arrays = {
            name: dataset
            for name, dataset in found.items()
            if isinstance(dataset, h5py.Dataset) and dataset.shape and dataset.dtype.kind in "fiu"
        }
        for name, dataset in arrays.items():
            _refuse_elsewhere(name, dataset)
            _refuse_size(dataset.size * dataset.dtype.itemsize, path)
        return {name: np.asarray(dataset) for name, dataset in arrays.items()}


def _refuse_elsewhere(name: str, dataset: Any) -> None:
    """Refuse data that is not in this file, or that is read by code that is not HDF5's own."""
    if dataset.external or dataset.is_virtual:
        raise StoreError(f"{name} keeps its numbers in other files; copy them into this one")
    made = dataset.id.get_create_plist()
    filters = {int(made.get_filter(index)[0]) for index in range(made.get_nfilters())}
    if not filters <= OWN_FILTERS:
        raise StoreError(f"{name} is compressed by a plug-in; write it with gzip, lzf or szip")


def _refuse_bomb(path: Path) -> None:
    """Refuse an archive that says it becomes much larger than such a file can be."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        _refuse_size(sum(member.file_size for member in members), path)
        for member in members if path.suffix.lower() == ".npz" else ():
            with archive.open(member) as file:
                _refuse_announced(file, member.file_size)


def _refuse_announced(file: Any, size: int) -> None:
    """Refuse an array whose header announces more than there is, before memory is taken."""
    version = np.lib.format.read_magic(file)
    first = version == (1, 0)
    read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    if math.prod(shape) * dtype.itemsize > size:
        raise StoreError(f"an array announces {dtype} {shape}, more than the file holds")


def _refuse_size(announced: int, path: Path) -> None:
    """Refuse what a file of this size can only hold as a trick: numbers do not shrink so far."""
    allowed = max(SMALL, path.stat().st_size * DENSEST)
    if announced > allowed:
        raise StoreError(f"it announces {announced} bytes, a file of its size holds {allowed}")


READERS: dict[str, Callable[[Path], Arrays]] = {
    ".npy": _read_npy,
    ".npz": _read_npz,
    ".pt": _read_torch,
    ".pth": _read_torch,
    ".h5": _read_h5,
    ".hdf5": _read_h5,
}


def _reason(error: Exception) -> str:
    """A few words of an error; libraries advise to read unsafely, which we do not pass on."""
    if isinstance(error, StoreError):
        return str(error)
    text = str(error).strip() or type(error).__name__
    if isinstance(error, pickle.UnpicklingError) or "pickle" in text or "Python objects" in text:
        return "it holds something else than arrays of numbers"
    return text.splitlines()[0][:100]


def _is_sidecar(path: Path) -> bool:
    return path.suffix == ".npy" and Path(path.stem).suffix.removeprefix(".") in SIDECARS


def _kind(array: NDArray[Any]) -> str:
    return f"{array.dtype} {array.shape}"
