"""Batches of training clips: from memory, or streamed from a store that is larger than memory.

Both ways give the same batches, bit for bit. Boxes are always in memory; they are small.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from clipset.features.store import FeatureStore
from clipset.model.config import ModelConfig
from clipset.sets.batch import ClipBatch
from clipset.sets.reading import read_clips
from clipset.sets.sampling import (
    SetPair,
    draw_batches,
    draw_batches_by_group,
    draw_mean_shifts,
    draw_set_indices,
)
from clipset.sets.statistics import RunningStatistics
from clipset.training.config import PretrainConfig
from clipset.training.distributed import ProcessGroup

T = TypeVar("T")
STATISTICS_CHUNK = 1024  # videos read at once
PREFETCH = 2  # batches read before they are needed


class ClipSource:
    """The random clips of some videos of a store, to draw batches from."""

    def __init__(
        self,
        store: FeatureStore,
        videos: Int[np.ndarray, " N"],
        model: ModelConfig,
        *,
        in_memory: bool | None = None,
        groups: Int[Tensor, " N"] | None = None,
        mix_means: bool = False,
    ) -> None:
        self.store, self.videos, self.model, self.groups = store, videos, model, groups
        counts = store.random.count[videos]
        self.max_clips, self.ragged = int(counts.max()), bool((counts < counts.max()).any())
        size = len(videos) * self.max_clips * store.manifest.backbone.dim * 4
        self.in_memory = size < available_memory() / 2 if in_memory is None else in_memory
        everything = self.read(videos) if self.in_memory else None
        statistics, boxes, valid, means = RunningStatistics(), [], [], []
        for start in range(0, len(videos), STATISTICS_CHUNK):
            chunk = slice(start, start + STATISTICS_CHUNK)
            clips = everything.select(chunk) if everything else self.read(videos[chunk])
            statistics.update(clips.valid_features())
            boxes.append(clips.boxes)
            if clips.valid is not None:
                valid.append(clips.valid)
            if mix_means:
                means.append(_mean_features(clips))
        self.features = everything.features if everything else None
        self.boxes = torch.cat(boxes)
        self.valid = torch.cat(valid) if valid else None
        self.means = torch.cat(means) if mix_means else None  # (N, D)
        self.mean, self.std = statistics.mean, statistics.std

    def __len__(self) -> int:
        return len(self.videos)

    @property
    def dim(self) -> int:
        """The width of a feature."""
        return self.mean.shape[-1]

    def read(self, videos: Int[np.ndarray, " B"]) -> ClipBatch:
        """The clips of some videos, padded to the largest number of clips of all videos."""
        clips = read_clips(self.store, "random", videos, self.model)
        return clips.pad_to(self.max_clips) if self.ragged else clips

    def batches_in_epoch(self, config: PretrainConfig) -> int:
        """The number of batches in an epoch."""
        sizes = [len(self)] if self.groups is None else self.groups.unique(return_counts=True)[1]
        return sum(-(-int(size) // config.batch_size) for size in sizes)

    def batches(
        self, config: PretrainConfig, generator: torch.Generator, processes: ProcessGroup
    ) -> Iterator[tuple[int, SetPair]]:
        """One epoch: the size of each batch, and the sets of this rank's shard of it.

        All ranks draw the same from the same generator, so their number changes nothing.
        """
        batches = self._draw_batches(config, generator, processes)
        return batches if self.in_memory else prefetch(batches)

    def _draw_batches(
        self, config: PretrainConfig, generator: torch.Generator, processes: ProcessGroup
    ) -> Iterator[tuple[int, SetPair]]:
        for videos in self._draw_videos(config, generator):
            sets = draw_set_indices(
                len(videos),
                self.boxes.shape[1],
                config.clips_per_set,
                config.mask_ratio,
                generator,
                mask_rule=config.mask_rule,
                valid=None if self.valid is None else self.valid[videos],
            )
            shifts = self._draw_mean_shifts(videos, generator)
            shard = processes.shard(len(videos))
            sets, own_videos = sets.select(shard), videos[shard]
            features = self._read_features(own_videos, sets.clip_index)
            if shifts is not None:
                features = features + shifts[:, shard, None]
            boxes = self.boxes[own_videos[None, :, None], sets.clip_index]
            yield len(videos), SetPair(features, boxes, sets.masked, sets.valid)

    def _draw_videos(
        self, config: PretrainConfig, generator: torch.Generator
    ) -> list[Int[Tensor, " B"]]:
        if self.groups is None:
            return draw_batches(len(self), config.batch_size, generator)
        return draw_batches_by_group(self.groups, config.batch_size, generator)

    def _draw_mean_shifts(
        self, videos: Int[Tensor, " B"], generator: torch.Generator
    ) -> Float[Tensor, "2 B D"] | None:
        if self.means is None:
            return None
        return torch.stack([draw_mean_shifts(self.means, videos, generator) for _ in range(2)])

    def _read_features(
        self, videos: Int[Tensor, " B"], clip_index: Int[Tensor, "2 B V"]
    ) -> Float[Tensor, "2 B V D"]:
        if self.features is not None:
            return self.features[videos[None, :, None], clip_index]
        clips = self.read(self.videos[videos.numpy()])
        return clips.features[torch.arange(len(videos))[None, :, None], clip_index]


def prefetch(items: Iterator[T]) -> Iterator[T]:
    """The same items, produced by a thread a little ahead."""
    results: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(maxsize=PREFETCH)
    stopped = threading.Event()

    def put(item: T | None, error: BaseException | None) -> None:
        while not stopped.is_set():
            try:
                results.put((item, error), timeout=0.1)
                return
            except queue.Full:
                continue

    def produce() -> None:
        try:
            for item in items:
                put(item, None)
                if stopped.is_set():
                    return
            put(None, StopIteration())
        except BaseException as error:
            put(None, error)

    thread = threading.Thread(target=produce, daemon=True, name="prefetch")
    thread.start()
    try:
        while True:
            item, error = results.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield item  # type: ignore[misc]
    finally:
        stopped.set()
        thread.join()


def tensors_of(clips: ClipBatch | SetPair, device: torch.device) -> dict[str, Tensor]:
    """The tensors of clips on a device, as keyword arguments of the model."""
    values = {field.name: getattr(clips, field.name) for field in fields(clips)}
    return {name: value.to(device) for name, value in values.items() if value is not None}


def available_memory() -> int:
    """The bytes that this process may allocate."""
    return _machine_memory() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def _machine_memory() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (AttributeError, ValueError, OSError):
        return 4 * 2**30


def _mean_features(clips: ClipBatch) -> Float[Tensor, "N D"]:
    """The mean feature of each video's valid clips; padding is zero."""
    return clips.features.sum(dim=1) / clips.counts[:, None].clamp_min(1)
