"""Store + model → one table of vectors: what the walk is for."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from safetensors import safe_open
from safetensors.numpy import load_file, save
from torch import Tensor

from clipset.config import write_atomic
from clipset.errors import StoreError
from clipset.features.ledger import Kind
from clipset.features.store import FeatureStore
from clipset.model.encoder import SetEncoder
from clipset.sets.boxes import model_boxes
from clipset.sets.clips import VideoClips, by_count, mean_over_clips, read_clips

Part = Literal["clip", "token", "set"]
ALL_PARTS: tuple[Part, ...] = ("clip", "token", "set")
PARTS: tuple[Part, ...] = ("clip", "set")  # what the paper puts side by side
CHUNK = 256  # videos encoded at once


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


def represent(
    store: FeatureStore,
    encoder: SetEncoder | None,
    *,
    parts: tuple[Part, ...] = PARTS,
    kind: Kind = "regular",
    window: float | None = None,
    device: torch.device | None = None,
) -> Representations:
    """Represent every video of a store; without an encoder, by the backbone's features alone.

    With a window (seconds), the clips of each window are a set of their own, too.
    """
    parts = ("clip",) if encoder is None else parts
    if window is not None:
        spans = cut_windows(store, kind, window)
        vectors = _encode_spans(store, encoder, spans, kind, parts, device)[:, None]
        present = None
    else:
        spans = [Span(place, 0.0, entry.duration) for place, entry in enumerate(store.entries)]
        vectors, present = _encode_videos(store, encoder, kind, parts, device)
    known = {video.id: video for video in store.catalog}
    videos = [known[store.ids[span.video]] for span in spans]
    return Representations(
        video_ids=tuple(video.id for video in videos),
        labels=tuple(video.label for video in videos),
        splits=tuple(video.split for video in videos),
        vectors=vectors.numpy(),
        present=None if present is None else present.numpy(),
        starts=tuple(float(span.start) for span in spans),
        ends=tuple(float(span.end) for span in spans),
        windows=tuple(span.window for span in spans),
        parts=parts,
    )


def _encode_videos(
    store: FeatureStore,
    encoder: SetEncoder | None,
    kind: Kind,
    parts: tuple[Part, ...],
    device: torch.device | None,
) -> tuple[Float[Tensor, "N V R"], Bool[Tensor, "N V"] | None]:
    clips = read_clips(
        store,
        kind,
        np.arange(len(store)),
        boxes="paper" if encoder is None else encoder.boxes,
        box_numbers=6 if encoder is None else encoder.box_numbers,
    )
    if encoder is None:
        return clips.features, clips.present
    return encode_clips(encoder, clips, parts, device), clips.present


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a video (None: all of it) and the rows of the clips whose middle lies in it."""

    video: int
    start: float
    end: float
    window: int | None = None
    rows: tuple[int, ...] = ()


