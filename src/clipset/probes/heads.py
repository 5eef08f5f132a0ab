"""Heads on frozen features: a whole grid of heads is trained together on the same batches.

The weights of all heads of one kind are stacked along a leading axis, so that a step of the grid is
one batched computation (`HeadStack`). Linear, MLP and attentive probes define their stacks.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Generator, Tensor, optim

from clipset.model.encoder import SetEncoder
from clipset.probes.base import (
    Selection,
    TensorClassifier,
    Tensors,
    TrainedProbe,
    average_clips,
    own_tensors,
)
from clipset.probes.config import EvaluateConfig, ProbeTraining
from clipset.probes.inputs import ClipInputs, HeadInputs, ValidationInputs, divide_into_sets
from clipset.probes.search import (
    Axes,
    Score,
    Trainings,
    ValidationSplit,
    mean_score,
    video_scores,
)
from clipset.probes.task import Labels
from clipset.representation import VectorPart
from clipset.sets.batch import ClipBatch
from clipset.sets.sampling import draw_batches
from clipset.sets.stored_clips import StoredClips
from clipset.training.data import prefetch
from clipset.training.optim import WARMUP_FRACTION, OptimizerName, cosine_schedule

MIN_STEPS = 1000  # heads are cheap: `max_steps` below this does not shorten their training
EPSILON = 1e-6  # of AdamW: smaller gradients are rounding errors, and must not move a weight
NORM_EPSILON = 1e-5  # of batch norm: added to the variance
SMALLEST_PROBABILITY = 1e-12  # smaller ones move no weight, and denormal numbers are slow


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSettings:
    """A point of the grid of heads."""

    learning_rate: float
    weight_decay: float
    optimizer: OptimizerName = "adamw"
    batch_norm: bool = True
    batch_size: int = 64


def head_axes(config: ProbeTraining) -> Axes:
    """The grid of heads."""
    return {
        "batch_size": config.batch_sizes,
        "batch_norm": config.batch_norm,
        "optimizer": config.optimizers,
        "learning_rate": config.head_learning_rates,
        "weight_decay": config.head_weight_decays,
    }


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
        self, clip_vectors: Float[Tensor, "B K R"], generator: Generator | None
    ) -> Float[Tensor, "E B L C"]:
        """The logits of each head, with dropout if there is a generator."""

    def gradients(
        self, clip_vectors: Float[Tensor, "B K R"], labels: Labels, generator: Generator
    ) -> Tensors:
        """The gradients of every head's own loss."""
        for value in self.weights.values():
            value.requires_grad_()
        logits = self.logits(clip_vectors, generator)  # (E, B, L, C)
        clip_labels = labels[None, :, None].expand(logits.shape[:-1])
        slope = loss_gradient(logits.detach(), clip_labels, 1.0 / logits.shape[1:3].numel())
        gradients = torch.autograd.grad(logits, list(self.weights.values()), slope)
        for value in self.weights.values():
            value.requires_grad_(False)
        return dict(zip(self.weights, gradients, strict=True))

    def predict(
        self, clip_vectors: Float[Tensor, "B K R"], is_regression: bool
    ) -> Float[Tensor, "E B C"]:
        """The predictions of each head for whole videos."""
        return average_clips(self.logits(clip_vectors, None), is_regression)

    def training_bytes(self, num_inputs: int) -> int:
        """Memory of a step on some clips, roughly: weights, gradients, moments, activations."""
        num_weights = sum(value.numel() for value in self.weights.values())
        layer_widths = sum(v.shape[:2].numel() for v in self.weights.values() if v.ndim == 3)
        return 4 * 4 * (num_weights + num_inputs * layer_widths)

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
        first_settings = next(iter(settings.values()))
        self.batch_size, self.batch_norm = first_settings.batch_size, first_settings.batch_norm
        self.stack = make_stack(len(settings), inputs.dim, num_outputs, self.generator)
        self._make_optimizers()

    def step(self, clip_vectors: Float[Tensor, "B K R"], labels: Labels, lr_scale: float) -> None:
        """One step of all heads, each at its own learning rate."""
        gradients = self.stack.gradients(clip_vectors, labels, self.generator)
        for head, parameters in enumerate(self.parameters):
            for name, parameter in parameters.items():
                parameter.grad = gradients[name][head]
        for optimizer in self.optimizers.values():
            for param_group in optimizer.param_groups:
                param_group["lr"] = param_group["peak"] * lr_scale
            optimizer.step()
            optimizer.zero_grad()  # frees the gradients before the next step

    def keep(self, candidates: set[int]) -> None:
        """Drop all but some heads of the grid."""
        kept_heads = [head for head, number in enumerate(self.settings) if number in candidates]
        self.settings = {n: s for n, s in self.settings.items() if n in candidates}
        if not kept_heads:
            return
        old_parameters, old_optimizers = self.parameters, self.optimizers
        self.stack.keep(kept_heads)
        self._make_optimizers()
        for head, kept_head in enumerate(kept_heads):
            for kind, optimizer in self.optimizers.items():
                old_state = old_optimizers[kind].state
                for name, parameter in self.parameters[head].items():
                    if (old_parameter := old_parameters[kept_head][name]) in old_state:
                        optimizer.state[parameter] = old_state[old_parameter]

    def _make_optimizers(self) -> None:
        """An optimizer of each kind; its parameters are views of the stack, one for each head."""
        self.parameters = [
            {name: value[head].detach() for name, value in self.stack.weights.items()}
            for head in range(len(self.settings))
        ]
        shared: dict[OptimizerName, dict[tuple[float, float], list[Tensor]]] = {}
        for parameters, point in zip(self.parameters, self.settings.values(), strict=True):
            for name, parameter in parameters.items():
                weight_decay = point.weight_decay if name.startswith("w") else 0.0
                group_key = (point.learning_rate, weight_decay)
                shared.setdefault(point.optimizer, {}).setdefault(group_key, []).append(parameter)
        self.optimizers: dict[OptimizerName, optim.Optimizer] = {}
        for kind, by_key in shared.items():
            param_groups = [
                {"params": params, "weight_decay": weight_decay, "peak": learning_rate}
                for (learning_rate, weight_decay), params in by_key.items()
            ]
            if kind == "adamw":
                self.optimizers[kind] = optim.AdamW(param_groups, lr=1.0, eps=EPSILON, fused=True)
            else:
                self.optimizers[kind] = optim.SGD(param_groups, lr=1.0, momentum=0.9, nesterov=True)


