"""The clips to learn from: in memory, or streamed from a store that is larger than memory.

Both ways give the same batches, bit for bit. Where clips are is always in memory; it is small.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from clipset.features.store import FeatureStore
from clipset.model.config import ModelConfig
from clipset.sets.batch import ClipBatch
from clipset.sets.reading import reader_for
from clipset.sets.sampling import (
    SetPair,
    draw_batches,
    draw_batches_by_group,
    draw_moves,
    draw_set_pair,
)
from clipset.training.config import PretrainConfig
from clipset.training.distributed import ProcessGroup

T = TypeVar("T")
CHUNK = 1024  # videos that are looked at together
AHEAD = 2  # batches that are read before they are needed


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
        self.videos, self.groups = videos, groups
        self._read_clips = reader_for(store, model)
        counts = store.random.count[videos]
        self.most, self.unequal = int(counts.max()), bool((counts < counts.max()).any())
        size = len(videos) * self.most * store.manifest.backbone.dim * 4
        self.in_memory = size < free_memory() / 2 if in_memory is None else in_memory
        whole = self.read(videos) if self.in_memory else None
        moments, kept, means = Moments(), [], []
        for low in range(0, len(videos), CHUNK):
            places = torch.arange(low, min(low + CHUNK, len(videos)))
            clips = whole.of(places) if whole else self.read(videos[low:][:CHUNK])
            moments.add(clips.valid_features())
            kept.append(_numbered(clips))
            means += [_means(clips)] if mix_means else []
        self.features = whole.features if whole else None
        self.places = _join(kept)
        self.means = torch.cat(means) if mix_means else None  # (N, D)
        self.mean, self.std = moments.mean, moments.std

    def __len__(self) -> int:
        return len(self.videos)

    @property
    def dim(self) -> int:
        """The width of a feature."""
        return self.mean.shape[-1]

    def read(self, videos: Int[np.ndarray, " B"]) -> ClipBatch:
        """The clips of some videos, filled up to the most that any of all the videos has."""
        clips = self._read_clips("random", videos)
        return clips.fill_up(self.most) if self.unequal else clips

    def batches_in_epoch(self, config: PretrainConfig) -> int:
        """How many batches one epoch has."""
        parts = [len(self)] if self.groups is None else self.groups.unique(return_counts=True)[1]
        return sum(-(-int(videos) // config.batch_size) for videos in parts)

    def batches(
        self, config: PretrainConfig, generator: torch.Generator, processes: ProcessGroup
    ) -> Iterator[tuple[int, SetPair]]:
        """One epoch: the size of each batch, and the sets of this rank's part of it.

        All ranks draw the same from the same generator, so their number changes nothing.
        """
        drawn = self._draw(config, generator, processes)
        return drawn if self.in_memory else ahead(drawn)

    def _draw(
        self, config: PretrainConfig, generator: torch.Generator, processes: ProcessGroup
    ) -> Iterator[tuple[int, SetPair]]:
        for videos in self._draw_videos(config, generator):
            places = self.places.of(videos)
            numbers = draw_set_pair(
                places, config.clips_per_set, config.mask_ratio, generator, rule=config.mask_rule
            )
            moves = self._draw_moves(videos, generator)
            part = processes.shard(len(videos))
            pair = _part(numbers, part)
            chosen = pair.features.squeeze(-1).long()  # (2, B, V): the numbers of clips
            features = self._read(videos[part], chosen)
            if moves is not None:
                features = features + moves[:, part, None]  # what filler holds is never looked at
            yield len(videos), replace(pair, features=features)

    def _draw_videos(
        self, config: PretrainConfig, generator: torch.Generator
    ) -> list[Int[Tensor, " B"]]:
        if self.groups is None:
            return draw_batches(len(self), config.batch_size, generator)
        return draw_batches_by_group(self.groups, config.batch_size, generator)

    def _draw_moves(
        self, videos: Int[Tensor, " B"], generator: torch.Generator
    ) -> Float[Tensor, "2 B D"] | None:
        if self.means is None:
            return None
        return torch.stack([draw_moves(self.means, videos, generator) for _ in range(2)])

    def _read(
        self, videos: Int[Tensor, " B"], chosen: Int[Tensor, "2 B V"]
    ) -> Float[Tensor, "2 B V D"]:
        if self.features is not None:
            return self.features[videos[None, :, None], chosen]
        clips = self.read(self.videos[videos.numpy()])
        return clips.features[torch.arange(len(videos))[None, :, None], chosen]


class Moments:
    """Mean and deviation of each channel, from chunks of clips, in double precision."""

    def __init__(self) -> None:
        self.count = 0
        self.sum, self.squares = torch.zeros(()), torch.zeros(())

    def add(self, features: Float[Tensor, "M D"]) -> None:
        """Count some more clips."""
        rows = features.double()
        squares, mean = torch.var_mean(rows, dim=0, correction=0)
        new, total = len(rows), self.count + len(rows)
        if not self.count:
            self.sum, self.squares = mean * new, squares * new
        else:
            apart = mean - self.sum / self.count
            self.squares = self.squares + squares * new + apart**2 * (self.count * new / total)
            self.sum = self.sum + mean * new
        self.count = total

    @property
    def mean(self) -> Float[Tensor, " D"]:
        """The mean of each channel."""
        return (self.sum / self.count).float()

    @property
    def std(self) -> Float[Tensor, " D"]:
        """The deviation of each channel; one that never changes gets 1."""
        std = (self.squares / self.count).sqrt().float()
        return torch.where(std > 1e-6, std, torch.ones_like(std))


def ahead(items: Iterator[T]) -> Iterator[T]:
    """The same items, made in a thread a little before they are asked for."""
    made: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(maxsize=AHEAD)
    stopped = threading.Event()

    def put(item: T | None, error: BaseException | None) -> None:
        while not stopped.is_set():
            try:
                made.put((item, error), timeout=0.1)
                return
            except queue.Full:
                continue

    def make() -> None:
        try:
            for item in items:
                put(item, None)
                if stopped.is_set():
                    return
            put(None, StopIteration())
        except BaseException as error:
            put(None, error)

    thread = threading.Thread(target=make, daemon=True, name="read-ahead")
    thread.start()
    try:
        while True:
            item, error = made.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield item  # type: ignore[misc]
    finally:
        stopped.set()
        thread.join()


def tensors_of(clips: ClipBatch | SetPair, device: torch.device) -> dict[str, Tensor]:
    """What the model takes, by its names."""
    found = {field.name: getattr(clips, field.name) for field in fields(clips)}
    return {name: value.to(device) for name, value in found.items() if isinstance(value, Tensor)}


def free_memory() -> int:
    """The bytes that this rank may take before something has to make room."""
    return _free_memory_of_machine() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def _free_memory_of_machine() -> int:
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


def _means(clips: ClipBatch) -> Float[Tensor, "N D"]:
    """The mean feature of each video's clips that are there; filler is zero."""
    return clips.features.sum(dim=1) / clips.counts[:, None].clamp_min(1)


def _numbered(clips: ClipBatch) -> ClipBatch:
    """The same clips with their numbers in place of the features: what chance decides on."""
    count, available = clips.features.shape[:2]
    numbers = torch.arange(available, dtype=torch.float32).expand(count, available)
    return replace(clips, features=numbers[..., None].contiguous())


def _join(parts: list[ClipBatch]) -> ClipBatch:
    """Clips of more and more videos as one."""
    columns: dict[str, list[Any]] = {
        field.name: [getattr(part, field.name) for part in parts] for field in fields(parts[0])
    }
    joined: dict[str, Any] = {
        n: torch.cat(c) if isinstance(c[0], Tensor) else c[0] for n, c in columns.items()
    }
    return ClipBatch(**joined)


def _part(pair: SetPair, part: slice) -> SetPair:
    """The sets of some of a batch's videos."""
    columns = {field.name: getattr(pair, field.name) for field in fields(pair)}
    return SetPair(**{n: c[:, part] if isinstance(c, Tensor) else c for n, c in columns.items()})
