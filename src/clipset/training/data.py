"""Batches of training clips: from memory, or streamed from a store that is larger than memory.

Both ways give the same batches, bit for bit.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from clipset.features.store import FeatureStore
from clipset.model.config import ModelConfig
from clipset.sets.batch import ClipBatch, RunningStatistics
from clipset.sets.sampling import (
    PixelPair,
    SetIndices,
    SetPair,
    draw_batches,
    draw_batches_by_group,
    draw_set_indices,
)
from clipset.sets.stored_clips import Clips, StoredClips
from clipset.training.config import PretrainConfig
from clipset.training.distributed import ProcessGroup

T = TypeVar("T")
STATISTICS_CHUNK = 1024  # videos read at once
PREFETCH = 2  # batches read before they are needed

BatchPlan = tuple[int, Int[Tensor, " _"], SetIndices]
"""The size of a batch, the videos of this rank's shard of it, and their sets."""


class BatchSource(ABC):
    """Videos to draw batches from: which ones, their two sets of clips, and the masks."""

    groups: Int[Tensor, " N"] | None = None  # batches are of one group each
    max_clips: int  # clips of a video, padding included
    valid: Bool[Tensor, "N V"] | None = None  # False for padding
    dim: int  # width of a feature

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read_sets(self, plan: Iterator[BatchPlan], epoch: int) -> Iterator[tuple[int, Any]]:
        """The size of each batch of a plan, and the sets of this rank's shard of it."""

    def batches(
        self,
        config: PretrainConfig,
        generator: torch.Generator,
        processes: ProcessGroup,
        *,
        epoch: int = 0,
    ) -> Iterator[tuple[int, Any]]:
        """One epoch: the size of each batch, and the sets of this rank's shard of it.

        All ranks draw the same from the same generator, so their number changes nothing.
        """
        return self.read_sets(self.draw_sets(config, generator, processes), epoch)

    def batches_in_epoch(self, config: PretrainConfig) -> int:
        """The number of batches in an epoch."""
        sizes = [len(self)] if self.groups is None else self.groups.unique(return_counts=True)[1]
        return sum(-(-int(size) // config.batch_size) for size in sizes)

    def draw_sets(
        self, config: PretrainConfig, generator: torch.Generator, processes: ProcessGroup
    ) -> Iterator[BatchPlan]:
        """The batches of an epoch."""
        if self.groups is None:
            batches = draw_batches(len(self), config.batch_size, generator)
        else:
            batches = draw_batches_by_group(self.groups, config.batch_size, generator)
        for videos in batches:
            sets = draw_set_indices(
                len(videos),
                self.max_clips,
                config.clips_per_set,
                config.mask_ratio,
                generator,
                mask_rule=config.mask_rule,
                valid=None if self.valid is None else self.valid[videos],
            )
            shard = processes.shard(len(videos))
            yield len(videos), videos[shard], sets.select(shard)


class ClipSource(BatchSource):
    """The random clips of some videos of a store, to draw batches from."""

    def __init__(
        self,
        store: FeatureStore,
        videos: Int[np.ndarray, " N"],
        model: ModelConfig,
        *,
        in_memory: bool | None = None,
        groups: Int[Tensor, " N"] | None = None,
    ) -> None:
        stored = StoredClips(store, ("random",), videos, model)
        self.videos, self.groups, self.valid = videos, groups, stored.valid
        self.max_clips, self.dim = stored.num_clips, stored.dim
        size = 4 * len(stored) * stored.num_clips * stored.dim
        self.in_memory = size < available_memory() / 2 if in_memory is None else in_memory
        self.clips: Clips = stored.read(slice(None)) if self.in_memory else stored
        statistics = RunningStatistics()
        for start in range(0, len(videos), STATISTICS_CHUNK):
            clips = self.clips.read(slice(start, start + STATISTICS_CHUNK))
            statistics.update(clips.valid_features())
        self.mean, self.std = statistics.mean, statistics.std

    def __len__(self) -> int:
        return len(self.videos)

    def read_sets(
        self,
        plan: Iterator[BatchPlan],
        epoch: int,  # noqa: ARG002 (the clips of a video are the same in all epochs)
    ) -> Iterator[tuple[int, SetPair]]:
        """The sets of an epoch; from a store, a little ahead."""
        batches = ((size, self._read_pair(videos, sets)) for size, videos, sets in plan)
        return batches if self.in_memory else prefetch(batches)

    def _read_pair(self, videos: Int[Tensor, " B"], sets: SetIndices) -> SetPair:
        clips, rows = self.clips, videos
        if isinstance(clips, StoredClips):
            clips, rows = clips.read(videos), torch.arange(len(videos))
        index = (rows[None, :, None], sets.clip_index)
        return SetPair(clips.features[index], clips.boxes[index], sets.masked, sets.valid)


def prefetch(items: Iterator[T], ahead: int = PREFETCH) -> Iterator[T]:
    """The same items, produced by a thread a little ahead."""
    end = object()
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="prefetch") as pool:
        pending = deque(pool.submit(next, items, end) for _ in range(ahead))
        while (item := pending.popleft().result()) is not end:
            pending.append(pool.submit(next, items, end))
            yield item  # type: ignore[misc]


def tensors_of(clips: ClipBatch | SetPair | PixelPair, device: torch.device) -> dict[str, Tensor]:
    """The tensors of clips on a device, as keyword arguments of the model."""
    values = {field.name: getattr(clips, field.name) for field in fields(clips)}
    return {name: value.to(device) for name, value in values.items() if value is not None}


def available_memory() -> int:
    """The bytes that this process may allocate."""
    num_processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024 // num_processes
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        total = 8 * 2**30
    return total // 2 // num_processes