class HeadGrid(Trainings):
    """Heads in training, by the numbers of their candidates; `predict` gives their predictions."""

    def __init__(
        self, make_stack: MakeStack, inputs: HeadInputs, settings: dict[int, HeadSettings],
        *, video_index: Int[Tensor, " B"], num_outputs: int, num_epochs: int, seed: int,
        validation: ValidationInputs | None = None,
    ) -> None:  # fmt: skip
        self.inputs, self.video_index, self.validation = inputs, video_index, validation
        self.num_epochs, self.num_done = num_epochs, 0
        self.mean, std = inputs.statistics(video_index)
        self.std = (std.square() + NORM_EPSILON).sqrt()  # as batch norm divides in training
        self.generators = {p.batch_size: Generator().manual_seed(seed) for p in settings.values()}
        groups: dict[tuple[int, bool], dict[int, HeadSettings]] = {}
        for candidate, point in settings.items():
            groups.setdefault((point.batch_size, point.batch_norm), {})[candidate] = point
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
        batch_order = draw_batches(len(self.video_index), batch_size, generator)
        batches = [self.video_index[batch] for batch in batch_order]
        num_steps = self.num_epochs * len(batches)
        has_norm = any(group.batch_norm for group in groups)
        drawn_vectors: Iterator[Tensor] = (self.inputs.draw(batch, generator) for batch in batches)
        if isinstance(self.inputs.clips, StoredClips):
            drawn_vectors = prefetch(drawn_vectors)
        pairs = zip(batches, drawn_vectors, strict=True)
        for step, (batch, clip_vectors) in enumerate(pairs, start=self.num_done * len(batches)):
            labels = self.inputs.labels[batch]
            lr_scale = cosine_schedule(step, num_steps, peak=1.0, warmup_fraction=WARMUP_FRACTION)
            normed_vectors = self._normalise(clip_vectors) if has_norm else clip_vectors
            for group in groups:
                group.step(normed_vectors if group.batch_norm else clip_vectors, labels, lr_scale)

    def keep(self, candidates: set[int]) -> None:
        """Drop all but some heads of the grid."""
        for group in self.groups:
            group.keep(candidates)
        self.groups = [group for group in self.groups if group.settings]

    @torch.inference_mode()
    def predict(self, clip_vectors: Float[Tensor, "B W R"]) -> dict[int, Float[Tensor, "B C"]]:
        """The predictions of every head for videos, from the inputs of their clips."""
        is_regression = self.inputs.labels.is_floating_point()
        normed_vectors = (clip_vectors - self.mean) / self.std
        outputs: dict[int, Tensor] = {}
        for group in self.groups:
            group_inputs = normed_vectors if group.batch_norm else clip_vectors
            stacked_outputs = group.stack.predict(group_inputs, is_regression)  # (E, B, C)
            outputs |= zip(group.settings, stacked_outputs, strict=True)
        return outputs

    def score(self) -> dict[int, Score]:
        """The score of every head on the validation videos."""
        assert self.validation is not None  # only called in a search
        index_chunks: list[Tensor] = []
        scores: dict[int, list[Tensor]] = {}
        for video_index, clip_vectors in self.validation:
            index_chunks.append(video_index)
            labels = self.validation.labels[video_index]
            for candidate, outputs in self.predict(clip_vectors).items():
                scores.setdefault(candidate, []).append(video_scores(outputs, labels))
        video_order = torch.cat(index_chunks).argsort()
        return {
            candidate: mean_score(torch.cat(score_chunks, dim=1)[:, video_order])
            for candidate, score_chunks in scores.items()
        }

    def only_head(self) -> Tensors:
        """The weights of the only head, with the normalisation before it."""
        group = self.groups[0]
        identity = torch.zeros_like(self.mean), torch.ones_like(self.std)
        mean, std = (self.mean, self.std) if group.batch_norm else identity
        head_weights = {name: value[0].clone() for name, value in group.stack.weights.items()}
        return {"mean": mean, "std": std, **head_weights}

    def _normalise(self, inputs: Float[Tensor, "B K R"]) -> Float[Tensor, "B K R"]:
        """Batch norm without affine; a single input is normalised by all training videos."""
        if inputs.shape[:2].numel() < 2:
            return (inputs - self.mean) / self.std
        rows = inputs.flatten(0, 1)
        return F.batch_norm(rows, None, None, training=True, eps=NORM_EPSILON).view_as(inputs)


