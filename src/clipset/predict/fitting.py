"""Training one classifier, epoch by epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Generator, nn, optim

from clipset.probes.config import FitConfig
from clipset.probes.problem import Labelled
from clipset.sets.draw import draw_batches, draw_subset
from clipset.training.schedule import decay_groups, learning_rate

MOST_STEPS = 1000  # batches after which a training ends, whatever the epochs; at least one epoch


def count_epochs(videos: int, config: FitConfig) -> int:
    """Epochs of a training: as configured, or fewer where there are many videos."""
    return min(config.epochs, -(-MOST_STEPS // -(-videos // config.batch)))


def train_epochs(
    make: Callable[[], nn.Module],
    train: Labelled,
    config: FitConfig,
    *,
    rate: float,
    epochs: int,
    seed: int,
) -> Iterator[nn.Module]:
    """A fresh network after each of `epochs` epochs; it is the same one, trained further."""
    torch.manual_seed(seed)
    network = make()
    optimiser = optim.AdamW(decay_groups(network, config.weight_decay), lr=rate, fused=True)
    generator = Generator().manual_seed(seed)
    steps = epochs * -(-len(train) // config.batch)
    step = 0
    for _ in range(epochs):
        network.train()
        for videos in draw_batches(len(train), config.batch, generator):
            for group in optimiser.param_groups:
                group["lr"] = learning_rate(step, steps, peak=rate, warmup=0.05)
            clips = draw_subset(train.random.of(videos), config.clips, generator)
            logits = network(clips)  # (B, V, C)
            wanted = train.classes[videos][:, None].expand(logits.shape[:2])
            loss = F.cross_entropy(logits.flatten(0, 1), wanted.flatten())
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            step += 1
        yield network.eval()
