"""Heads on frozen features: a whole grid of heads is trained together on the same batches.

The weights of all heads of one kind are stacked along a leading axis, so that a step of the grid is
one batched computation (`HeadStack`). Linear, MLP and attentive probes define their stacks.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Generator, Tensor, nn, optim

from clipset.model.encoder import SetEncoder
from clipset.probes.base import (
    ClassifierShape,
    ClipInputs,
    Selection,
    Tensors,
    TrainedProbe,
    average_clips,
    own_tensors,
    register_tensors,
)
from clipset.probes.config import EvaluateConfig
from clipset.probes.grid import HeadSettings, head_grid, middle_head
from clipset.probes.head_inputs import HeadInputs, divide_into_sets
from clipset.probes.search import (
    Score,
    Trainings,
    ValidationSplit,
    count_epochs,
    mean_score,
    video_scores,
)
from clipset.probes.task import LabelledVideos
from clipset.representation import VectorPart
from clipset.sets.batch import ClipBatch
from clipset.sets.sampling import draw_batches
from clipset.sets.stored_clips import StoredClips, equal_chunks
from clipset.training.data import prefetch
from clipset.training.optim import WARMUP_FRACTION, OptimizerName, cosine_schedule

Labels = Int[Tensor, " B"] | Float[Tensor, " B"]
MIN_STEPS = 1000  # heads are cheap: `max_steps` below this does not shorten their training
SCORE_CHUNK = 64  # videos predicted at once: few enough for a processor's cache
EPSILON = 1e-6  # of AdamW: smaller gradients are rounding errors, and must not move a weight
SMALLEST_PROBABILITY = 1e-12  # smaller ones move no weight, and denormal numbers are slow


class HeadStack(ABC):
    """E heads on the same inputs. Weights whose names begin with w are decayed."""

    def __init__(self, num_heads: int, in_dim: int, num_outputs: int, generator: Generator) -> None:
        initial = self.init_weights(in_dim, num_outputs, generator)
        self.weights: Tensors = {
            name: value.expand(num_heads, *value.shape).clone() for name, value in initial.items()
        }

    @abstractmethod
    def init_weights(self, in_dim: int, num_outputs: int, generator: Generator) -> Tensors:
        """The initial weights of one head; all heads start with the same."""

    @abstractmethod
    def logits(
        self, inputs: Float[Tensor, "B K R"], generator: Generator | None
    ) -> Float[Tensor, "E B L C"]:
        """The logits of each head, with dropout if there is a generator."""

    def gradients(
        self, inputs: Float[Tensor, "B K R"], labels: Labels, generator: Generator
    ) -> Tensors:
        """The gradients of every head's own loss."""
        for value in self.weights.values():
            value.requires_grad_()
        logits = self.logits(inputs, generator)  # (E, B, L, C)
        expanded = labels[None, :, None].expand(logits.shape[:-1])
        slope = loss_gradient(logits.detach(), expanded, 1.0 / logits.shape[1:3].numel())
        gradients = torch.autograd.grad(logits, list(self.weights.values()), slope)
        for value in self.weights.values():
            value.requires_grad_(False)
        return dict(zip(self.weights, gradients, strict=True))

    def predict(
        self, inputs: Float[Tensor, "B K R"], is_regression: bool
    ) -> Float[Tensor, "E B C"]:
        """The predictions of each head for whole videos."""
        return average_clips(self.logits(inputs, None), is_regression)

    def training_bytes(self, num_inputs: int) -> int:
        """Memory of a step on some clips, roughly: weights, gradients, moments, activations."""
        num_weights = sum(value.numel() for value in self.weights.values())
        widths = sum(v.shape[:2].numel() for v in self.weights.values() if v.ndim == 3)
        return 4 * 4 * (num_weights + num_inputs * widths)

    def keep(self, heads: list[int]) -> None:
        """Drop all but some of the heads."""
        self.weights = {name: value[heads].clone() for name, value in self.weights.items()}


MakeStack = Callable[[int, int, int, Generator], HeadStack]


def stacked_linear(
    inputs: Float[Tensor, "B K R"], weight: Float[Tensor, "E O R"], bias: Float[Tensor, "E O"]
) -> Float[Tensor, "B K E O"]:
    """A linear layer of every head on the same inputs, as one matrix product."""
    outputs = torch.addmm(bias.flatten(), inputs.flatten(0, 1), weight.flatten(0, 1).T)
    return outputs.view(*inputs.shape[:2], *bias.shape)


