"""What an extraction will cost, measured on a few of the videos."""

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
from clipset.data.catalog import Catalog, Video
from clipset.errors import StoreError
from clipset.features.arrays import HEADER_BYTES
from clipset.features.child import Cutter, Outcome
from clipset.features.config import ExtractConfig
from clipset.features.cutting import CutVideo
from clipset.features.extract import count_workers, cut_request, plan
from clipset.features.ledger import KINDS
from clipset.features.store import Manifest

SAMPLE = 3  # videos that are really cut
ATTEMPTS = 12  # videos that are tried for that
CLIPS = 4  # clips of each that the backbone sees


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What an extraction needs if every video can be read.

    `disk_bytes` (of the rows) is exact where all videos have the same number of clips; otherwise,
    as memory and seconds are, it is judged by the `sampled` videos.
    """

    videos: int
    clips: int
    disk_bytes: int
    memory_bytes: int | None
    seconds: float
    sampled: int


def estimate(
    catalog: Catalog, config: ExtractConfig | None = None, *, seed: int = 0, device: str = "auto"
) -> Estimate:
    """Cut a few videos and show some of their clips to the backbone; nothing is written."""
    config = config or ExtractConfig()
    manifest, network = plan(config, seed)
    engine = open_engine(manifest.backbone, network, device=device, engine=config.engine)
    request = cut_request(manifest)
    with closing(Cutter(request, timeout=config.seconds_per_video)) as cutter:
        cuts, cut_seconds = _cut_sample(cutter, _spread(catalog.videos))
    counts = [cut.facts.random_clips + cut.facts.regular_clips for cut in cuts]
    clips = float(np.mean(counts)) * len(catalog)
    look_seconds = _time_engine(engine, cuts) * clips
    return Estimate(
        videos=len(catalog),
        clips=round(clips),
        disk_bytes=rows_on_disk(manifest, round(clips)),
        memory_bytes=_memory(cuts, count_workers(config)),
        seconds=_together(engine, look_seconds, cut_seconds * len(catalog), config),
        sampled=len(cuts),
    )


def rows_on_disk(manifest: Manifest, clips: int) -> int:
    """The bytes of all rows of so many clips, random and regular ones together."""
    columns = manifest.columns().values()
    row = sum(int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in columns)
    return clips * row + len(KINDS) * len(columns) * HEADER_BYTES


def _spread(videos: Sequence[Video]) -> list[Video]:
    """Some videos from all over the list: long and short ones often stand together."""
    places = np.linspace(0, len(videos) - 1, min(ATTEMPTS, len(videos))).round().astype(int)
    order = np.random.default_rng(0).permutation(np.unique(places))
    return [videos[place] for place in order.tolist()]


def _cut_sample(cutter: Cutter, videos: Sequence[Video]) -> tuple[list[CutVideo], float]:
    """A few cut videos and the seconds that one takes; the worker's start does not count."""
    cuts: list[CutVideo] = []
    seconds: list[float] = []
    outcome = cutter.cut_piece(0, videos[0]) if videos else Outcome(0, None, "the catalog is empty")
    for place, video in enumerate(videos):
        began = time.perf_counter()
        outcome = cutter.cut_piece(place, video)
        if outcome.cut is not None:
            cuts.append(outcome.cut)
            seconds.append((time.perf_counter() - began) * outcome.cut.facts.pieces)
        if len(cuts) == SAMPLE:
            break
    if not cuts:
        raise StoreError(f"none of {len(videos)} videos could be read ({outcome.reason})")
    return cuts, float(np.mean(seconds))


def _time_engine(engine: Engine, cuts: Sequence[CutVideo]) -> float:
    """The seconds that one clip takes."""
    clips = [cut.pixels[:CLIPS] for cut in cuts]
    engine.features(clips[0])
    began = time.perf_counter()
    for some in clips:
        engine.features(some)
    return (time.perf_counter() - began) / sum(map(len, clips))


def _together(engine: Engine, look: float, cut: float, config: ExtractConfig) -> float:
    """Decoding and the backbone share the cores of a CPU; a card works beside them."""
    workers = count_workers(config)
    if workers == 0:
        return look + cut
    if engine.device == "cpu":
        return max(look + cut / (os.cpu_count() or 1), cut / workers)
    return max(look, cut / workers)


def _memory(cuts: Sequence[CutVideo], workers: int) -> int | None:
    """The most that this process and all workers have at once, where the system tells."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    here = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    child = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit
    pixels = max(cut.pixels.numel() for cut in cuts)
    return here + workers * (child + pixels)


def free_bytes(folder: Path) -> int:
    """How much the disk of a folder, there or not, still takes."""
    there = next(
        place for place in (folder.absolute(), *folder.absolute().parents) if place.exists()
    )
    return shutil.disk_usage(there).free
