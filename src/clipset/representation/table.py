"""The table of vectors: what it holds, how it is written and read, and who is near whom."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save

from clipset.config import write_atomic
from clipset.errors import StoreError
from clipset.sets.clips import mean_over_clips

Part = Literal["clip", "token", "set"]
ALL_PARTS: tuple[Part, ...] = ("clip", "token", "set")
PARTS: tuple[Part, ...] = ("clip", "set")  # what the paper puts side by side


@dataclass(frozen=True, slots=True, kw_only=True)
class Representations:
    """A vector for every clip of every video; `pooled` has one for each video.

    `present` is False where a video has fewer clips than another; None if all have as many.
    Where videos were cut into windows, each window is a row of its own with a single vector, next
    to the row of the whole video, whose window is None. `starts` and `ends` are in seconds. Old
    tables have neither these nor `parts`.
    """

    video_ids: tuple[str, ...]
    labels: tuple[str | None, ...]
    splits: tuple[str | None, ...]
    vectors: Float[np.ndarray, "N V R"]
    present: Bool[np.ndarray, "N V"] | None = None
    starts: tuple[float, ...] = ()
    ends: tuple[float, ...] = ()
    windows: tuple[int | None, ...] = ()
    parts: tuple[Part, ...] = ()

    @property
    def pooled(self) -> Float[np.ndarray, "N R"]:
        """The mean over each video's clips."""
        if self.present is not None:
            vectors, present = torch.from_numpy(self.vectors), torch.from_numpy(self.present)
            return mean_over_clips(vectors, present).numpy()
        pooled: Float[np.ndarray, "N R"] = self.vectors.mean(axis=1)
        return pooled


def write_representations(table: Representations, folder: Path) -> None:
    """Write `vectors.safetensors` (vectors, pooled) and the table of its rows.

    The table is `videos.csv`, and, where pyarrow is installed, also `videos.parquet`, which has the
    pooled vectors as a column.
    """
    folder.mkdir(parents=True, exist_ok=True)
    columns = _columns(table)
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in zip(*columns.values(), strict=True):
        writer.writerow(["" if value is None else value for value in row])
    write_atomic(folder / "videos.csv", text.getvalue().encode())
    _write_parquet(folder / "videos.parquet", columns, table.pooled)
    arrays = {"vectors": table.vectors, "pooled": table.pooled}
    if table.present is not None:
        arrays["present"] = table.present
    header = {"parts": ",".join(table.parts)}
    whole = {name: np.ascontiguousarray(each) for name, each in arrays.items()}  # no views
    write_atomic(folder / "vectors.safetensors", save(whole, metadata=header))


def _columns(table: Representations) -> dict[str, tuple[Any, ...]]:
    columns: dict[str, tuple[Any, ...]] = {
        "id": table.video_ids,
        "label": table.labels,
        "split": table.splits,
    }
    if table.starts:
        columns |= {"start": table.starts, "end": table.ends, "window": table.windows}
    return columns


def _write_parquet(
    path: Path, columns: dict[str, tuple[Any, ...]], pooled: Float[np.ndarray, "N R"]
) -> None:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        path.unlink(missing_ok=True)  # of an earlier table
        return
    kinds = {"start": pa.float64(), "end": pa.float64(), "window": pa.int64()}
    arrays = {k: pa.array(v, kinds.get(k, pa.string())) for k, v in columns.items()}
    numbers = pa.array(np.ascontiguousarray(pooled, dtype=np.float32).reshape(-1))
    arrays["vector"] = pa.FixedSizeListArray.from_arrays(numbers, pooled.shape[1])
    content = io.BytesIO()
    parquet.write_table(pa.table(arrays), content)
    write_atomic(path, content.getvalue())


def read_representations(folder: Path) -> Representations:
    """What `write_representations` wrote, now or before it knew windows."""
    path = folder / "vectors.safetensors"
    if not path.is_file():
        raise StoreError(f"{folder} holds no representation; run `clipset represent` first")
    try:
        with (folder / "videos.csv").open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        arrays = load_file(path)
        with safe_open(path, "np") as file:
            parts = (file.metadata() or {}).get("parts", "")
        return _table(rows, arrays, parts)
    except (OSError, SafetensorError, csv.Error, KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{folder} cannot be read ({error}); run `clipset represent`") from None


def _table(
    rows: list[dict[str, str]], arrays: dict[str, np.ndarray], parts: str
) -> Representations:
    if arrays["vectors"].ndim != 3 or len(arrays["vectors"]) != len(rows):
        raise ValueError(f"{len(rows)} rows for vectors of shape {arrays['vectors'].shape}")
    timed = bool(rows) and "start" in rows[0]
    return Representations(
        video_ids=tuple(row["id"] for row in rows),
        labels=tuple(row["label"] or None for row in rows),
        splits=tuple(row["split"] or None for row in rows),
        vectors=arrays["vectors"],
        present=arrays.get("present"),
        starts=tuple(float(row["start"]) for row in rows) if timed else (),
        ends=tuple(float(row["end"]) for row in rows) if timed else (),
        windows=tuple(int(row["window"]) if row["window"] else None for row in rows)
        if timed
        else (),
        parts=read_parts(parts) if parts else (),
    )


def read_parts(text: str) -> tuple[Part, ...]:
    """The parts that a text such as `clip,set` names."""
    names = [name.strip() for name in text.split(",")]
    found = tuple(part for name in names for part in ALL_PARTS if part == name)
    if len(found) != len(names) or len(set(found)) != len(found):
        raise StoreError(
            f"parts are some of {', '.join(ALL_PARTS)}, each once, with commas; got {text!r}"
        )
    return found


def nearest(
    pooled: Float[np.ndarray, "N R"], queries: Int[np.ndarray, " Q"], count: int
) -> tuple[Int[np.ndarray, "Q K"], Float[np.ndarray, "Q K"]]:
    """The videos most like each query by the cosine of their centred vectors, and how much so."""
    _, exponent = np.frexp(np.abs(pooled).max(initial=0.0))
    pooled = np.ldexp(pooled, -exponent)  # exact, and no square overflows
    centred = pooled - pooled.mean(axis=0)
    unit = centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-12)
    similar = unit[queries] @ unit.T  # (Q, N)
    similar[np.arange(len(queries)), queries] = -np.inf  # a video is not its own neighbour
    count = min(count, len(pooled) - 1)
    order = np.argsort(-similar, axis=1, kind="stable")[:, :count]
    return order, np.take_along_axis(similar, order, axis=1)