def uniform_init(shape: tuple[int, ...], fan_in: int, generator: Generator) -> Tensor:
    """Initial weights as those of `torch.nn.Linear`."""
    return torch.rand(shape, generator=generator).mul_(2.0).sub_(1.0).div_(math.sqrt(fan_in))


def loss_gradient(
    logits: Float[Tensor, "*A C"], labels: Tensor, scale: float
) -> Float[Tensor, "*A C"]:
    """The gradient of the scaled cross-entropy (or squared error) with respect to the logits."""
    if labels.is_floating_point():
        return (logits - labels[..., None]).mul_(2.0 * scale)
    gradient = torch.threshold_(logits.softmax(dim=-1), SMALLEST_PROBABILITY, 0.0)
    gradient.view(-1, gradient.shape[-1])[torch.arange(labels.numel()), labels.flatten()] -= 1.0
    return gradient.mul_(scale)


class _HeadGroup:
    """Heads of the grid with the same inputs: the same batches, with or without batch norm."""

    def __init__(
        self, make_stack: MakeStack, inputs: HeadInputs, num_outputs: int, seed: int,
        settings: dict[int, HeadSettings],
    ) -> None:  # fmt: skip
        self.settings, self.generator = settings, Generator().manual_seed(seed)
        first = next(iter(settings.values()))
        self.batch_size, self.batch_norm = first.batch_size, first.batch_norm
        self.stack = make_stack(len(settings), inputs.dim, num_outputs, self.generator)
        self._make_optimizers([])

    def step(self, inputs: Float[Tensor, "B K R"], labels: Labels, lr_scale: float) -> None:
        """One step of all heads, each at its own learning rate."""
        gradients = self.stack.gradients(inputs, labels, self.generator)
        for head, parameters in enumerate(self.parameters):
            for name, parameter in parameters.items():
                parameter.grad = gradients[name][head]
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * lr_scale
            optimizer.step()
            optimizer.zero_grad()  # frees the gradients before the next step

    def keep(self, candidates: set[int]) -> None:
        """Drop all but some heads of the grid."""
        heads = [head for head, number in enumerate(self.settings) if number in candidates]
        states = [self._optimizer_state(self.parameters[head]) for head in heads]
        self.settings = {n: s for n, s in self.settings.items() if n in candidates}
        if heads:
            self.stack.keep(heads)
            self._make_optimizers(states)

    def _optimizer_state(self, parameters: Tensors) -> dict[str, dict[str, Any]]:
        states = {p: state for o in self.optimizers for p, state in o.state.items()}
        return {name: states.get(parameter, {}) for name, parameter in parameters.items()}

    def _make_optimizers(self, states: list[dict[str, dict[str, Any]]]) -> None:
        """An optimizer for each kind; its parameters are views of the stack, one for each head."""
        self.parameters = [
            {name: value[head].detach() for name, value in self.stack.weights.items()}
            for head in range(len(self.settings))
        ]
        self.optimizers = _make_optimizers(self.parameters, list(self.settings.values()))
        owner = {p: o for o in self.optimizers for g in o.param_groups for p in g["params"]}
        for parameters, state in zip(self.parameters, states, strict=False):
            for name, parameter in parameters.items():
                owner[parameter].state[parameter] = state[name]


def _make_optimizers(
    parameters: list[Tensors], settings: list[HeadSettings]
) -> list[optim.Optimizer]:
    shared: dict[tuple[OptimizerName, float, float], list[Tensor]] = {}
    for own, point in zip(parameters, settings, strict=True):
        for name, parameter in own.items():
            decay = point.weight_decay if name.startswith("w") else 0.0
            key = (point.optimizer, point.learning_rate, decay)
            shared.setdefault(key, []).append(parameter)
    groups: dict[OptimizerName, list[dict[str, object]]] = {}
    for (kind, learning_rate, decay), params in shared.items():
        group = {"params": params, "weight_decay": decay, "peak": learning_rate}
        groups.setdefault(kind, []).append(group)
    optimizers: list[optim.Optimizer] = []
    if "adamw" in groups:
        optimizers.append(optim.AdamW(groups["adamw"], lr=1.0, eps=EPSILON, fused=True))
    if "sgd" in groups:
        optimizers.append(optim.SGD(groups["sgd"], lr=1.0, momentum=0.9, nesterov=True))
    return optimizers


