"""Store + model → one table of vectors: what the walk is for."""

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

CHUNK = 256  # videos encoded at once


def embed_store(
    store: FeatureStore,
    encoder: SetEncoder | None,
    *,
    parts: tuple[VectorPart, ...] = DEFAULT_PARTS,
    kind: Kind = "regular",
    window: float | None = None,
    device: torch.device | None = None,
) -> VectorTable:
    """Represent every video of a store; without an encoder, by the backbone's features alone.

    With a window (seconds), the clips of each window are a set of their own, too.
    """
    parts = ("clip",) if encoder is None else parts
    if window is not None:
        spans = cut_windows(store, kind, window)
        vectors = _encode_spans(store, encoder, spans, kind, parts, device)[:, None]
        valid = None
    else:
        spans = [Span(place, 0.0, entry.duration) for place, entry in enumerate(store.entries)]
        vectors, valid = _encode_videos(store, encoder, kind, parts, device)
    known = {video.id: video for video in store.catalog}
    videos = [known[store.ids[span.video]] for span in spans]
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
    """One vector for each span: those with equally many clips are encoded together."""
    by_size: dict[int, list[int]] = {}
    for place, span in enumerate(spans):
        by_size.setdefault(len(span.rows), []).append(place)
    found: dict[int, Tensor] = {}
    for places in by_size.values():
        for low in range(0, len(places), CHUNK):
            some = places[low : low + CHUNK]
            clips = read_spans(store, encoder, [spans[place] for place in some], kind)
            vectors = clips.features
            if encoder is not None:
                vectors = encode_clips(encoder, clips, parts, device)
            found |= dict(zip(some, vectors.mean(dim=1), strict=True))
    return torch.stack([found[place] for place in range(len(spans))])


@torch.inference_mode()
def encode_clips(
    encoder: SetEncoder,
    clips: ClipBatch,
    parts: tuple[VectorPart, ...] = DEFAULT_PARTS,
    device: torch.device | None = None,
) -> Float[Tensor, "N V R"]:
    """The chosen parts side by side: clip feature, refined clip token, set token.

    A set is a video's own clips; where some have fewer than others, zeros fill up.
    """
    refuse_others(encoder, clips)
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
    for videos, found in groups:
        there = valid[videos]
        vectors[videos] = vectors[videos].index_put(there.nonzero().unbind(1), found.flatten(0, 1))
    return vectors


def _encode_equal(
    encoder: SetEncoder, clips: ClipBatch, parts: tuple[VectorPart, ...], device: torch.device
) -> Float[Tensor, "N V R"]:
    chunks = []
    for low in range(0, len(clips), CHUNK):
        chunk = clips.select(slice(low, low + CHUNK))
        chunks.append(concat_parts(encoder, chunk.to(device), parts).cpu())
    return torch.cat(chunks)


def concat_parts(
    encoder: SetEncoder, clips: ClipBatch, parts: tuple[VectorPart, ...] = DEFAULT_PARTS
) -> Float[Tensor, "B V R"]:
    """The chosen parts of one batch, each clip next to what its set says."""
    encoding = encoder(clips.features, clips.boxes, None, clips.valid)
    features, tokens = encoder.standardise(clips.features), encoding.clip_tokens
    whole = encoding.set_token[:, None].expand(-1, features.shape[1], -1)  # (B, V, H)
    found = {"clip": features, "token": tokens, "set": whole}
    return torch.cat([found[part] for part in parts], dim=-1)


def refuse_others(encoder: SetEncoder, clips: ClipBatch) -> None:
    """Raise StoreError if the features are not of the width that the encoder was made for."""
    width, expected = clips.features.shape[-1], encoder.project.in_features
    if width != expected:
        raise StoreError(
            f"the store's features have {width} channels, the model takes {expected}; "
            f"it was trained with another backbone"
        )
