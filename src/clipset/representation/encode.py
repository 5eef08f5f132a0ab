"""Vectors of the videos of a store, by a trained encoder."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from clipset.errors import StoreError
from clipset.features.ledger import Kind
from clipset.features.store import FeatureStore
from clipset.model.encoder import SetEncoder
from clipset.representation.table import DEFAULT_PARTS, VectorPart, VectorTable
from clipset.representation.windows import Span, cut_windows, read_spans
from clipset.sets.batch import ClipBatch, group_by_count
from clipset.sets.reading import read_clips

CHUNK_SIZE = 256  # videos encoded at once


def embed_store(
    store: FeatureStore,
    encoder: SetEncoder | None,
    *,
    parts: tuple[VectorPart, ...] = DEFAULT_PARTS,
    kind: Kind = "regular",
    window: float | None = None,
    device: torch.device | None = None,
) -> VectorTable:
    """The vectors of every video of a store; without an encoder, the backbone's features.

    With a window (seconds), the clips of each window are also encoded as a set of their own.
    """
    parts = ("clip",) if encoder is None else parts
    if window is not None:
        spans = cut_windows(store, kind, window)
        vectors = _encode_spans(store, encoder, spans, kind, parts, device)[:, None]
        valid = None
    else:
        spans = [Span(index, 0.0, entry.duration) for index, entry in enumerate(store.entries)]
        vectors, valid = _encode_videos(store, encoder, kind, parts, device)
    videos_by_id = {video.id: video for video in store.catalog}
    videos = [videos_by_id[store.ids[span.video]] for span in spans]
    return VectorTable(
        video_ids=tuple(video.id for video in videos),
        labels=tuple(video.label for video in videos),
        splits=tuple(video.split for video in videos),
        vectors=vectors.numpy(),
        valid=None if valid is None else valid.numpy(),
        starts=tuple(float(span.start) for span in spans),
        ends=tuple(float(span.end) for span in spans),
        windows=tuple(span.window for span in spans),
        parts=parts,
    )


def _encode_videos(
    store: FeatureStore,
    encoder: SetEncoder | None,
    kind: Kind,
    parts: tuple[VectorPart, ...],
    device: torch.device | None,
) -> tuple[Float[Tensor, "N V R"], Bool[Tensor, "N V"] | None]:
    clips = read_clips(store, kind, np.arange(len(store)), encoder)
    if encoder is None:
        return clips.features, clips.valid
    return encode_clips(encoder, clips, parts, device), clips.valid


def _encode_spans(
    store: FeatureStore,
    encoder: SetEncoder | None,
    spans: list[Span],
    kind: Kind,
    parts: tuple[VectorPart, ...],
    device: torch.device | None,
) -> Float[Tensor, "N R"]:
    """One vector for each span; spans with equally many clips are encoded together."""
    indices_by_count: dict[int, list[int]] = {}
    for index, span in enumerate(spans):
        indices_by_count.setdefault(len(span.rows), []).append(index)
    pooled: dict[int, Tensor] = {}
    for indices in indices_by_count.values():
        for low in range(0, len(indices), CHUNK_SIZE):
            chunk = indices[low : low + CHUNK_SIZE]
            clips = read_spans(store, encoder, [spans[index] for index in chunk], kind)
            vectors = clips.features
            if encoder is not None:
                vectors = encode_clips(encoder, clips, parts, device)
            pooled |= dict(zip(chunk, vectors.mean(dim=1), strict=True))
    return torch.stack([pooled[index] for index in range(len(spans))])


@torch.inference_mode()
def encode_clips(
    encoder: SetEncoder,
    clips: ClipBatch,
    parts: tuple[VectorPart, ...] = DEFAULT_PARTS,
    device: torch.device | None = None,
) -> Float[Tensor, "N V R"]:
    """The concatenated parts: clip feature, clip token, set token.

    The set is all clips of a video; videos with fewer clips than others are padded with zeros.
    """
    check_width(encoder, clips)
    device = device or torch.device("cpu")
    encoder = encoder.to(device).eval()
    if clips.valid is None:
        return _encode_equal(encoder, clips, parts, device)
    groups = [
        (videos, _encode_equal(encoder, group, parts, device))
        for videos, group in group_by_count(clips)
    ]
    valid = clips.valid
    vectors = torch.zeros(*valid.shape, groups[0][1].shape[-1])
    for videos, encoded in groups:
        rows = valid[videos].nonzero().unbind(1)
        vectors[videos] = vectors[videos].index_put(rows, encoded.flatten(0, 1))
    return vectors


def _encode_equal(
    encoder: SetEncoder, clips: ClipBatch, parts: tuple[VectorPart, ...], device: torch.device
) -> Float[Tensor, "N V R"]:
    chunks = []
    for low in range(0, len(clips), CHUNK_SIZE):
        chunk = clips.select(slice(low, low + CHUNK_SIZE))
        chunks.append(concat_parts(encoder, chunk.to(device), parts).cpu())
    return torch.cat(chunks)


def concat_parts(
    encoder: SetEncoder, clips: ClipBatch, parts: tuple[VectorPart, ...] = DEFAULT_PARTS
) -> Float[Tensor, "B V R"]:
    """The concatenated parts of one batch; every clip has the set token of its video."""
    encoding = encoder(clips.features, clips.boxes, None, clips.valid)
    features, tokens = encoder.standardise(clips.features), encoding.clip_tokens
    set_tokens = encoding.set_token[:, None].expand(-1, features.shape[1], -1)  # (B, V, H)
    by_part = {"clip": features, "token": tokens, "set": set_tokens}
    return torch.cat([by_part[part] for part in parts], dim=-1)


def check_width(encoder: SetEncoder, clips: ClipBatch) -> None:
    """Raise StoreError if the features do not have the width of the encoder's input."""
    width, expected = clips.features.shape[-1], encoder.project.in_features
    if width != expected:
        raise StoreError(
            f"the store's features have {width} channels, the model takes {expected}; "
            f"it was trained with another backbone"
        )
