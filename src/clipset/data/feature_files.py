"""Files of features that other programs wrote: npy, npz, pt and h5, read without running code.

A file holds an array (V, D), a row for each clip, or (D,) for one. Files with named arrays may also
hold `times` (V, 2), starts and ends in seconds, or (V,), starts; and `boxes` (V, 4), fractions of
the frame, or (V, 7), whole rows of a store. For a.npy these are a.times.npy and a.boxes.npy.
"""

from __future__ import annotations

import math
import pickle
import zipfile
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray

from clipset.data.catalog import natural_key, walk_files
from clipset.errors import StoreError
from clipset.text import path_text, unique_ids

Arrays = Mapping[str, NDArray[Any]]
SIDECARS = ("times", "boxes")
MAX_SECONDS = 1e9  # 30 years of video
MIN_BYTES_ALLOWED, MAX_COMPRESSION = 2**28, 32  # size of arrays in any file, and per file byte
SAFE_FILTERS = {1, 2, 3, 4, 5, 6, 32000}  # HDF5's gzip, shuffle, …, scale-offset, and h5py's lzf


def list_feature_files(source: Path, *, quiet: bool = False) -> dict[str, Path]:
    """The feature files under a folder, by their relative name without the suffix.

    A sub-folder that cannot be read is skipped, with a message unless `quiet`.
    """
    if not source.is_dir():
        raise StoreError(f"folder not found: {source}; features are read from a folder of files")
    paths: dict[str, Path] = {}
    for path in sorted(walk_files(source, quiet=quiet), key=lambda p: natural_key(path_text(p))):
        is_sidecar = path.suffix == ".npy" and path.stem.endswith((".times", ".boxes"))
        if path.suffix.lower() in READERS and path.is_file() and not is_sidecar:
            file_name = path_text(path.relative_to(source).with_suffix(""))
            if file_name in paths:
                raise StoreError(f"{path} and {paths[file_name]} are both of one video; keep one")
            paths[file_name] = path
    if not paths:
        suffixes = ", ".join(READERS)
        raise StoreError(f"{source} has no feature files; looked for files ending in {suffixes}")
    ids = unique_ids(paths)
    return {ids[file_name]: path for file_name, path in paths.items()}


def read_arrays(path: Path, array_name: str = "features") -> Arrays:
    """The arrays of a file; a single one is the features, whatever its name."""
    try:
        arrays = dict(READERS[path.suffix.lower()](path))
    except StoreError:
        raise
    except Exception as error:  # damaged files make a library raise anything
        raise StoreError(f"it cannot be read ({describe_read_error(error)})") from None
    if array_name not in arrays:
        names = [name for name in arrays if name not in SIDECARS]
        if len(names) != 1:
            listed = ", ".join(names) or "none"
            raise StoreError(f"it has no array {array_name!r}, it has: {listed}; --key names it")
        arrays[array_name] = arrays.pop(names[0])
    return arrays


def as_rows(features: NDArray[Any]) -> NDArray[Any]:
    """Features as (V, D); an error if they are something else."""
    rows = features[None] if features.ndim == 1 else features
    if rows.ndim != 2 or 0 in rows.shape or rows.dtype.kind not in "fiu":
        raise StoreError(f"features must be numbers (V, D) or (D,), got {_describe(features)}")
    return rows


def make_boxes(num_clips: int, arrays: Arrays, clip_seconds: float) -> Float[np.ndarray, "V 7"]:
    """The boxes of the clips: as in the file, else consecutive clips of the whole frame."""
    box_rows = np.tile(np.array([0, 0, 0, 0, 1, 1, 0], np.float32), (num_clips, 1))
    box_rows[:, 0] = np.arange(num_clips) * clip_seconds
    box_rows[:, 1] = box_rows[:, 0] + clip_seconds
    columns_of_shape: dict[str, dict[tuple[int, ...], slice]] = {
        "times": {(num_clips, 2): slice(0, 2), (num_clips,): slice(0, 1)},
        "boxes": {(num_clips, 4): slice(2, 6), (num_clips, 7): slice(0, 7)},
    }
    for array_name, columns in columns_of_shape.items():
        array = arrays.get(array_name)
        if array is None:
            continue
        if array.dtype.kind not in "fiu" or array.shape not in columns:
            shapes = " or ".join(str(shape) for shape in columns)
            raise StoreError(f"{array_name} must be numbers {shapes}, got {_describe(array)}")
        if not (np.abs(array.astype(np.float64)) < MAX_SECONDS).all():
            raise StoreError(f"{array_name} hold NaN or more than {MAX_SECONDS:g}")
        if array.ndim == 1:  # starts alone
            box_rows[:, 0], box_rows[:, 1] = array, array + clip_seconds
        else:
            box_rows[:, columns[array.shape]] = array
    low, high = box_rows[:, [0, 2, 3]], box_rows[:, [1, 4, 5]]
    inside = (box_rows[:, 2:6] >= 0).all() and (box_rows[:, 2:6] <= 1).all()
    if not (np.isfinite(box_rows).all() and (low < high).all() and inside):
        raise StoreError("a clip must end after it starts, and its box must lie within 0 and 1")
    return box_rows


