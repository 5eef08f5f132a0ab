"""Runs the backbone on decoded clips."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float

from clipset.backbones.runtime import MAX_CHUNK, Engine
from clipset.clips.decode import DecodedClips, VideoFacts
from clipset.errors import BackboneError, VideoError
from clipset.features.decode_pool import DecodeResult
from clipset.features.ledger import LedgerEntry


class ClipRows(NamedTuple):
    """The rows of one video's clips, random clips first."""

    features: Float[np.ndarray, "V D"]
    boxes: Float[np.ndarray, "V 7"]
    times: Float[np.ndarray, "V T"]


@dataclass(frozen=True, slots=True)
class EncodedVideo:
    """The rows of a video, or of a chunk of it."""

    facts: VideoFacts
    rows: ClipRows
    seconds: float = 0.0
    sprite: bytes = b""

    def update(self, entry: LedgerEntry) -> LedgerEntry:
        """The video's ledger entry with this result; where its rows are does not change."""
        common = {field.name for field in fields(VideoFacts)} & set(entry.__dataclass_fields__)
        facts = {name: getattr(self.facts, name) for name in common}
        done = replace(entry, status="done", reason=None, transient=False, seconds=self.seconds)
        return replace(done, **facts)


EncodeResult = tuple[int, EncodedVideo | VideoError | BackboneError]
"""The index of a video, and its rows or the reason why it failed."""


def encode_videos(engine: Engine, results: Iterable[DecodeResult]) -> Iterator[EncodeResult]:
    """Encode decoded videos; the chunks of a video are joined."""
    return join_chunks(encode_chunks(engine, results))


def encode_chunks(engine: Engine, results: Iterable[DecodeResult]) -> Iterator[EncodeResult]:
    """Encode decoded chunks; a GPU gets those of several videos in one batch.

    While one batch is finished, the next one keeps the cores busy. The time of a video begins when
    the batch before it ended.
    """
    min_clips = 1 if engine.device == "cpu" else MAX_CHUNK
    waiting_chunks: list[tuple[int, DecodedClips]] = []
    running_batches: deque[_Batch] = deque()
    last_end = 0.0
    for video_index, clips in results:
        if isinstance(clips, VideoError):
            yield video_index, clips
            continue
        waiting_chunks.append((video_index, clips))
        if sum(len(chunk.pixels) for _, chunk in waiting_chunks) >= min_clips:
            running_batches.append(_Batch(engine, waiting_chunks))
            waiting_chunks = []
        if len(running_batches) > 1:
            encoded = running_batches.popleft().finish(last_end)
            last_end = time.perf_counter()
            yield from encoded
    if waiting_chunks:
        running_batches.append(_Batch(engine, waiting_chunks))
    for batch in running_batches:
        encoded = batch.finish(last_end)
        last_end = time.perf_counter()
        yield from encoded


class _Batch:
    """Chunks that the backbone works on, with the indices of their videos."""

    def __init__(self, engine: Engine, chunks: Sequence[tuple[int, DecodedClips]]) -> None:
        self.engine, self.chunks, self.started = engine, chunks, time.perf_counter()
        pixels = [clips.pixels for _, clips in chunks]
        self.features = engine.start(pixels[0] if len(pixels) == 1 else torch.cat(pixels))

    def finish(self, last_end: float) -> list[EncodeResult]:
        """Wait for the features; of a batch that fails, each chunk is encoded alone."""
        try:
            features = self.features()
        except BackboneError as error:
            if len(self.chunks) == 1:
                return [(self.chunks[0][0], error)]
            batches = (_Batch(self.engine, [chunk]) for chunk in self.chunks)
            return [result for batch in batches for result in batch.finish(last_end)]
        seconds = (time.perf_counter() - max(self.started, last_end)) / len(self.chunks)
        chunk_features = features.split([len(clips.pixels) for _, clips in self.chunks])
        encoded_chunks: list[EncodeResult] = []
        for (video_index, clips), clip_features in zip(self.chunks, chunk_features, strict=True):
            rows = ClipRows(clip_features.numpy(), clips.boxes, clips.times)
            encoded = EncodedVideo(clips.facts, rows, seconds, clips.sprite)
            encoded_chunks.append((video_index, encoded))
        return encoded_chunks


def join_chunks(chunks: Iterable[EncodeResult]) -> Iterator[EncodeResult]:
    """Whole videos from their chunks; a chunk that failed fails its video."""
    waiting_chunks: dict[int, list[EncodedVideo]] = {}
    failed_videos: set[int] = set()
    for video_index, chunk in chunks:
        if not isinstance(chunk, EncodedVideo):
            failed_videos.add(video_index)
            waiting_chunks.pop(video_index, None)
            yield video_index, chunk
        elif chunk.facts.num_chunks == 1:
            yield video_index, chunk
        elif video_index not in failed_videos:
            video_chunks = waiting_chunks.setdefault(video_index, [])
            video_chunks.append(chunk)
            if len(video_chunks) == chunk.facts.num_chunks:
                yield video_index, _join(waiting_chunks.pop(video_index))


def _join(chunks: Sequence[EncodedVideo]) -> EncodedVideo:
    facts, rows = [chunk.facts for chunk in chunks], [chunk.rows for chunk in chunks]
    clip_order = np.argsort([index for chunk in facts for index in chunk.clip_indices or ()])
    video_facts = replace(
        facts[0],
        frames_missing=max(chunk.frames_missing for chunk in facts),
        frames_needed=max(chunk.frames_needed for chunk in facts),
        chunk=0,
        num_chunks=1,
        clip_indices=None,
    )
    columns = zip(*rows, strict=True)
    video_rows = ClipRows(*(np.concatenate(column)[clip_order] for column in columns))
    seconds = sum(chunk.seconds for chunk in chunks)
    return EncodedVideo(video_facts, video_rows, seconds, b"".join(c.sprite for c in chunks))