class HeadClassifier(TensorClassifier):
    """One trained head behind the normalisation of its training videos."""

    def __init__(self, tensors: Tensors, inputs: ClipInputs, make_stack: MakeStack) -> None:
        super().__init__(tensors, inputs)
        self.weight_names = [name for name in tensors if name not in ("mean", "std")]
        self.stack = make_stack(1, len(tensors["mean"]), len(tensors["bias"]), Generator())

    def forward(self, clips: ClipBatch) -> Float[Tensor, "B L C"]:
        clip_vectors = (self.inputs(clips) - self.get_buffer("mean")) / self.get_buffer("std")
        self.stack.weights = {name: self.get_buffer(name)[None] for name in self.weight_names}
        return self.stack.logits(clip_vectors, None)[0]


class HeadProbe(TrainedProbe):
    """A head on frozen features: the grid is trained at once, then the best point on all videos."""

    settings_type = HeadSettings
    min_steps = MIN_STEPS
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
        clip_sets = divide_into_sets(train.random, self.setup.config.training.num_clips, generator)
        return HeadInputs(train.random, train.labels, clip_sets, self.clip_inputs(self.encoder))

    def axes(self) -> Axes:
        return head_axes(self.setup.config.training)

    def training_bytes(self, settings: HeadSettings) -> int:
        return self._one_head.training_bytes(settings.batch_size * self.inputs.sets.shape[2])

    @cached_property
    def _one_head(self) -> HeadStack:
        make_stack = self.stack_factory(self.setup.config)
        return make_stack(1, self.inputs.dim, self.setup.task.num_outputs, Generator())

    def start(self, candidates: dict[int, HeadSettings], split: ValidationSplit) -> HeadGrid:
        assert split.validation is not None  # only called in a search
        validation = ValidationInputs(split.validation, self.clip_inputs(self.encoder))
        return self._make_grid(
            candidates, split.train, self.num_epochs, self.setup.seed, validation
        )

    def fit(
        self, selection: Selection, video_index: Int[Tensor, " B"], seed: int
    ) -> HeadClassifier:
        num_epochs = selection.epochs or self.num_epochs
        grid = self._make_grid({0: selection.settings}, video_index, num_epochs, seed)
        for _ in range(num_epochs):
            grid.run_epoch()
        make_stack = self.stack_factory(self.setup.config)
        return HeadClassifier(grid.only_head(), self.clip_inputs(self.encoder), make_stack).eval()

    @classmethod
    def rebuild(
        cls, state: Tensors, config: EvaluateConfig, num_outputs: int, encoder: SetEncoder | None  # noqa: ARG003
    ) -> HeadClassifier:  # fmt: skip
        make_stack = cls.stack_factory(config)
        return HeadClassifier(own_tensors(state), cls.clip_inputs(encoder), make_stack)

    def _make_grid(
        self, settings: dict[int, HeadSettings], video_index: Int[Tensor, " B"], num_epochs: int,
        seed: int, validation: ValidationInputs | None = None,
    ) -> HeadGrid:  # fmt: skip
        return HeadGrid(
            self.stack_factory(self.setup.config), self.inputs, settings, video_index=video_index,
            num_outputs=self.setup.task.num_outputs, num_epochs=num_epochs, seed=seed,
            validation=validation,
        )  # fmt: skip
