"""How fast pre-training is here, measured on random features before there are any of videos."""

from __future__ import annotations

import time
from typing import Any

import torch

from clipset.devices import find_device
from clipset.sets.sampling import SetPair, draw_mask
from clipset.training.checkpoint import ScaleModel
from clipset.training.config import PretrainConfig
from clipset.training.data import tensors_of
from clipset.training.optim import Optimization, decay_groups

MAX_VIDEOS = 256  # in a measured step
NUM_STEPS = 3  # the first one is slower


def measure_training(dim: int, config: PretrainConfig, *, num_videos: int, device: str) -> float:
    """Seconds of pre-training for one video: two sets, forward and backward."""
    batch_size = min(config.batch_size, num_videos, MAX_VIDEOS)
    torch_device = find_device(device)
    pair = random_pair(dim, config, batch_size)
    seconds = []
    with torch.random.fork_rng():
        model = ScaleModel(dim, config.model).to(torch_device).train()
        groups = decay_groups(model, config.weight_decay)
        optimization = Optimization(model, groups, learning_rate=0.0, num_steps=NUM_STEPS)
        for _ in range(NUM_STEPS):
            started_at = time.perf_counter()
            inputs: dict[str, Any] = tensors_of(pair, torch_device)
            total = model.losses(**inputs).total
            optimization.step(total)
            total.item()  # wait for the device
            seconds.append(time.perf_counter() - started_at)
    return min(seconds) / batch_size


def random_pair(dim: int, config: PretrainConfig, batch_size: int) -> SetPair:
    """Two sets of random features for each video of a batch."""
    generator = torch.Generator().manual_seed(0)
    shape = (2, batch_size, config.clips_per_set)
    return SetPair(
        torch.randn((*shape, dim), generator=generator),
        torch.rand((*shape, config.model.box_dim), generator=generator),
        draw_mask(batch_size, config.clips_per_set, config.mask_ratio, generator),
    )
