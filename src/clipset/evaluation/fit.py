"""Training one probe, and choosing how by videos that are set aside for that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn, optim

from clipset.evaluation.config import ProbeTraining
from clipset.evaluation.networks import SetProbe
from clipset.evaluation.selection import (
    HALVINGS,
    Parts,
    Score,
    best_of,
    count_epochs,
    divide,
    rungs,
    score,
    survivors,
    validation_split,
)
from clipset.evaluation.stacks import sum_of_losses, to_predictions
from clipset.evaluation.task import LabelledVideos
from clipset.sets.batch import ClipBatch, by_count
from clipset.sets.sampling import draw_batches, draw_subset, mix_means
from clipset.training.joint import JointPretraining
from clipset.training.optim import cosine_schedule, decay_groups

__all__ = ["Choice", "Network", "choose", "fit", "predict", "validation_split"]
Network = Callable[[], nn.Module]  # makes a fresh network; chance comes from torch's seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What was chosen, and on which videos."""

    rate: float
    epochs: int
    selected_on: str
    share: float = 1.0
    tried: int = 1


class NetworkRun:
    """One network in training, epoch by epoch."""

    def __init__(
        self, make: Network, train: LabelledVideos, config: ProbeTraining, *, rate: float,
        share: float = 1.0, epochs: int, seed: int, joint: JointPretraining | None = None,
    ) -> None:  # fmt: skip
        self.train, self.config, self.rate, self.seed = train, config, rate, seed
        torch.manual_seed(seed)
        self.network = make().train()
        groups = rate_groups(self.network, config, share)
        self.joint_loss = None
        if joint is not None and isinstance(self.network, SetProbe):
            self.joint_loss = joint.start(self.network.encoder, seed)
            heads, decay = self.joint_loss.heads, config.weight_decay
            groups.append({"params": heads, "weight_decay": decay, "share": 1.0})
        self.optimiser = optim.AdamW(groups, lr=rate, fused=True)
        self.generator = Generator().manual_seed(seed)
        self.steps = epochs * -(-len(train) // config.batch_size)
        self.step = 0

    def run_epoch(self) -> None:
        """Show every video once."""
        torch.manual_seed(self.seed * 1_000_003 + self.step)  # dropout, whoever else trains between
        self.network.train()
        for videos in draw_batches(len(self.train), self.config.batch_size, self.generator):
            rate = cosine_schedule(self.step, self.steps, peak=self.rate, warmup_fraction=0.05)
            for group in self.optimiser.param_groups:
                group["lr"] = rate * group["share"]
            clips = draw_subset(self.train.random.of(videos), self.config.num_clips, self.generator)
            if self.config.mix_means:
                clips = mix_means(clips, self.generator)
            loss = sum_of_losses(self.network(clips)[None], self.train.wanted[videos])
            if self.joint_loss is not None:
                loss = loss + self.config.joint_weight * self.joint_loss.loss()
            self.optimiser.zero_grad(set_to_none=True)
            loss.backward()
            self.optimiser.step()
            self.step += 1
        self.network.eval()


def rate_groups(network: nn.Module, config: ProbeTraining, share: float) -> list[dict[str, object]]:
    """Parameters with their share of the rate: all of it for the head, less for the encoder."""
    if not isinstance(network, SetProbe) or network.frozen:
        return [group | {"share": 1.0} for group in decay_groups(network, config.weight_decay)]
    encoder = network.encoder
    parts = (encoder.norm, *encoder.blocks, encoder.project, encoder.embed_box)
    groups = [
        group | {"share": part_share}
        for part, part_share in ((network.classify, 1.0), *((part, share) for part in parts))
        for group in decay_groups(part, config.weight_decay)
    ]
    grouped = {id(p) for group in groups for p in group["params"]}
    rest = [p for p in network.parameters() if p.requires_grad and id(p) not in grouped]
    return [*groups, {"params": rest, "weight_decay": 0.0, "share": share}]


def fit(
    make: Network,
    train: LabelledVideos,
    config: ProbeTraining,
    *,
    rate: float,
    epochs: int,
    seed: int,
    share: float = 1.0,
    schedule: int | None = None,
    joint: JointPretraining | None = None,
) -> nn.Module:
    """Train a fresh network for `epochs` of the `schedule` epochs that its rate is planned for."""
    planned = config.epochs if schedule is None else schedule
    run = NetworkRun(
        make, train, config, rate=rate, share=share, epochs=planned, seed=seed, joint=joint
    )
    for _ in range(epochs):
        run.run_epoch()
    return run.network.eval()


@torch.inference_mode()
def predict(network: nn.Module, clips: ClipBatch, *, numbers: bool = False) -> Float[Tensor, "M C"]:
    """The mean over a video's clips of their softmax (or of their numbers)."""
    training = network.training
    network.eval()
    places, found = [], []
    for videos, group in by_count(clips):
        places.append(videos)
        for low in range(0, len(group), 256):
            found.append(to_predictions(network(group.of(slice(low, low + 256))), numbers))
    network.train(training)
    return torch.cat(found)[torch.cat(places).argsort()]


def choose(
    make: Network,
    train: LabelledVideos,
    config: ProbeTraining,
    *,
    rates: tuple[float, ...],
    seed: int,
    shares: tuple[float, ...] = (1.0,),
    parts: Parts | None = None,
    check: LabelledVideos | None = None,
    joint: JointPretraining | None = None,
) -> Choice:
    """Rate, encoder's share of it and number of epochs that do best on videos set aside for that.

    These are `check` if given, else a part of the training videos. Unless a training may stop
    early, all epochs are run; with one rate and one share nothing is left to choose, or to try.
    """
    parts = parts or divide(train, seed, check)
    epochs = count_epochs(len(train), config, config.max_steps)
    points = [(rate, share) for share in shares for rate in rates]
    if len(points) == 1 and not config.early_stopping:
        (rate, share), on = points[0], "nothing: one setting, all epochs"
        return Choice(rate=rate, epochs=epochs, selected_on=on, share=share)
    if not parts.can_choose:
        rate, share = points[len(points) // 2]
        return Choice(rate=rate, epochs=epochs, selected_on=parts.selected_on, share=share)
    learn = train if parts.check is None else train.only(parts.learn)
    if check is None:
        check = learn if parts.check is None else train.only(parts.check)
    curves = _race(make, learn, check, config, points=points, epochs=epochs, seed=seed, joint=joint)
    number, best = best_of(curves, first=1 if config.early_stopping else epochs)
    rate, share = points[number]
    return Choice(
        rate=rate, epochs=best, selected_on=parts.selected_on, share=share, tried=len(points)
    )


def _race(
    make: Network, learn: LabelledVideos, check: LabelledVideos, config: ProbeTraining, *,
    points: list[tuple[float, float]], epochs: int, seed: int, joint: JointPretraining | None,
) -> dict[int, list[Score]]:  # fmt: skip
    """The validation curves of all candidates; the weaker half is dropped now and then."""
    begin = partial(NetworkRun, make, learn, config, epochs=epochs, seed=seed, joint=joint)
    runs = {number: begin(rate=rate, share=share) for number, (rate, share) in enumerate(points)}
    curves: dict[int, list[Score]] = {number: [] for number in runs}
    stops = rungs(epochs, HALVINGS)
    numbers = check.targets is not None
    for epoch in range(1, epochs + 1):
        for number, run in runs.items():
            run.run_epoch()
            found = predict(run.network, check.regular, numbers=numbers)
            curves[number].append(score(found, check.wanted))
        if epoch in stops:
            alive = survivors(curves, runs)
            runs = {number: run for number, run in runs.items() if number in alive}
    return curves
