"""Estimates the cost of an extraction from a few of the videos."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from clipset.backbones.runtime import Engine, open_engine
from clipset.clips.decode import DecodedClips
from clipset.data.catalog import Catalog, Video
from clipset.errors import StoreError
from clipset.features.config import ExtractConfig
from clipset.features.decode_pool import DecodeResult, DecodeWorker
from clipset.features.extract import decode_request, plan_store
from clipset.features.ledger import KINDS
from clipset.features.store import Manifest
from clipset.row_files import HEADER_BYTES

SAMPLE_VIDEOS = 3  # videos that are decoded
MAX_ATTEMPTS = 12  # videos that are tried for that
SAMPLE_CLIPS = 4  # clips of each that are encoded


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What an extraction needs if every video can be read.

    `disk_bytes` (of the rows) is exact where all videos have the same number of clips; otherwise
    it is estimated from the `sampled` videos, as memory and seconds are.
    """

    videos: int
    clips: int
    disk_bytes: int
    memory_bytes: int | None
    seconds: float
    sampled: int


def estimate(
    catalog: Catalog, config: ExtractConfig | None = None, *, device: str = "auto"
) -> Estimate:
    """Decode a few videos and encode some of their clips; nothing is written."""
    config = config or ExtractConfig()
    manifest, network = plan_store(config, catalog.videos)
    engine = open_engine(manifest.backbone, network, device=device, engine=config.engine)
    request = decode_request(manifest)
    with closing(DecodeWorker(request, timeout=config.timeout_seconds)) as worker:
        sample, decode_seconds = _decode_sample(worker, _spread(catalog.videos))
    counts = [clips.facts.random_count + clips.facts.regular_count for clips in sample]
    num_clips = float(np.mean(counts)) * len(catalog)
    encode_seconds = _time_engine(engine, sample) * num_clips
    return Estimate(
        videos=len(catalog),
        clips=round(num_clips),
        disk_bytes=row_bytes(manifest, round(num_clips)),
        memory_bytes=_memory(sample, config.num_workers),
        seconds=_total_seconds(engine, encode_seconds, decode_seconds * len(catalog), config),
        sampled=len(sample),
    )


def row_bytes(manifest: Manifest, num_clips: int) -> int:
    """The bytes of all rows of so many clips, random and regular ones together."""
    columns = manifest.columns().values()
    row = sum(int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in columns)
    return num_clips * row + len(KINDS) * len(columns) * HEADER_BYTES


def free_bytes(folder: Path) -> int:
    """The free space on the disk of a folder, which need not exist."""
    parents = (folder.absolute(), *folder.absolute().parents)
    return shutil.disk_usage(next(path for path in parents if path.exists())).free


def _spread(videos: Sequence[Video]) -> list[Video]:
    """Some videos from all over the list, as long and short ones are often grouped."""
    indices = np.linspace(0, len(videos) - 1, min(MAX_ATTEMPTS, len(videos))).round().astype(int)
    order = np.random.default_rng(0).permutation(np.unique(indices))
    return [videos[index] for index in order.tolist()]


def _decode_sample(
    worker: DecodeWorker, videos: Sequence[Video]
) -> tuple[list[DecodedClips], float]:
    """A few decoded videos and the seconds that one takes, without the worker's start."""
    sample: list[DecodedClips] = []
    seconds: list[float] = []
    result = DecodeResult(0, None, "the catalog is empty")
    if videos:
        result = worker.decode_chunk(0, videos[0])
    for index, video in enumerate(videos):
        started = time.perf_counter()
        result = worker.decode_chunk(index, video)
        if result.clips is not None:
            sample.append(result.clips)
            seconds.append((time.perf_counter() - started) * result.clips.facts.num_chunks)
        if len(sample) == SAMPLE_VIDEOS:
            break
    if not sample:
        raise StoreError(f"none of {len(videos)} videos could be read ({result.reason})")
    return sample, float(np.mean(seconds))


def _time_engine(engine: Engine, sample: Sequence[DecodedClips]) -> float:
    """The seconds that one clip takes."""
    batches = [clips.pixels[:SAMPLE_CLIPS] for clips in sample]
    engine.features(batches[0])
    started = time.perf_counter()
    for batch in batches:
        engine.features(batch)
    return (time.perf_counter() - started) / sum(map(len, batches))


def _total_seconds(engine: Engine, encode: float, decode: float, config: ExtractConfig) -> float:
    """Decoding and the backbone share the cores of a CPU; a GPU works beside them."""
    workers = config.num_workers
    if workers == 0:
        return encode + decode
    if engine.device == "cpu":
        return max(encode + decode / (os.cpu_count() or 1), decode / workers)
    return max(encode, decode / workers)


def _memory(sample: Sequence[DecodedClips], workers: int) -> int | None:
    """The peak memory of this process and all workers, where the system tells."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    parent = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    worker = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit
    return parent + workers * (worker + max(clips.pixels.numel() for clips in sample))
