"""A whole grid of heads on cached frozen features, trained together on the same batches."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor, optim

from clipset.evaluation.config import ProbeTraining
from clipset.evaluation.present import ValidMask, by_number
from clipset.evaluation.stacks import MakeStack, Stack, Wanted, Weights
from clipset.sets.sampling import draw_batches
from clipset.training.optim import cosine_schedule

Optimiser = Literal["adamw", "sgd"]
HEAD_STEPS = 1000  # batches that a head is trained on, at most (at least one epoch)
WEIGHT_DECAYS = (1e-3, 1e-2, 1e-1, 1.0)  # to search for heads
CHUNK = 64  # videos judged at once: few enough for a processor's cache
EPSILON = 1e-6  # of AdamW: what is smaller in a gradient is rounding, and must not move a weight


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSetting:
    """One point of the grid."""

    learning_rate: float
    weight_decay: float
    optimizer: Optimiser = "adamw"
    batch_norm: bool = True


def list_settings(config: ProbeTraining) -> tuple[HeadSetting, ...]:
    """The whole grid."""
    norms = (True, False) if config.full_head_grid else (True,)
    optimisers: tuple[Optimiser, ...] = ("adamw", "sgd") if config.full_head_grid else ("adamw",)
    points = itertools.product(norms, optimisers, config.head_learning_rates, WEIGHT_DECAYS)
    return tuple(
        HeadSetting(learning_rate=rate, weight_decay=decay, optimizer=optimiser, batch_norm=norm)
        for norm, optimiser, rate, decay in points
    )


@dataclass(frozen=True, slots=True)
class HeadInputs:
    """What heads see of some videos: random clips to learn from, regular ones to be judged by.

    Where a set encoder is used, its tokens are cached for a fixed number of random sets of each
    video (`sets` says which clips form them) and stand behind the clips' features.
    """

    features: Float[Tensor, "N V D"]
    regular: Float[Tensor, "N W R"]
    wanted: Int[Tensor, " N"] | Float[Tensor, " N"]
    sets: Int[Tensor, "N Q K"] | None = None
    tokens: Float[Tensor, "N Q L H"] | None = None
    valid: Bool[Tensor, "N V"] | None = None
    regular_valid: Bool[Tensor, "N W"] | None = None

    @property
    def width(self) -> int:
        """Numbers in a row."""
        return self.regular.shape[-1]

    def draw(
        self, videos: Int[Tensor, " B"], clips: int, generator: Generator
    ) -> Float[Tensor, "B K R"]:
        """A random set of clips of each video."""
        if self.sets is None or self.tokens is None:
            chance = torch.rand(len(videos), self.features.shape[1], generator=generator)
            if self.valid is not None:
                chance = chance.masked_fill(~self.valid[videos], 2.0)
                clips = min(clips, int(self.valid.sum(dim=1).min()))
            return self.features[videos[:, None], chance.argsort(dim=1)[:, :clips]]
        which = torch.randint(self.sets.shape[1], (len(videos),), generator=generator)
        chosen = self.sets[videos, which]  # (B, K)
        tokens = self.tokens[videos, which].expand(-1, chosen.shape[1], -1)
        return torch.cat([self.features[videos[:, None], chosen], tokens], dim=-1)

    def statistics(
        self, videos: Int[Tensor, " B"]
    ) -> tuple[Float[Tensor, " R"], Float[Tensor, " R"]]:
        """Mean and deviation of each channel over all random clips (and sets) of some videos."""
        parts = [moments(self.features, videos, self.valid)]
        if self.tokens is not None:
            parts.append(moments(self.tokens.flatten(1, 2), videos))
        mean, std = (torch.cat(each) for each in zip(*parts, strict=True))
        return mean, torch.where(std > 1e-6, std, torch.ones_like(std))


def moments(
    values: Float[Tensor, "N V D"], videos: Int[Tensor, " B"], valid: ValidMask = None
) -> tuple[Float[Tensor, " D"], Float[Tensor, " D"]]:
    """Mean and deviation of each channel over the clips that are there, in pieces."""
    total = torch.zeros(2, values.shape[-1], dtype=torch.float64)
    shift, count = values[0].mean(dim=0), 0
    for part in videos.split(CHUNK):
        rows = values[part].flatten(0, 1) if valid is None else values[part][valid[part]]
        centred = rows - shift
        total[0] += centred.sum(dim=0)
        total[1] += centred.square_().sum(dim=0)
        count += len(rows)
    mean, square = total / count
    return (mean + shift).float(), (square - mean**2).clamp_min(0.0).sqrt().float()


class _Group:
    """Heads of the grid that see the same rows: with or without batch norm."""

    def __init__(
        self, make: MakeStack, inputs: HeadInputs, outputs: int, seed: int,
        settings: dict[int, HeadSetting],
    ) -> None:  # fmt: skip
        self.settings, self.generator = settings, Generator().manual_seed(seed)
        first = next(iter(settings.values()))
        self.norm = first.batch_norm
        self.stack: Stack = make(len(settings), inputs.width, outputs, self.generator)
        self._arm([])

    def learn(self, rows: Float[Tensor, "B K R"], wanted: Wanted, share: float) -> None:
        """One step of all heads, each at its own rate."""
        found = self.stack.gradients(rows, wanted, self.generator)
        for head, leaves in enumerate(self.leaves):
            for name, leaf in leaves.items():
                leaf.grad = found[name][head]
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = group["peak"] * share
            optimiser.step()

    def keep(self, numbers: set[int]) -> None:
        """Go on with those heads of the grid that are among these."""
        places = [place for place, number in enumerate(self.settings) if number in numbers]
        states = [self._state_of(self.leaves[place]) for place in places]
        self.settings = {n: s for n, s in self.settings.items() if n in numbers}
        if places:
            self.stack.keep(places)
            self._arm(states)

    def _state_of(self, leaves: Weights) -> dict[str, dict[str, Any]]:
        """What the optimisers remember of one head."""
        states = {leaf: state for each in self.optimisers for leaf, state in each.state.items()}
        return {name: states.get(leaf, {}) for name, leaf in leaves.items()}

    def _arm(self, states: list[dict[str, dict[str, Any]]]) -> None:
        """An optimiser for each kind, with each head's share of the stack as its parameters."""
        self.leaves = [
            {name: value[head].detach() for name, value in self.stack.weights.items()}
            for head in range(len(self.settings))
        ]
        self.optimisers = _optimisers(self.leaves, list(self.settings.values()))
        owner = {leaf: o for o in self.optimisers for g in o.param_groups for leaf in g["params"]}
        for leaves, state in zip(self.leaves, states, strict=False):
            for name, leaf in leaves.items():
                owner[leaf].state[leaf] = state[name]


