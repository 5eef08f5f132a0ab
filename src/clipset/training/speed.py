"""How fast pre-training is here, measured on random features before there are any of videos."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from clipset.devices import find_device
from clipset.sets.sampling import SetPair, draw_mask
from clipset.training.card import ModelCard
from clipset.training.config import PretrainConfig
from clipset.training.data import BatchPlan, BatchSource
from clipset.training.distributed import ProcessGroup
from clipset.training.trainer import PretrainingRun

MAX_BATCH = 512  # videos in a measured batch
MIN_EPOCHS, MEASURED_SECONDS = 3, 1.5  # of the measurement, whose first epoch is slower


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSpeed:
    """Seconds of a step for one video of its batch, and of what follows the steps of an epoch."""

    video: float
    epoch: float = 0.0


def measure_training(
    dim: int, config: PretrainConfig, *, batch_size: int, device: str, quick: bool = False
) -> TrainingSpeed:
    """Train for a few epochs of one batch, as `pretrain` does, and forget the model.

    `quick` measures no more than it must.
    """
    source = RandomClips(dim, config, min(batch_size, MAX_BATCH))
    config = replace(config, batch_size=len(source), epochs=MIN_EPOCHS, validate_every=0)
    step_seconds: list[float] = []
    epoch_seconds: list[float] = []
    with torch.random.fork_rng():
        run = PretrainingRun(
            source,
            config,
            Path(),
            ModelCard(dim=dim, model=config.model),
            processes=ProcessGroup(0, 1, find_device(device)),
        )
        min_seconds = 0.0 if quick else MEASURED_SECONDS
        while len(epoch_seconds) < MIN_EPOCHS or sum(epoch_seconds) < min_seconds:
            started_at = time.perf_counter()
            step_seconds.append(run._epoch()["seconds"])
            epoch_seconds.append(time.perf_counter() - started_at)
    step = statistics.median(step_seconds[1:])
    epoch = statistics.median(epoch_seconds[1:]) - step
    return TrainingSpeed(video=step / len(source), epoch=max(epoch, 0.0))


class RandomClips(BatchSource):
    """Random features of some videos, with as many clips as two sets need."""

    def __init__(self, dim: int, config: PretrainConfig, num_videos: int) -> None:
        self.dim, self.max_clips = dim, 2 * config.clips_per_set
        generator = torch.Generator().manual_seed(0)
        shape = (num_videos, self.max_clips)
        self.features = torch.randn((*shape, dim), generator=generator)
        self.boxes = torch.rand((*shape, config.model.box_dim), generator=generator)

    def __len__(self) -> int:
        return len(self.features)

    def read_sets(
        self, plan: Iterator[BatchPlan], epoch: int  # noqa: ARG002 (all epochs have the same clips)
    ) -> Iterator[tuple[int, SetPair]]:  # fmt: skip
        """The size of each batch of a plan, and its sets."""
        for size, videos, sets in plan:
            index = (videos[None, :, None], sets.clip_index)
            yield size, SetPair(self.features[index], self.boxes[index], sets.masked, sets.valid)


def random_pair(dim: int, config: PretrainConfig, batch_size: int) -> SetPair:
    """Two sets of random features for each video of a batch."""
    generator = torch.Generator().manual_seed(0)
    shape = (2, batch_size, config.clips_per_set)
    return SetPair(
        torch.randn((*shape, dim), generator=generator),
        torch.rand((*shape, config.model.box_dim), generator=generator),
        draw_mask(batch_size, config.clips_per_set, config.mask_ratio, generator),
    )