def describe_read_error(error: Exception) -> str:
    """One line about an error, without the advice of libraries to read unsafely."""
    if isinstance(error, StoreError):
        return str(error)
    text = str(error).strip() or type(error).__name__
    if isinstance(error, pickle.UnpicklingError) or "pickle" in text or "Python objects" in text:
        return "it holds something else than arrays of numbers"
    return text.splitlines()[0][:100]


def _describe(array: NDArray[Any]) -> str:
    return f"{array.dtype} {array.shape}"


def _read_npy(path: Path) -> Arrays:
    files = {"features": path} | {name: path.with_suffix(f".{name}.npy") for name in SIDECARS}
    return {
        name: np.load(file, mmap_mode="r", allow_pickle=False)  # never more than the file holds
        for name, file in files.items()
        if file == path or file.is_file()
    }


def _read_npz(path: Path) -> Arrays:
    _check_archive(path)
    with path.open("rb") as file, np.load(file, allow_pickle=False) as content:
        return {name: content[name] for name in content.files}


def _read_torch(path: Path) -> Arrays:
    if zipfile.is_zipfile(path):
        _check_archive(path)
    content = torch.load(path, map_location="cpu", weights_only=True)
    content = content if isinstance(content, dict) else {"features": content}
    tensors = {str(k): v.detach() for k, v in content.items() if isinstance(v, torch.Tensor)}
    for value in tensors.values():  # an expanded tensor is larger than its storage
        _check_size(value.numel() * value.element_size(), path)
    return {
        name: (value.float() if value.is_floating_point() else value).numpy()
        for name, value in tensors.items()
    }


def _read_h5(path: Path) -> Arrays:
    try:
        h5py = import_module("h5py")
    except ImportError:
        raise StoreError("reading .h5 needs h5py; install it: pip install 'clipset[h5]'") from None
    while h5py.h5pl.size():
        h5py.h5pl.remove(0)  # plug-ins are foreign code
    with h5py.File(path, "r") as content:
        for name in content:
            if not isinstance(content.get(name, getlink=True), h5py.HardLink):
                raise StoreError(f"{name} is a link, perhaps to another file; copy the data here")
        arrays = {}
        for name, data in content.items():
            if not (isinstance(data, h5py.Dataset) and data.shape and data.dtype.kind in "fiu"):
                continue
            if data.external or data.is_virtual:
                raise StoreError(f"{name} keeps its numbers in other files; copy them here")
            properties = data.id.get_create_plist()
            filters = {int(properties.get_filter(i)[0]) for i in range(properties.get_nfilters())}
            if not filters <= SAFE_FILTERS:
                raise StoreError(
                    f"{name} is compressed by a plug-in; write it with gzip, lzf or szip"
                )
            _check_size(data.size * data.dtype.itemsize, path)
            arrays[name] = np.asarray(data)
        return arrays


def _check_archive(path: Path) -> None:
    """Refuse an archive that claims more bytes than such a file can hold, or its arrays do."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        _check_size(sum(member.file_size for member in members), path)
        for member in members if path.suffix.lower() == ".npz" else ():
            with archive.open(member) as file:  # only its header, before memory is allocated
                npy = np.lib.format
                is_first = npy.read_magic(file) == (1, 0)
                read_header = npy.read_array_header_1_0 if is_first else npy.read_array_header_2_0
                shape, _, dtype = read_header(file)
            if math.prod(shape) * dtype.itemsize > member.file_size:
                raise StoreError(f"an array claims {dtype} {shape}, more than the file holds")


def _check_size(num_bytes: int, path: Path) -> None:
    """Refuse arrays that are far larger than their file: real features compress little."""
    allowed = max(MIN_BYTES_ALLOWED, path.stat().st_size * MAX_COMPRESSION)
    if num_bytes > allowed:
        raise StoreError(f"it claims {num_bytes} bytes, a file of its size holds {allowed}")


READERS: dict[str, Callable[[Path], Arrays]] = {
    ".npy": _read_npy,
    ".npz": _read_npz,
    ".pt": _read_torch,
    ".pth": _read_torch,
    ".h5": _read_h5,
    ".hdf5": _read_h5,
}
