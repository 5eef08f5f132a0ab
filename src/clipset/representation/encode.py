"""Vectors of the videos of a store, and of windows of long videos, by a trained encoder."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from clipset.errors import StoreError
from clipset.features.store import FeatureStore
from clipset.features.verify import check_rows
from clipset.model.encoder import SetEncoder
from clipset.representation.table import DEFAULT_PARTS, PAPER_PARTS, VectorPart, VectorTable
from clipset.sets.batch import ClipBatch
from clipset.sets.reading import ModelInput, make_clips, read_clips, read_features
from clipset.sets.stored_clips import equal_chunks

CHUNK_SIZE = 256  # videos encoded at once


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a video (window_index None: all of it) and the rows of the clips centred in it."""

    video_index: int
    start: float
    end: float
    window_index: int | None = None
    row_indices: tuple[int, ...] = ()


def embed_store(
    store: FeatureStore,
    encoder: SetEncoder | None,
    *,
    parts: tuple[VectorPart, ...] = DEFAULT_PARTS,
    window: float | None = None,
    device: torch.device | None = None,
) -> VectorTable:
    """The vectors of every video of a store; without an encoder, the backbone's features.

    With a window (seconds), the clips of each window are also encoded as a set of their own.
    """
    check_rows(store)
    parts = ("clip",) if encoder is None else parts
    if window is None:
        spans = [Span(index, 0.0, entry.duration) for index, entry in enumerate(store.entries)]
        span_clips = read_clips(store, "regular", np.arange(len(store)), encoder)
    else:
        spans = cut_windows(store, window)
        span_clips = read_spans(store, spans, encoder)
    videos_by_id = {video.id: video for video in store.catalog}
    videos = [videos_by_id[store.ids[span.video_index]] for span in spans]
    return VectorTable(
        video_ids=tuple(video.id for video in videos),
        labels=tuple(video.label for video in videos),
        splits=tuple(video.split for video in videos),
        vectors=encode_clips(encoder, span_clips, parts, device).numpy(),
        valid=None if span_clips.valid is None else span_clips.valid.numpy(),
        starts=tuple(float(span.start) for span in spans),
        ends=tuple(float(span.end) for span in spans),
        windows=tuple(span.window_index for span in spans),
        parts=parts,
        part_widths=part_widths(store.manifest.backbone.dim, encoder, parts),
    )


def part_widths(
    feature_dim: int, encoder: SetEncoder | None, parts: tuple[VectorPart, ...]
) -> tuple[int, ...]:
    """The number of channels of each part."""
    token_dim = 0 if encoder is None else encoder.project.out_features
    return tuple(feature_dim if part == "clip" else token_dim for part in parts)


