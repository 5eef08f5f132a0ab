"""Training one probe, and choosing how by a validation part of the training videos."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from sklearn.model_selection import GroupShuffleSplit, StratifiedShuffleSplit
from torch import Tensor, nn, optim

from clipset.probes.config import FitConfig
from clipset.probes.problem import Labelled
from clipset.sets.clips import VideoClips, by_count
from clipset.sets.draw import draw_batches, draw_subset
from clipset.training.schedule import decay_groups, learning_rate

Network = Callable[[], nn.Module]  # makes a fresh network; chance comes from torch's seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What was chosen, and on which videos."""

    rate: float
    epochs: int
    selected_on: str


def fit(
    make: Network,
    train: Labelled,
    config: FitConfig,
    *,
    rate: float,
    epochs: int,
    seed: int,
    after_epoch: Callable[[nn.Module], None] | None = None,
) -> nn.Module:
    """Train a fresh network for `epochs` of the `config.epochs` that its schedule is made for."""
    torch.manual_seed(seed)
    network = make().train()
    optimiser = optim.AdamW(decay_groups(network, config.weight_decay), lr=rate, fused=True)
    generator = torch.Generator().manual_seed(seed)
    steps = config.epochs * -(-len(train) // config.batch)
    step = 0
    for _ in range(epochs):
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
        if after_epoch is not None:
            after_epoch(network)
    return network.eval()


@torch.inference_mode()
def predict(network: nn.Module, clips: VideoClips) -> Float[Tensor, "M C"]:
    """The mean over a video's clips of their softmax."""
    training = network.training
    network.eval()
    places, found = [], []
    for videos, group in by_count(clips):
        places.append(videos)
        for low in range(0, len(group), 256):
            part = group.of(slice(low, low + 256))
            found.append(network(part).softmax(dim=-1).mean(dim=1))
    network.train(training)
    return torch.cat(found)[torch.cat(places).argsort()]


def choose(
    make: Network, train: Labelled, config: FitConfig, *, rates: tuple[float, ...], seed: int
) -> Choice:
    """The learning rate and number of epochs that do best on a part of the training videos."""
    parts = validation_split(train, config.validation, seed)
    if parts is None:
        return Choice(
            rate=rates[len(rates) // 2],
            epochs=config.epochs,
            selected_on="nothing: too few training videos to set some aside",
        )
    learn, check = train.only(parts[0]), train.only(parts[1])
    best = (-1.0, float("-inf"), rates[0], config.epochs)
    for rate in rates:
        curve: list[tuple[float, float]] = []

        def note(network: nn.Module, curve: list[tuple[float, float]] = curve) -> None:
            found = predict(network, check.regular)
            right = (found.argmax(dim=1) == check.classes).float().mean().item()
            certain = found[torch.arange(len(check)), check.classes].clamp_min(1e-9).log().mean()
            curve.append((right, certain.item()))

        fit(make, learn, config, rate=rate, epochs=config.epochs, seed=seed, after_epoch=note)
        right, certain, epoch = max((*score, number + 1) for number, score in enumerate(curve))
        best = max(best, (right, certain, rate, epoch))
    kind = "whole groups" if _has_groups(train) else "stratified"
    return Choice(
        rate=best[2],
        epochs=int(best[3]),
        selected_on=f"{len(check)} of {len(train)} training videos ({kind})",
    )


def validation_split(
    train: Labelled, share: float, seed: int
) -> tuple[Int[Tensor, " A"], Int[Tensor, " B"]] | None:
    """Training videos to learn from and to choose by; None if there are too few.

    By whole groups where the catalog has groups, else stratified by class. A class with a single
    video is only learned from.
    """
    if _has_groups(train):
        splitter = GroupShuffleSplit(1, test_size=share, random_state=seed)
        learn, check = next(splitter.split(train.classes, train.classes, list(train.groups)))
        return torch.as_tensor(learn), torch.as_tensor(check)
    counts = torch.bincount(train.classes)
    many = (counts[train.classes] > 1).nonzero().squeeze(1)
    alone = (counts[train.classes] == 1).nonzero().squeeze(1)
    classes = int((counts > 1).sum())
    size = max(round(share * len(many)), classes)
    if classes < 2 or len(many) - size < classes:
        return None
    splitter = StratifiedShuffleSplit(1, test_size=size, random_state=seed)
    learn, check = next(splitter.split(many, train.classes[many]))
    return torch.cat([many[torch.as_tensor(learn)], alone]), many[torch.as_tensor(check)]


def _has_groups(train: Labelled) -> bool:
    return None not in train.groups and len(set(train.groups)) > 1
