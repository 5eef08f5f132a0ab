"""The table of vectors: written, read, and searched for similar videos."""

from __future__ import annotations

import csv
import io
import json
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from clipset.checksums import find_damage, seal
from clipset.errors import ConfigError, OutputError, StoreError
from clipset.files import write_together, writing
from clipset.model.knn import most_similar
from clipset.representation.time_course import video_vectors
from clipset.sets.batch import mean_over_clips
from clipset.text import csv_text, deneutralise

VectorPart = Literal["clip", "token", "set"]
VECTOR_PARTS: tuple[VectorPart, ...] = ("clip", "token", "set")
DEFAULT_PARTS: tuple[VectorPart, ...] = ("clip", "token")
PAPER_PARTS: tuple[VectorPart, ...] = ("clip", "set")


@dataclass(frozen=True, kw_only=True)
class VectorTable:
    """A vector for every clip of every video; `pooled` has one for each video.

    `valid` is False for padding; None if all videos have equally many clips. With windows, each
    window is a row of its own after the row of the whole video, whose window is None. `starts` and
    `ends` are in seconds. `failed` are the reasons of unreadable new videos.
    """

    video_ids: tuple[str, ...]
    labels: tuple[str | None, ...]
    splits: tuple[str | None, ...]
    vectors: Float[np.ndarray, "N V R"]
    valid: Bool[np.ndarray, "N V"] | None = None
    starts: tuple[float, ...] = ()
    ends: tuple[float, ...] = ()
    windows: tuple[int | None, ...] = ()
    parts: tuple[VectorPart, ...] = ()
    part_widths: tuple[int, ...] = ()
    failed: dict[str, str] = field(default_factory=dict)

    @cached_property
    def pooled(self) -> Float[np.ndarray, "N Q"]:
        """The time course of each part; or, with the set token, the mean over clips (the paper)."""
        vectors = torch.from_numpy(self.vectors)
        valid_mask = None if self.valid is None else torch.from_numpy(self.valid)
        if "set" in self.parts:
            return mean_over_clips(vectors, valid_mask).numpy()
        return video_vectors(vectors, valid_mask, self.part_widths or vectors.shape[2:]).numpy()


def check_vectors_folder(folder: Path) -> None:
    """Refuse a folder with a table of the same name that clipset did not write."""
    is_own = False
    with suppress(OSError, SafetensorError):
        is_own = (folder / "vectors.safetensors").is_file()
        with safe_open(folder / "vectors.safetensors", "np") as file:
            is_own = "checksum" in (file.metadata() or {})
    for path in (folder / "videos.csv", folder / "videos.parquet"):
        if path.exists() and not is_own:
            problem = f"{path} exists, and clipset did not write it"
            raise OutputError(f"cannot write the vectors: {problem}", "use another folder", problem)


def write_vectors(table: VectorTable, folder: Path) -> None:
    """Write `vectors.safetensors` (vectors, pooled) and the table of its rows.

    The table is `videos.csv` and, with pyarrow, also `videos.parquet`, which has the pooled vectors
    as a column. In `videos.csv`, text that a spreadsheet would take for a formula has an apostrophe
    before it, which `read_vectors` removes.
    """
    columns: dict[str, tuple[Any, ...]] = {
        "id": table.video_ids,
        "label": table.labels,
        "split": table.splits,
    }
    if table.starts:
        columns |= {"start": table.starts, "end": table.ends, "window": table.windows}
    csv_table = csv_text([tuple(columns), *zip(*columns.values(), strict=True)])
    beside_files = {"videos.csv": csv_table.encode()}
    parquet_table = _encode_parquet(columns, table.pooled)
    if parquet_table is None:
        with writing(folder):
            (folder / "videos.parquet").unlink(missing_ok=True)  # of an earlier table
    else:
        beside_files["videos.parquet"] = parquet_table
    arrays = {"vectors": table.vectors, "pooled": table.pooled}
    if table.valid is not None:
        arrays["valid"] = table.valid
    header = {
        "parts": ",".join(table.parts), "part_widths": ",".join(map(str, table.part_widths)),
    }  # fmt: skip
    contiguous_arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    vector_file = seal(save(contiguous_arrays, metadata=header), beside_files)
    files = {**beside_files, "vectors.safetensors": vector_file}
    write_together({folder / name: content for name, content in files.items()})