def cut_windows(
    store: FeatureStore, window: float, videos: Sequence[int] | None = None
) -> list[Span]:
    """Each whole video (or some), followed by its windows with clips if it is longer than one."""
    if not window > 0:
        raise StoreError(f"a window must be longer than 0 s, got {window}")
    table = store.regular
    spans = []
    for video_index in range(len(store)) if videos is None else videos:
        entry = store.entries[video_index]
        row_indices = table.first[video_index] + np.arange(table.count[video_index])
        spans.append(Span(video_index, 0.0, entry.duration, None, tuple(row_indices.tolist())))
        num_windows = math.ceil(entry.duration / window)
        middles = table.boxes[row_indices, :2].astype(np.float64).mean(axis=1)
        window_indices = np.clip(middles // window, 0, max(num_windows - 1, 0)).astype(np.int64)
        for window_index in np.unique(window_indices) if num_windows > 1 else ():
            low, high = window_index * window, min((window_index + 1) * window, entry.duration)
            inside_rows = tuple(row_indices[window_indices == window_index].tolist())
            spans.append(Span(video_index, low, high, int(window_index), inside_rows))
    return spans


def read_spans(store: FeatureStore, spans: list[Span], model: ModelInput | None) -> ClipBatch:
    """The clips of spans, each of which is a video of its own for the model."""
    clip_counts = np.array([len(span.row_indices) for span in spans])
    valid = np.arange(clip_counts.max()) < clip_counts[:, None]  # (N, V)
    first_rows = np.array([span.row_indices[0] for span in spans])
    row_indices = np.repeat(first_rows[:, None], clip_counts.max(), axis=1)  # (N, V)
    row_indices[valid] = np.concatenate([span.row_indices for span in spans])
    video_ids = [store.ids[span.video_index] for span in spans]
    clip_features = read_features(store, "regular", row_indices, video_ids)
    span_starts = np.array([span.start for span in spans], dtype=np.float32)
    span_lengths = np.array([span.end for span in spans], dtype=np.float32) - span_starts
    boxes = store.regular.boxes[row_indices].astype(np.float32)  # (N, V, 7)
    clip_times = boxes[..., :2] - span_starts[:, None, None]
    boxes[..., :2] = np.clip(clip_times, 0, span_lengths[:, None, None])
    return make_clips(clip_features, boxes, span_lengths, model, None if valid.all() else valid)


def pad_clips(
    by_video: Sequence[Float[Tensor, "_ R"]],
) -> tuple[Float[Tensor, "N V R"], Bool[Tensor, "N V"] | None]:
    """The vectors of all videos in one tensor, and which of them are not padding (None: all)."""
    if not by_video:
        return torch.zeros(0, 0, 0), None
    padded_vectors = pad_sequence(list(by_video), batch_first=True)
    clip_counts = torch.tensor([len(clip_vectors) for clip_vectors in by_video])
    valid_mask = torch.arange(padded_vectors.shape[1]) < clip_counts[:, None]  # (N, V)
    return padded_vectors, None if valid_mask.all() else valid_mask


@torch.inference_mode()
def encode_clips(
    encoder: SetEncoder | None,
    clips: ClipBatch,
    parts: tuple[VectorPart, ...] = DEFAULT_PARTS,
    device: torch.device | None = None,
) -> Float[Tensor, "N V R"]:
    """The concatenated parts: clip feature (as stored), clip token, set token.

    The set is all clips of a video; videos with fewer clips than others are padded with zeros.
    Without an encoder, the clip features.
    """
    if encoder is None:
        return clips.features
    check_width(encoder, clips)
    device = device or torch.device("cpu")
    encoder = encoder.to(device).eval()
    chunks = [
        (video_index, concat_parts(encoder, chunk.to(device), parts, standardise=False).cpu())
        for video_index, chunk in equal_chunks(clips, CHUNK_SIZE)
    ]
    if clips.valid is None:
        return torch.cat([chunk_vectors for _, chunk_vectors in chunks])
    vectors = torch.zeros(*clips.valid.shape, chunks[0][1].shape[-1])
    for video_index, chunk_vectors in chunks:
        rows = clips.valid[video_index].nonzero().unbind(1)
        vectors[video_index] = vectors[video_index].index_put(rows, chunk_vectors.flatten(0, 1))
    return vectors


def concat_parts(
    encoder: SetEncoder,
    clips: ClipBatch,
    parts: tuple[VectorPart, ...] = PAPER_PARTS,
    *,
    standardise: bool = True,
) -> Float[Tensor, "B V R"]:
    """The concatenated parts of one batch; every clip has the set token of its video."""
    standardised = encoder.standardise(clips.features)
    nothing = torch.zeros_like(clips.boxes[..., 0], dtype=torch.bool)
    needed = ~nothing if "token" in parts else nothing
    clip_tokens, set_token = encoder.encode_subset(
        standardised, clips.boxes, nothing, needed, clips.valid
    )
    by_part = {
        "clip": standardised if standardise else clips.features,
        "set": set_token[:, None].expand(-1, nothing.shape[1], -1),  # (B, V, H)
    }
    if "token" in parts:
        by_part["token"] = clip_tokens.view_as(by_part["set"])
    return torch.cat([by_part[part] for part in parts], dim=-1)


def check_width(encoder: SetEncoder, clips: ClipBatch) -> None:
    """Raise StoreError if the features do not have the width of the encoder's input."""
    feature_width, expected = clips.features.shape[-1], encoder.project.in_features
    if feature_width != expected:
        raise StoreError(
            f"the store's features have {feature_width} channels, the model takes {expected}; "
            f"it was trained with another backbone"
        )