def cut_windows(store: FeatureStore, kind: Kind, window: float) -> list[Span]:
    """Each video as a whole, then its windows that have clips, if it is longer than one."""
    if not window > 0:
        raise StoreError(f"a window must be longer than 0 s, got {window}")
    table = store.random if kind == "random" else store.regular
    spans = []
    for place, entry in enumerate(store.entries):
        rows = table.first[place] + np.arange(table.count[place])
        spans.append(Span(place, 0.0, entry.duration, None, tuple(rows.tolist())))
        count = math.ceil(entry.duration / window)
        middles = table.boxes[rows, :2].astype(np.float64).mean(axis=1)
        numbers = np.clip(middles // window, 0, max(count - 1, 0)).astype(np.int64)
        for number in np.unique(numbers) if count > 1 else ():
            low, high = number * window, min((number + 1) * window, entry.duration)
            inside = tuple(rows[numbers == number].tolist())
            spans.append(Span(place, low, high, int(number), inside))
    return spans


def _encode_spans(
    store: FeatureStore,
    encoder: SetEncoder | None,
    spans: list[Span],
    kind: Kind,
    parts: tuple[Part, ...],
    device: torch.device | None,
) -> Float[Tensor, "N R"]:
    """One vector for each span: those with equally many clips are encoded together."""
    by_size: dict[int, list[int]] = {}
    for place, span in enumerate(spans):
        by_size.setdefault(len(span.rows), []).append(place)
    found: dict[int, Tensor] = {}
    for places in by_size.values():
        for low in range(0, len(places), CHUNK):
            some = places[low : low + CHUNK]
            clips = _read_spans(store, encoder, [spans[place] for place in some], kind)
            vectors = clips.features
            if encoder is not None:
                vectors = encode_clips(encoder, clips, parts, device)
            found |= dict(zip(some, vectors.mean(dim=1), strict=True))
    return torch.stack([found[place] for place in range(len(spans))])


def _read_spans(
    store: FeatureStore, encoder: SetEncoder | None, spans: list[Span], kind: Kind
) -> VideoClips:
    """The clips of some spans with equally many; to the model each span is a video of its own."""
    table = store.random if kind == "random" else store.regular
    rows = np.array([span.rows for span in spans])  # (N, V)
    features = table.features[rows].astype(np.float32)  # (N, V, D)
    if not np.isfinite(features).all():
        bad = int((~np.isfinite(features)).any(axis=(1, 2)).argmax())
        raise StoreError(f"the features of {store.ids[spans[bad].video]!r} are not finite numbers")
    starts = np.array([span.start for span in spans], dtype=np.float32)
    lengths = np.array([span.end for span in spans], dtype=np.float32) - starts
    boxes = table.boxes[rows].astype(np.float32)  # (N, V, 7)
    times = boxes[..., :2] - starts[:, None, None]
    boxes[..., :2] = np.clip(times, 0, lengths[:, None, None])
    kind_of_boxes = "paper" if encoder is None else encoder.boxes
    numbers = 6 if encoder is None else encoder.box_numbers
    where = model_boxes(boxes, lengths, kind_of_boxes, numbers)
    return VideoClips(torch.from_numpy(features), torch.from_numpy(where))


@torch.inference_mode()
def encode_clips(
    encoder: SetEncoder,
    clips: VideoClips,
    parts: tuple[Part, ...] = PARTS,
    device: torch.device | None = None,
) -> Float[Tensor, "N V R"]:
    """The chosen parts side by side: clip feature, refined clip token, set token.

    A set is a video's own clips; where some have fewer than others, zeros fill up.
    """
    if clips.features.shape[-1] != encoder.project.in_features:
        raise StoreError(
            f"the store's features have {clips.features.shape[-1]} channels, the model takes "
            f"{encoder.project.in_features}; it was trained with another backbone"
        )
    device = device or torch.device("cpu")
    encoder = encoder.to(device).eval()
    if clips.present is None:
        return _encode_equal(encoder, clips, parts, device)
    groups = [
        (videos, _encode_equal(encoder, group, parts, device)) for videos, group in by_count(clips)
    ]
    vectors = torch.zeros(*clips.present.shape, groups[0][1].shape[-1])
    for videos, found in groups:
        there = clips.present[videos]
        vectors[videos] = vectors[videos].index_put(there.nonzero().unbind(1), found.flatten(0, 1))
    return vectors


def _encode_equal(
    encoder: SetEncoder, clips: VideoClips, parts: tuple[Part, ...], device: torch.device
) -> Float[Tensor, "N V R"]:
    chunks = []
    for low in range(0, len(clips), CHUNK):
        chunk = clips.of(slice(low, low + CHUNK))
        chunks.append(join_parts(encoder, chunk.to(device), parts).cpu())
    return torch.cat(chunks)


def join_parts(
    encoder: SetEncoder, clips: VideoClips, parts: tuple[Part, ...] = PARTS
) -> Float[Tensor, "B V R"]:
    """The chosen parts of one batch, each clip next to what its set says."""
    encoding = encoder(clips.features, clips.boxes)
    whole = encoding.set_token[:, None].expand(-1, clips.features.shape[1], -1)  # (B, V, H)
    found = {
        "clip": encoder.standardise(clips.features),
        "token": encoding.clip_tokens,
        "set": whole,
    }
    return torch.cat([found[part] for part in parts], dim=-1)


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
    write_atomic(folder / "vectors.safetensors", save(arrays, metadata=header))


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
    with (folder / "videos.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    arrays = load_file(path)
    with safe_open(path, "np") as file:
        parts = (file.metadata() or {}).get("parts", "")
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
    centred = pooled - pooled.mean(axis=0)
    unit = centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-12)
    similar = unit[queries] @ unit.T  # (Q, N)
    similar[np.arange(len(queries)), queries] = -np.inf  # a video is not its own neighbour
    count = min(count, len(pooled) - 1)
    order = np.argsort(-similar, axis=1, kind="stable")[:, :count]
    return order, np.take_along_axis(similar, order, axis=1)