def _encode_parquet(
    columns: dict[str, tuple[Any, ...]], pooled: Float[np.ndarray, "N R"]
) -> bytes | None:
    """The table as a parquet file, where pyarrow is installed."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        return None
    column_types = {"start": pa.float64(), "end": pa.float64(), "window": pa.int64()}
    arrays = {k: pa.array(v, column_types.get(k, pa.string())) for k, v in columns.items()}
    flat_vectors = pa.array(np.ascontiguousarray(pooled, dtype=np.float32).reshape(-1))
    arrays["vector"] = pa.FixedSizeListArray.from_arrays(flat_vectors, pooled.shape[1])
    parquet_file = io.BytesIO()
    parquet.write_table(pa.table(arrays), parquet_file)
    return parquet_file.getvalue()


def read_vectors(folder: Path) -> VectorTable:
    """A table that `write_vectors` wrote; its arrays are read from disk as they are used."""
    vectors_path = folder / "vectors.safetensors"
    if not vectors_path.is_file():
        raise StoreError(f"{folder} holds no vectors; run {_owner(folder)} first")
    damage = find_damage(vectors_path, beside="videos.csv")
    if damage is not None or not (folder / "videos.csv").is_file():
        raise StoreError(
            f"the vectors in {folder} are damaged: {damage or 'videos.csv not found'}; "
            f"run {_owner(folder)} again"
        )
    try:
        with (folder / "videos.csv").open(newline="", encoding="utf-8") as file:
            lines = csv.DictReader(file)
            rows = [{name: deneutralise(cell) for name, cell in line.items()} for line in lines]
        with safe_open(vectors_path, "np") as file:
            header = file.metadata() or {}
        part_names, width_texts = header.get("parts", ""), header.get("part_widths", "")
        arrays = _map_arrays(vectors_path)
        vectors, pooled = arrays["vectors"], arrays.get("pooled")
        if vectors.ndim != 3 or len(vectors) != len(rows):
            raise ValueError(f"{len(rows)} rows for vectors of shape {vectors.shape}")
        timed_rows = rows if rows and "start" in rows[0] else []
        table = VectorTable(
            video_ids=tuple(row["id"] for row in rows),
            labels=tuple(row["label"] or None for row in rows),
            splits=tuple(row["split"] or None for row in rows),
            vectors=vectors,
            valid=arrays.get("valid"),
            starts=tuple(float(row["start"]) for row in timed_rows),
            ends=tuple(float(row["end"]) for row in timed_rows),
            windows=tuple(int(row["window"]) if row["window"] else None for row in timed_rows),
            parts=parse_parts(part_names) if part_names else (),
            part_widths=tuple(int(width) for width in width_texts.split(",") if width),
        )
        if pooled is not None and pooled.ndim == 2 and len(pooled) == len(rows):
            vars(table)["pooled"] = pooled  # as it was written, without computing it
        return table
    except (
        OSError, SafetensorError, ConfigError, csv.Error, KeyError, TypeError, ValueError,
    ) as error:  # fmt: skip
        raise StoreError(f"{folder} cannot be read ({error}); run {_owner(folder)}") from None


def _owner(folder: Path) -> str:
    """The command that writes the vectors of a folder."""
    return "`clipset run`" if (folder.parent / "run.json").is_file() else "`clipset embed`"


def _map_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an intact safetensors file as memory maps; changes stay in memory."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    arrays = {}
    for name in header.keys() - {"__metadata__"}:
        dtype = {"F32": np.float32, "BOOL": np.bool_}[header[name]["dtype"]]
        shape, data_start = tuple(header[name]["shape"]), 8 + size + header[name]["data_offsets"][0]
        if 0 in shape:  # cannot be mapped
            arrays[name] = np.zeros(shape, dtype)
        else:
            arrays[name] = np.memmap(path, dtype, mode="c", offset=data_start, shape=shape)
    return arrays


def parse_parts(text: str) -> tuple[VectorPart, ...]:
    """The parts that a text such as `clip,set` names."""
    part_names = [name.strip() for name in text.split(",")]
    parts = tuple(part for name in part_names for part in VECTOR_PARTS if part == name)
    if len(parts) != len(part_names) or len(set(parts)) != len(parts):
        raise ConfigError(
            f"parts are some of {', '.join(VECTOR_PARTS)}, each once, with commas; got {text!r}"
        )
    return parts


def nearest(
    pooled: Float[np.ndarray, "N R"], queries: Int[np.ndarray, " Q"], count: int
) -> tuple[Int[np.ndarray, "Q K"], Float[np.ndarray, "Q K"]]:
    """The videos most similar to each query by the cosine of their vectors, and the cosines."""
    _, exponent = np.frexp(np.abs(pooled).max(initial=0.0))
    scaled_vectors = torch.from_numpy(np.ldexp(pooled, -exponent))  # exact, and no square overflows
    count = min(count, len(pooled) - 1)
    indices, cosines = most_similar(scaled_vectors, scaled_vectors[queries], k=count + 1)
    is_other = indices.numpy() != queries[:, None]  # a video is not its own neighbour
    is_other[is_other.all(axis=1), -1] = False
    shape = (len(queries), count)
    return indices.numpy()[is_other].reshape(shape), cosines.numpy()[is_other].reshape(shape)
