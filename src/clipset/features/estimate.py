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
from clipset.errors import StoreError, VideoError
from clipset.features.config import ExtractConfig
from clipset.features.decode_pool import DecodeWorker
from clipset.features.extract import decode_request, plan_store
from clipset.features.ledger import KINDS
from clipset.features.sprites import sprite_files
from clipset.features.store import FeatureStore, Manifest
from clipset.row_files import HEADER_BYTES

SAMPLE_VIDEOS = 3  # videos that are decoded
MAX_ATTEMPTS = 12  # videos that are tried for that
SAMPLE_CLIPS = 4  # clips of each that are encoded
SPRITE_BYTES = 20_000  # of a video with several chunks, of which only the first is decoded


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What an extraction needs if every video can be read.

    `row_bytes` is exact where all videos have the same number of clips; otherwise it is estimated
    from the `sampled` videos, as the bytes of the sprites, memory and seconds are.
    """

    videos: int
    clips: int
    row_bytes: int
    sprite_bytes: int
    memory_bytes: int | None
    seconds: float
    sampled: int
    dim: int

    @property
    def disk_bytes(self) -> int:
        """The bytes of rows and sprites."""
        return self.row_bytes + self.sprite_bytes


def estimate_extraction(
    catalog: Catalog,
    config: ExtractConfig | None = None,
    *,
    device: str = "auto",
    clips_per_second: float | None = None,
) -> Estimate:
    """Decode a few videos and encode some of their clips; nothing is written.

    `clips_per_second` is the speed of the backbone, if it is not to be measured here.
    """
    config = config or ExtractConfig()
    manifest, network = plan_store(config, catalog.videos)
    engine = open_engine(manifest.backbone, network, device=device, engine=config.engine)
    request = decode_request(manifest, sprite=True)
    with closing(DecodeWorker(request, timeout=config.timeout_seconds)) as worker:
        sample_clips, decode_seconds = _decode_sample(worker, catalog.videos)
    clips_per_video = np.mean([c.facts.random_count + c.facts.regular_count for c in sample_clips])
    num_clips = float(clips_per_video) * len(catalog)
    sprite_bytes = float(np.mean([len(c.sprite) or SPRITE_BYTES for c in sample_clips]))
    encode_seconds = num_clips * (
        1 / clips_per_second if clips_per_second else _time_engine(engine, sample_clips)
    )
    decode, num_workers = decode_seconds * len(catalog), config.num_workers
    if num_workers == 0:
        seconds = encode_seconds + decode
    elif engine.device == "cpu":  # decoding and the backbone run on the same cores
        seconds = max(encode_seconds + decode / (os.cpu_count() or 1), decode / num_workers)
    else:
        seconds = max(encode_seconds, decode / num_workers)
    return Estimate(
        videos=len(catalog),
        clips=round(num_clips),
        row_bytes=count_bytes(manifest, round(num_clips)),
        sprite_bytes=round(sprite_bytes * len(catalog)),
        memory_bytes=_memory(sample_clips, num_workers),
        seconds=seconds,
        sampled=len(sample_clips),
        dim=manifest.backbone.dim,
    )


def estimate_store(store: FeatureStore) -> Estimate:
    """A store that is extracted already: it takes its space and no time."""
    num_clips = sum(entry.random_count + entry.regular_count for entry in store.entries)
    return Estimate(
        videos=len(store),
        clips=num_clips,
        row_bytes=count_bytes(store.manifest, num_clips),
        sprite_bytes=sum(path.stat().st_size for path in sprite_files(store.folder)),
        memory_bytes=None,
        seconds=0.0,
        sampled=0,
        dim=store.manifest.backbone.dim,
    )


def count_bytes(manifest: Manifest, num_clips: int) -> int:
    """The bytes of a store's rows."""
    columns = manifest.columns().values()
    row_bytes = sum(int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in columns)
    return num_clips * row_bytes + len(KINDS) * len(columns) * HEADER_BYTES


def free_bytes(folder: Path) -> int:
    """The free space on the disk of a folder, which need not exist."""
    parents = (folder.absolute(), *folder.absolute().parents)
    return shutil.disk_usage(next(path for path in parents if path.exists())).free


def _decode_sample(
    worker: DecodeWorker, videos: Sequence[Video]
) -> tuple[list[DecodedClips], float]:
    """A few decoded videos and the seconds that one takes, without the worker's start.

    They are from all over the list, as long and short videos are often grouped.
    """
    spread = np.linspace(0, len(videos) - 1, min(MAX_ATTEMPTS, len(videos))).round().astype(int)
    video_order = np.random.default_rng(0).permutation(np.unique(spread)).tolist()
    sample_clips: list[DecodedClips] = []
    decode_times: list[float] = []
    reason = "the catalog is empty"
    for attempt, video_index in enumerate([*video_order[:1], *video_order]):
        start_time = time.perf_counter()
        _, clips = next(worker.decode(video_index, videos[video_index]))
        if isinstance(clips, VideoError):
            reason = str(clips)
        elif attempt > 0:  # the first one starts the worker
            sample_clips.append(clips)
            decode_times.append((time.perf_counter() - start_time) * clips.facts.num_chunks)
        if len(sample_clips) == SAMPLE_VIDEOS:
            break
    if not sample_clips:
        raise StoreError(f"none of {len(video_order)} videos could be read ({reason})")
    return sample_clips, float(np.mean(decode_times))


def _time_engine(engine: Engine, sample_clips: Sequence[DecodedClips]) -> float:
    """The seconds that one clip takes."""
    clip_batches = [clips.pixels[:SAMPLE_CLIPS] for clips in sample_clips]
    engine.features(clip_batches[0])
    start_time = time.perf_counter()
    for clip_batch in clip_batches:
        engine.features(clip_batch)
    return (time.perf_counter() - start_time) / sum(map(len, clip_batches))


def _memory(sample: Sequence[DecodedClips], workers: int) -> int | None:
    """The peak memory of this process and all workers, where the system tells."""
    parent_bytes, worker_bytes = peak_memory(), peak_memory(of_children=True)
    if parent_bytes is None or worker_bytes is None:
        return None
    return parent_bytes + workers * (worker_bytes + max(clips.pixels.numel() for clips in sample))


def peak_memory(of_children: bool = False) -> int | None:
    """The peak memory of this process, or of the largest of its children, in bytes."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    who = resource.RUSAGE_CHILDREN if of_children else resource.RUSAGE_SELF
    return resource.getrusage(who).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
