"""Runs the backbone on decoded clips."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from jaxtyping import Float

from clipset.backbones.runtime import MAX_CHUNK, Engine, PendingFeatures
from clipset.clips.decode import DecodedClips, VideoFacts
from clipset.errors import BackboneError
from clipset.features.decode_pool import DecodeResult
from clipset.features.ledger import LedgerEntry

RECORDED = tuple(
    field.name for field in fields(VideoFacts) if field.name in LedgerEntry.__dataclass_fields__
)


@dataclass(frozen=True, slots=True)
class ClipRows:
    """The rows of one video's clips, random clips first."""

    features: Float[np.ndarray, "V D"]
    boxes: Float[np.ndarray, "V 7"]
    times: Float[np.ndarray, "V T"]


@dataclass(frozen=True, slots=True)
class EncodedVideo:
    """The rows of the video at `index` (or of a chunk of it), or the reason why it failed."""

    index: int
    facts: VideoFacts | None = None
    rows: ClipRows | None = None
    reason: str | None = None
    seconds: float | None = None
    transient: bool = False  # a retry may succeed

    def update(self, entry: LedgerEntry) -> LedgerEntry:
        """The video's ledger entry with this result; where its rows are does not change."""
        if self.facts is None:
            return replace(entry, status="failed", reason=self.reason, transient=self.transient)
        facts = {name: getattr(self.facts, name) for name in RECORDED}
        done = replace(entry, status="done", reason=None, transient=False, seconds=self.seconds)
        return replace(done, **facts)


def encode_videos(
    engine: Engine, results: Iterable[DecodeResult], ids: Sequence[str], *, isolate: bool = False
) -> Iterator[EncodedVideo]:
    """Encode decoded videos; the chunks of a video are joined."""
    return join_chunks(encode_chunks(engine, results, ids, isolate=isolate))


def encode_chunks(
    engine: Engine, results: Iterable[DecodeResult], ids: Sequence[str], *, isolate: bool = False
) -> Iterator[EncodedVideo]:
    """Encode decoded chunks; a GPU gets those of several videos in one batch.

    With `isolate`, a video that the backbone cannot encode fails alone; otherwise it ends the work.
    """
    encoder = _Encoder(engine, ids, isolate)
    pending: list[tuple[int, DecodedClips]] = []
    running: deque[_Batch] = deque()
    for result in results:
        if result.clips is None:
            yield EncodedVideo(result.index, reason=result.reason, transient=result.transient)
            continue
        pending.append((result.index, result.clips))
        if engine.device == "cpu" or sum(len(c.pixels) for _, c in pending) >= MAX_CHUNK:
            running.append(encoder.start(pending))
            pending = []
        if len(running) > 1:  # the next batch keeps the cores busy while this one is finished
            yield from encoder.finish(running.popleft())
    if pending:
        running.append(encoder.start(pending))
    while running:
        yield from encoder.finish(running.popleft())


def join_chunks(chunks: Iterable[EncodedVideo]) -> Iterator[EncodedVideo]:
    """Whole videos from their chunks; a chunk that failed fails its video."""
    waiting: dict[int, list[EncodedVideo]] = {}
    failed: set[int] = set()
    for chunk in chunks:
        if chunk.facts is None:
            failed.add(chunk.index)
            waiting.pop(chunk.index, None)
            yield chunk
        elif chunk.facts.num_chunks == 1:
            yield chunk
        elif chunk.index not in failed:
            parts = waiting.setdefault(chunk.index, [])
            parts.append(chunk)
            if len(parts) == chunk.facts.num_chunks:
                yield _join(waiting.pop(chunk.index))


def _join(chunks: Sequence[EncodedVideo]) -> EncodedVideo:
    facts = [chunk.facts for chunk in chunks if chunk.facts is not None]
    rows = [chunk.rows for chunk in chunks if chunk.rows is not None]
    order = np.argsort([index for chunk in facts for index in chunk.clip_indices or ()])
    whole = replace(
        facts[0],
        frames_missing=max(chunk.frames_missing for chunk in facts),
        frames_needed=max(chunk.frames_needed for chunk in facts),
        chunk=0,
        num_chunks=1,
        clip_indices=None,
    )
    joined = ClipRows(
        features=np.concatenate([part.features for part in rows])[order],
        boxes=np.concatenate([part.boxes for part in rows])[order],
        times=np.concatenate([part.times for part in rows])[order],
    )
    seconds = sum(chunk.seconds or 0.0 for chunk in chunks)
    return EncodedVideo(chunks[0].index, facts=whole, rows=joined, seconds=seconds)


@dataclass(frozen=True, slots=True)
class _Batch:
    """Decoded chunks, with the indices of their videos, that the backbone works on."""

    chunks: Sequence[tuple[int, DecodedClips]]
    features: PendingFeatures
    started: float


class _Encoder:
    """Starts and finishes batches; the time of a video begins when the batch before it ended."""

    def __init__(self, engine: Engine, ids: Sequence[str], isolate: bool) -> None:
        self.engine, self.ids, self.isolate = engine, ids, isolate
        self.finished = 0.0

    def start(self, chunks: Sequence[tuple[int, DecodedClips]]) -> _Batch:
        started = time.perf_counter()
        pixels = [clips.pixels for _, clips in chunks]
        features = self.engine.start(pixels[0] if len(pixels) == 1 else torch.cat(pixels))
        return _Batch(chunks, features, started)

    def finish(self, batch: _Batch) -> list[EncodedVideo]:
        try:
            features = batch.features()
        except BackboneError as error:
            return self._finish_failed(batch, error)
        now = time.perf_counter()
        seconds = (now - max(batch.started, self.finished)) / len(batch.chunks)
        self.finished = now
        parts = features.split([len(clips.pixels) for _, clips in batch.chunks])
        return [
            EncodedVideo(
                index,
                facts=clips.facts,
                rows=ClipRows(part.numpy(), clips.boxes, clips.times),
                seconds=seconds,
            )
            for (index, clips), part in zip(batch.chunks, parts, strict=True)
        ]

    def _finish_failed(self, batch: _Batch, error: BackboneError) -> list[EncodedVideo]:
        """Run each video alone to find the one that the error is about."""
        if len(batch.chunks) > 1:
            return [video for chunk in batch.chunks for video in self.finish(self.start([chunk]))]
        [(index, _)] = batch.chunks
        if self.isolate:
            return [EncodedVideo(index, reason=str(error))]
        raise BackboneError(f"{self.ids[index]}: {error}") from None