class HeadGrid(Trainings):
    """Heads in training, by the numbers of their candidates; `predict` gives their predictions."""

    def __init__(
        self, make_stack: MakeStack, inputs: HeadInputs, settings: dict[int, HeadSettings],
        *, videos: Int[Tensor, " B"], num_outputs: int, num_epochs: int, seed: int,
        validation: ValidationInputs | None = None,
    ) -> None:  # fmt: skip
        self.inputs, self.videos, self.num_epochs, self.num_done = inputs, videos, num_epochs, 0
        self.validation = validation
        self.mean, self.std = inputs.statistics(videos)
        self.generators = {p.batch_size: Generator().manual_seed(seed) for p in settings.values()}
        groups: dict[tuple[int, bool], dict[int, HeadSettings]] = {}
        for number, point in settings.items():
            groups.setdefault((point.batch_size, point.batch_norm), {})[number] = point
        self.groups = [
            _HeadGroup(make_stack, inputs, num_outputs, seed, points) for points in groups.values()
        ]

    def run_epoch(self) -> None:
        """Train every head on every video once; those of one batch size see the same batches."""
        for batch_size, generator in self.generators.items():
            groups = [group for group in self.groups if group.batch_size == batch_size]
            if groups:
                self._run_batches(groups, batch_size, generator)
        self.num_done += 1

    def _run_batches(self, groups: list[_HeadGroup], batch_size: int, generator: Generator) -> None:
        batches = [self.videos[b] for b in draw_batches(len(self.videos), batch_size, generator)]
        num_steps = self.num_epochs * len(batches)
        has_norm = any(group.batch_norm for group in groups)
        drawn: Iterator[Tensor] = (self.inputs.draw(videos, generator) for videos in batches)
        if isinstance(self.inputs.clips, StoredClips):
            drawn = prefetch(drawn)
        pairs = zip(batches, drawn, strict=True)
        for step, (videos, inputs) in enumerate(pairs, start=self.num_done * len(batches)):
            labels = self.inputs.labels[videos]
            lr_scale = cosine_schedule(step, num_steps, peak=1.0, warmup_fraction=WARMUP_FRACTION)
            normed = self._normalise(inputs) if has_norm else inputs
            for group in groups:
                group.step(normed if group.batch_norm else inputs, labels, lr_scale)

    def keep(self, candidates: set[int]) -> None:
        """Drop all but some heads of the grid."""
        for group in self.groups:
            group.keep(candidates)
        self.groups = [group for group in self.groups if group.settings]

    @torch.inference_mode()
    def predict(self, inputs: Float[Tensor, "B W R"]) -> dict[int, Float[Tensor, "B C"]]:
        """The predictions of every head for videos, from the inputs of their clips."""
        is_regression = self.inputs.labels.is_floating_point()
        normed = (inputs - self.mean) / self.std
        outputs: dict[int, Tensor] = {}
        for group in self.groups:
            group_inputs = normed if group.batch_norm else inputs
            stacked = group.stack.predict(group_inputs, is_regression)  # (E, B, C)
            outputs |= zip(group.settings, stacked, strict=True)
        return outputs

    def score(self) -> dict[int, Score]:
        """The score of every head on the validation videos."""
        assert self.validation is not None  # only called in a search
        index: list[Tensor] = []
        scores: dict[int, list[Tensor]] = {}
        for videos, inputs in self.validation:
            index.append(videos)
            labels = self.validation.labels[videos]
            for number, outputs in self.predict(inputs).items():
                scores.setdefault(number, []).append(video_scores(outputs, labels))
        order = torch.cat(index).argsort()
        return {
            number: mean_score(torch.cat(chunks, dim=1)[:, order])
            for number, chunks in scores.items()
        }

    def only_head(self) -> Tensors:
        """The weights of the only head, with the normalisation before it."""
        group = self.groups[0]
        identity = torch.zeros_like(self.mean), torch.ones_like(self.std)
        mean, std = (self.mean, self.std) if group.batch_norm else identity
        weights = {name: value[0].clone() for name, value in group.stack.weights.items()}
        return {"mean": mean, "std": std, **weights}

    def _normalise(self, inputs: Float[Tensor, "B K R"]) -> Float[Tensor, "B K R"]:
        """Batch norm without affine; a single input is normalised by all training videos."""
        if inputs.shape[:2].numel() < 2:
            return (inputs - self.mean) / self.std
        return F.batch_norm(inputs.flatten(0, 1), None, None, training=True).view_as(inputs)


