"""Store + model → one table of vectors: what the walk is for."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from safetensors.numpy import load_file, save
from torch import Tensor

from clipset.config import write_atomic
from clipset.errors import StoreError
from clipset.features.ledger import Kind
from clipset.features.store import FeatureStore
from clipset.model.encoder import SetEncoder
from clipset.sets.clips import VideoClips, read_clips

Part = Literal["clip", "token", "set"]
PARTS: tuple[Part, ...] = ("clip", "set")  # what the paper puts side by side
CHUNK = 256  # videos encoded at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Representations:
    """A vector for every clip of every video; `pooled` has one for each video."""

    video_ids: tuple[str, ...]
    labels: tuple[str | None, ...]
    splits: tuple[str | None, ...]
    vectors: Float[np.ndarray, "N V R"]

    @property
    def pooled(self) -> Float[np.ndarray, "N R"]:
        """The mean over each video's clips."""
        pooled: Float[np.ndarray, "N R"] = self.vectors.mean(axis=1)
        return pooled


def represent(
    store: FeatureStore,
    encoder: SetEncoder | None,
    *,
    parts: tuple[Part, ...] = PARTS,
    kind: Kind = "regular",
    device: torch.device | None = None,
) -> Representations:
    """Represent every video of a store; without an encoder, by the backbone's features alone."""
    clips = read_clips(
        store,
        kind,
        np.arange(len(store)),
        boxes="paper" if encoder is None else encoder.boxes,
        box_numbers=6 if encoder is None else encoder.box_numbers,
    )
    known = {video.id: video for video in store.catalog}
    videos = [known[id] for id in store.ids]
    vectors = clips.features if encoder is None else encode_clips(encoder, clips, parts, device)
    return Representations(
        video_ids=store.ids,
        labels=tuple(video.label for video in videos),
        splits=tuple(video.split for video in videos),
        vectors=vectors.numpy(),
    )


@torch.inference_mode()
def encode_clips(
    encoder: SetEncoder,
    clips: VideoClips,
    parts: tuple[Part, ...] = PARTS,
    device: torch.device | None = None,
) -> Float[Tensor, "N V R"]:
    """The chosen parts side by side: clip feature, refined clip token, set token."""
    if clips.features.shape[-1] != encoder.project.in_features:
        raise StoreError(
            f"the store's features have {clips.features.shape[-1]} channels, the model takes "
            f"{encoder.project.in_features}; it was trained with another backbone"
        )
    device = device or torch.device("cpu")
    encoder = encoder.to(device).eval()
    chunks = []
    for low in range(0, len(clips), CHUNK):
        chunk = VideoClips(clips.features[low : low + CHUNK], clips.boxes[low : low + CHUNK])
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
    """Write `vectors.safetensors` (vectors, pooled) and `videos.csv` (the same rows)."""
    folder.mkdir(parents=True, exist_ok=True)
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["id", "label", "split"])
    for row in zip(table.video_ids, table.labels, table.splits, strict=True):
        writer.writerow([value or "" for value in row])
    write_atomic(folder / "videos.csv", text.getvalue().encode())
    arrays = {"vectors": table.vectors, "pooled": table.pooled}
    write_atomic(folder / "vectors.safetensors", save(arrays))


def read_representations(folder: Path) -> Representations:
    """What `write_representations` wrote."""
    path = folder / "vectors.safetensors"
    if not path.is_file():
        raise StoreError(f"{folder} holds no representation; run `clipset represent` first")
    with (folder / "videos.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return Representations(
        video_ids=tuple(row["id"] for row in rows),
        labels=tuple(row["label"] or None for row in rows),
        splits=tuple(row["split"] or None for row in rows),
        vectors=load_file(path)["vectors"],
    )


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