def _optimisers(leaves: list[Weights], settings: list[HeadSetting]) -> list[optim.Optimizer]:
    alike: dict[tuple[Optimiser, float, float], list[Tensor]] = {}
    for each, setting in zip(leaves, settings, strict=True):
        for name, leaf in each.items():
            decay = setting.weight_decay if name.startswith("w") else 0.0
            alike.setdefault((setting.optimizer, setting.learning_rate, decay), []).append(leaf)
    groups: dict[Optimiser, list[dict[str, object]]] = {}
    for (optimiser, rate, decay), chosen in alike.items():
        group = {"params": chosen, "weight_decay": decay, "peak": rate}
        groups.setdefault(optimiser, []).append(group)
    found: list[optim.Optimizer] = []
    if "adamw" in groups:
        found.append(optim.AdamW(groups["adamw"], lr=1.0, eps=EPSILON, fused=True))
    if "sgd" in groups:
        found.append(optim.SGD(groups["sgd"], lr=1.0, momentum=0.9, nesterov=True))
    return found


class HeadGrid:
    """Heads in training; `answer` says what each head of the grid predicts by now."""

    def __init__(
        self, make: MakeStack, inputs: HeadInputs, settings: tuple[HeadSetting, ...],
        config: ProbeTraining, *, videos: Int[Tensor, " B"], outputs: int, epochs: int, seed: int,
    ) -> None:  # fmt: skip
        self.inputs, self.config, self.videos = inputs, config, videos
        self.mean, self.std = inputs.statistics(videos)
        self.generator = Generator().manual_seed(seed)
        self.steps = epochs * -(-len(videos) // config.batch_size)
        self.step = 0
        variants: dict[bool, dict[int, HeadSetting]] = {}
        for number, setting in enumerate(settings):
            variants.setdefault(setting.batch_norm, {})[number] = setting
        self.groups = [_Group(make, inputs, outputs, seed, each) for each in variants.values()]

    def run_epoch(self) -> None:
        """Show every video once to every head."""
        for places in draw_batches(len(self.videos), self.config.batch_size, self.generator):
            videos = self.videos[places]
            rows = self.inputs.draw(videos, self.config.num_clips, self.generator)
            wanted = self.inputs.wanted[videos]
            share = cosine_schedule(self.step, self.steps, peak=1.0, warmup_fraction=0.05)
            normed = self._normed(rows) if any(group.norm for group in self.groups) else rows
            for group in self.groups:
                group.learn(normed if group.norm else rows, wanted, share)
            self.step += 1

    def keep(self, numbers: set[int]) -> None:
        """Go on with some heads of the grid."""
        for group in self.groups:
            group.keep(numbers)
        self.groups = [group for group in self.groups if group.settings]

    @torch.inference_mode()
    def answer(
        self, regular: Float[Tensor, "M W R"], valid: Bool[Tensor, "M W"] | None = None
    ) -> dict[int, Float[Tensor, "M C"]]:
        """The predictions of every head for videos that are given by their regular clips."""
        numbers = self.inputs.wanted.is_floating_point()
        places: list[Tensor] = []
        found: dict[int, list[Tensor]] = {}
        for videos, rows in by_number(regular, valid, CHUNK):
            places.append(videos)
            normed = (rows - self.mean) / self.std
            for group in self.groups:
                said = group.stack.predict(normed if group.norm else rows, numbers)  # (E, B, C)
                for number, each in zip(group.settings, said, strict=True):
                    found.setdefault(number, []).append(each)
        order = torch.cat(places).argsort()
        return {number: torch.cat(parts)[order] for number, parts in found.items()}

    def only_head(self) -> Weights:
        """The weights of the one head that is left, with the norm before it."""
        group = self.groups[0]
        plain = torch.zeros_like(self.mean), torch.ones_like(self.std)
        mean, std = (self.mean, self.std) if group.norm else plain
        weights = {name: value[0].clone() for name, value in group.stack.weights.items()}
        return {"mean": mean, "std": std, **weights}

    def _normed(self, rows: Float[Tensor, "B K R"]) -> Float[Tensor, "B K R"]:
        """Batch norm without affine; a single row is normed by all training videos."""
        if rows.shape[:2].numel() < 2:
            return (rows - self.mean) / self.std
        return F.batch_norm(rows.flatten(0, 1), None, None, training=True).view_as(rows)


def fit_heads(
    make: MakeStack, inputs: HeadInputs, settings: tuple[HeadSetting, ...],
    config: ProbeTraining, *, videos: Int[Tensor, " B"], outputs: int, schedule: int, epochs: int,
    seed: int,
    after_epoch: Callable[[HeadGrid, int], None] | None = None,
) -> HeadGrid:  # fmt: skip
    """Train all heads for `epochs` of the `schedule` epochs that their rates are planned for."""
    grid = HeadGrid(
        make, inputs, settings, config, videos=videos, outputs=outputs, epochs=schedule, seed=seed
    )
    for epoch in range(1, epochs + 1):
        grid.run_epoch()
        if after_epoch is not None:
            after_epoch(grid, epoch)
    return grid
