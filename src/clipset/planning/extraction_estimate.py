"""Estimates the cost of an extraction from a few seconds of it."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from clipset.backbones.runtime import open_engine
from clipset.clips.decode import VideoFacts
from clipset.data.catalog import Catalog, Video
from clipset.errors import BackboneError, StoreError, VideoError
from clipset.features.config import ExtractConfig
from clipset.features.decode_pool import DecodeResult, decode_videos
from clipset.features.encode import EncodeResult, encode_chunks
from clipset.features.extract import decode_request, plan_store
from clipset.features.ledger import KINDS
from clipset.features.sprites import sprite_files
from clipset.features.store import FeatureStore, Manifest
from clipset.row_files import HEADER_BYTES

MAX_VIDEOS = 256  # that are decoded
WARM_SECONDS = 2.0  # after which the speed is measured, if the first videos are not done before
MEASURED_SECONDS = 4.0
CLIPS_AT_ONCE = 8  # given to the backbone: of a slow one, a part of a video is enough
SPRITE_BYTES = 20_000  # of a video with several chunks, of which only the first is decoded


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What an extraction needs if every video can be read.

    `row_bytes` is exact where all videos have the same number of clips; otherwise it is estimated
    from the `sampled` videos, as the bytes of the sprites, memory and seconds are. Of the seconds,
    `start_seconds` do not depend on the number of videos.
    """

    videos: int
    clips: int
    regular_clips: int
    row_bytes: int
    sprite_bytes: int
    memory_bytes: int | None
    seconds: float
    start_seconds: float
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
    """Extract for a few seconds, with the same workers and backbone; nothing is written.

    `clips_per_second` is the speed of the backbone, if it is not to be measured here; decoding is.
    """
    started_at = time.perf_counter()
    config = config or ExtractConfig()
    manifest, network = plan_store(config, catalog.videos)
    sample, sample_videos = _Sample(), _spread(catalog.videos)
    warm_videos = config.num_workers + 2  # those that were decoded while the backbone was loaded
    with decode_videos(sample_videos, decode_request(manifest, sprite=True), config) as decoded:
        results = sample.watch(decoded)
        if clips_per_second is None:
            engine = open_engine(manifest.backbone, network, device=device, engine=config.engine)
            finished = _count_encoded(encode_chunks(engine, _cut(results)))
        else:
            finished = (len(c.pixels) for _, c in results if not isinstance(c, VideoError))
        num_clips, clip_seconds = _time_clips(finished, sample, warm_videos)
    if not sample.facts:
        raise StoreError(f"none of {len(sample_videos)} videos could be read ({sample.reason})")
    start_seconds = max(time.perf_counter() - started_at - num_clips * clip_seconds, 0.0)
    if clips_per_second is not None:
        clip_seconds = max(clip_seconds, 1 / clips_per_second)
    clips_per_video = np.mean([f.random_count + f.regular_count for f in sample.facts])
    total_clips = round(float(clips_per_video) * len(catalog))
    return Estimate(
        videos=len(catalog),
        clips=total_clips,
        regular_clips=round(float(np.mean([f.regular_count for f in sample.facts]))),
        row_bytes=count_bytes(manifest, total_clips),
        sprite_bytes=round(float(np.mean(sample.sprite_bytes)) * len(catalog)),
        memory_bytes=_memory(sample.max_pixels, config.num_workers),
        seconds=start_seconds + total_clips * clip_seconds,
        start_seconds=start_seconds,
        sampled=len(sample.facts),
        dim=manifest.backbone.dim,
    )