class ValidationInputs:
    """The inputs of the validation videos, chunk by chunk; computed once if they are in memory."""

    def __init__(self, videos: LabelledVideos, clip_inputs: ClipInputs) -> None:
        self.clips, self.labels, self.clip_inputs = videos.regular, videos.labels, clip_inputs
        in_memory = isinstance(self.clips, ClipBatch)
        self.chunks = list(self._read()) if in_memory else None

    def __iter__(self) -> Iterator[tuple[Int[Tensor, " B"], Float[Tensor, "B W R"]]]:
        return self._read() if self.chunks is None else iter(self.chunks)

    def _read(self) -> Iterator[tuple[Int[Tensor, " B"], Float[Tensor, "B W R"]]]:
        for videos, clips in equal_chunks(self.clips, SCORE_CHUNK):
            yield videos, self.clip_inputs(clips)


class HeadClassifier(nn.Module):
    """One trained head behind the normalisation of its training videos."""

    def __init__(self, tensors: Tensors, inputs: ClipInputs, make_stack: MakeStack) -> None:
        super().__init__()
        register_tensors(self, tensors)
        self.inputs = inputs
        self.names = [name for name in tensors if name not in ("mean", "std")]
        self.stack = make_stack(1, len(tensors["mean"]), len(tensors["bias"]), Generator())

    def forward(self, clips: ClipBatch) -> Float[Tensor, "B L C"]:
        inputs = (self.inputs(clips) - self.get_buffer("mean")) / self.get_buffer("std")
        self.stack.weights = {name: self.get_buffer(name)[None] for name in self.names}
        return self.stack.logits(inputs, None)[0]


class HeadProbe(TrainedProbe):
    """A head on frozen features: the grid is trained at once, then the best point on all videos."""

    token: ClassVar[VectorPart] = "set"
    """what the set encoder adds to a clip's feature"""
    with_boxes: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def stack_factory(cls, config: EvaluateConfig) -> MakeStack:
        """Makes the stacked heads."""

    @classmethod
    def clip_inputs(cls, encoder: SetEncoder | None) -> ClipInputs:
        """The vectors that this kind of head sees of clips."""
        return ClipInputs(encoder, token=cls.token, with_boxes=cls.with_boxes)

    @cached_property
    def inputs(self) -> HeadInputs:
        """The inputs of all training videos."""
        train, generator = self.setup.task.train, Generator().manual_seed(self.setup.seed)
        sets = divide_into_sets(train.random, self.setup.config.training.num_clips, generator)
        return HeadInputs(train.random, train.labels, sets, self.clip_inputs(self.encoder))

    @property
    def num_epochs(self) -> int:
        config = self.setup.config.training
        return count_epochs(len(self.setup.task.train), config, max(config.max_steps, MIN_STEPS))

    def search_space(self) -> tuple[HeadSettings, ...]:
        return head_grid(self.setup.config.training)

    def default_settings(self) -> HeadSettings:
        return middle_head(self.setup.config.training)

    def training_bytes(self, settings: HeadSettings) -> int:
        return self._one_head.training_bytes(settings.batch_size * self.inputs.sets.shape[2])

    @cached_property
    def _one_head(self) -> HeadStack:
        make_stack = self.stack_factory(self.setup.config)
        return make_stack(1, self.inputs.dim, self.setup.task.num_outputs, Generator())

    def start(self, candidates: dict[int, HeadSettings], split: ValidationSplit) -> HeadGrid:
        task = self.setup.task
        videos = split.videos(task.train, task.validation)
        validation = ValidationInputs(videos, self.clip_inputs(self.encoder))
        return self._make_grid(candidates, split.train, self.setup.seed, validation)

    def fit(self, selection: Selection, videos: Int[Tensor, " B"], seed: int) -> HeadClassifier:
        grid = self._make_grid({0: selection.settings}, videos, seed)
        for _ in range(selection.epochs or self.num_epochs):
            grid.run_epoch()
        make_stack = self.stack_factory(self.setup.config)
        return HeadClassifier(grid.only_head(), self.clip_inputs(self.encoder), make_stack).eval()

    @classmethod
    def rebuild(cls, state: Tensors, shape: ClassifierShape) -> HeadClassifier:
        make_stack = cls.stack_factory(shape.config)
        return HeadClassifier(own_tensors(state), cls.clip_inputs(shape.encoder), make_stack)

    def _make_grid(
        self,
        settings: dict[int, HeadSettings],
        videos: Int[Tensor, " B"],
        seed: int,
        validation: ValidationInputs | None = None,
    ) -> HeadGrid:
        return HeadGrid(
            self.stack_factory(self.setup.config), self.inputs, settings, videos=videos,
            num_outputs=self.setup.task.num_outputs, num_epochs=self.num_epochs, seed=seed,
            validation=validation,
        )  # fmt: skip