def estimate_store(store: FeatureStore) -> Estimate:
    """A store that is extracted already: it takes its space and no time."""
    num_clips = sum(entry.random_count + entry.regular_count for entry in store.entries)
    return Estimate(
        videos=len(store),
        clips=num_clips,
        regular_clips=round(float(np.mean([entry.regular_count for entry in store.entries]))),
        row_bytes=count_bytes(store.manifest, num_clips),
        sprite_bytes=sum(path.stat().st_size for path in sprite_files(store.folder)),
        memory_bytes=None,
        seconds=0.0,
        start_seconds=0.0,
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


@dataclass
class _Sample:
    """What is known of the decoded videos."""

    facts: list[VideoFacts] = field(default_factory=list)
    sprite_bytes: list[int] = field(default_factory=list)
    max_pixels: int = 0
    reason: str = "the catalog is empty"  # why a video could not be read

    def watch(self, results: Iterable[DecodeResult]) -> Iterator[DecodeResult]:
        """The same results; the first chunk of each video is recorded."""
        for video_index, clips in results:
            if isinstance(clips, VideoError):
                self.reason = str(clips)
            elif clips.facts.chunk == 0:
                self.facts.append(clips.facts)
                self.sprite_bytes.append(len(clips.sprite) or SPRITE_BYTES)
                self.max_pixels = max(self.max_pixels, clips.pixels.numel())
            yield video_index, clips
            del clips


def _spread(videos: Sequence[Video]) -> list[Video]:
    """Videos from all over the list: long and short videos are often grouped."""
    spread = np.linspace(0, len(videos) - 1, min(MAX_VIDEOS, len(videos))).round().astype(int)
    video_order = np.random.default_rng(0).permutation(np.unique(spread))
    return [videos[index] for index in video_order.tolist()]


def _cut(results: Iterable[DecodeResult]) -> Iterator[DecodeResult]:
    """The clips of decoded videos, a few at a time."""
    for video_index, clips in results:
        if isinstance(clips, VideoError):
            yield video_index, clips
            continue
        for first in range(0, len(clips.pixels), CLIPS_AT_ONCE):
            part = slice(first, first + CLIPS_AT_ONCE)
            yield (
                video_index,
                replace(
                    clips,
                    pixels=clips.pixels[part],
                    boxes=clips.boxes[part],
                    times=clips.times[part],
                ),
            )


def _count_encoded(results: Iterable[EncodeResult]) -> Iterator[int]:
    """The clips of each result; a backbone that fails would end the extraction."""
    for _, video in results:
        if isinstance(video, BackboneError):
            raise video
        if not isinstance(video, VideoError):
            yield len(video.rows.features)


def _time_clips(finished: Iterator[int], sample: _Sample, warm_videos: int) -> tuple[int, float]:
    """The clips that were finished, and the seconds that one takes once all work side by side."""
    progress = [(time.perf_counter(), 0)]  # when how many clips were finished
    warm = 0  # index in `progress` from which the speed is measured
    for num_clips in finished:
        progress.append((time.perf_counter(), progress[-1][1] + num_clips))
        elapsed = progress[-1][0] - progress[warm or 1][0]
        if not warm and (len(sample.facts) > warm_videos or elapsed > WARM_SECONDS):
            warm = len(progress) - 1
        elif warm and elapsed > MEASURED_SECONDS:
            break
    end, total_clips = progress[-1]
    if warm == len(progress) - 1:
        warm = 0
    begin, first_clips = progress[warm or min(1, len(progress) - 2)] if total_clips else (end, 0)
    return total_clips, (end - begin) / max(total_clips - first_clips, 1)


def _memory(max_pixels: int, workers: int) -> int | None:
    """The peak memory of this process and all workers, where the system tells."""
    parent_bytes, worker_bytes = peak_memory(), peak_memory(of_children=True)
    if parent_bytes is None or worker_bytes is None:
        return None
    return parent_bytes + workers * (worker_bytes + max_pixels)


def peak_memory(of_children: bool = False) -> int | None:
    """The peak memory of this process, or of the largest of its children, in bytes."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    who = resource.RUSAGE_CHILDREN if of_children else resource.RUSAGE_SELF
    return resource.getrusage(who).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
