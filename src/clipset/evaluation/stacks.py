"""Many heads of one kind as stacked weights: one batched computation instead of one for each."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Generator, Tensor

Wanted = Int[Tensor, " B"] | Float[Tensor, " B"]
Weights = dict[str, Tensor]  # a leading axis for the heads; names that begin with w decay
NOTHING = 1e-12  # a smaller probability moves no weight, and denormal numbers are slow to multiply


class Stack:
    """E heads that see the same inputs. A kind of head says how it starts and what it answers."""

    def __init__(self, heads: int, inputs: int, outputs: int, generator: Generator) -> None:
        start = self.start(inputs, outputs, generator)
        self.weights: Weights = {
            name: value.expand(heads, *value.shape).clone() for name, value in start.items()
        }

    def start(self, inputs: int, outputs: int, generator: Generator) -> Weights:
        """The first weights of one head; all heads start alike."""
        raise NotImplementedError

    def answer(
        self, rows: Float[Tensor, "B K R"], generator: Generator | None
    ) -> Float[Tensor, "E B L C"]:
        """What each head says; chance in it is drawn from the generator, none without one."""
        raise NotImplementedError

    def gradients(
        self, rows: Float[Tensor, "B K R"], wanted: Wanted, generator: Generator
    ) -> Weights:
        """The gradients of every head's own loss."""
        for value in self.weights.values():
            value.requires_grad_()
        answers = self.answer(rows, generator)  # (E, B, L, C)
        each = wanted[None, :, None].expand(answers.shape[:-1])
        slope = slopes(answers.detach(), each, 1.0 / answers.shape[1:3].numel())
        found = torch.autograd.grad(answers, list(self.weights.values()), slope)
        for value in self.weights.values():
            value.requires_grad_(False)
        return dict(zip(self.weights, found, strict=True))

    def predict(self, rows: Float[Tensor, "B K R"], numbers: bool) -> Float[Tensor, "E B C"]:
        """What each head says of whole videos."""
        return to_predictions(self.answer(rows, None), numbers)

    def keep(self, heads: list[int]) -> None:
        """Go on with some of the heads."""
        self.weights = {name: value[heads].clone() for name, value in self.weights.items()}


class LinearStack(Stack):
    """One linear layer on each clip."""

    def start(self, inputs: int, outputs: int, generator: Generator) -> Weights:  # noqa: ARG002
        return {"w": torch.zeros(outputs, inputs), "bias": torch.zeros(outputs)}

    def answer(
        self,
        rows: Float[Tensor, "B K R"],
        generator: Generator | None,  # noqa: ARG002
    ) -> Float[Tensor, "E B L C"]:
        return side_by_side(rows, self.weights["w"], self.weights["bias"]).permute(2, 0, 1, 3)

    def gradients(
        self,
        rows: Float[Tensor, "B K R"],
        wanted: Wanted,
        generator: Generator,  # noqa: ARG002
    ) -> Weights:
        """By hand: two matrix products for all heads, and nothing else that is large."""
        weight = self.weights["w"]  # (E, C, R)
        answers = side_by_side(rows, weight, self.weights["bias"])  # (B, K, E, C)
        each = wanted[:, None, None].expand(answers.shape[:-1])
        slope = slopes(answers, each, 1.0 / rows.shape[:2].numel()).flatten(2).flatten(0, 1)
        return {
            "w": (slope.T @ rows.flatten(0, 1)).view_as(weight),
            "bias": slope.sum(dim=0).view_as(self.weights["bias"]),
        }

    def predict(self, rows: Float[Tensor, "B K R"], numbers: bool) -> Float[Tensor, "E B C"]:
        found = side_by_side(rows, self.weights["w"], self.weights["bias"])  # (B, K, E, C)
        return (found if numbers else found.softmax(dim=-1)).mean(dim=1).transpose(0, 1)


class MLPStack(Stack):
    """An MLP on each clip whose output joins the input before the classifier."""

    def __init__(
        self, heads: int, inputs: int, outputs: int, generator: Generator, *, hidden: int
    ) -> None:
        self.hidden, self.dropout = hidden, 0.1
        super().__init__(heads, inputs, outputs, generator)

    def start(self, inputs: int, outputs: int, generator: Generator) -> Weights:
        sizes = (inputs, self.hidden, self.hidden, self.hidden // 4)
        found: Weights = {}
        for number, (wide, out) in enumerate(itertools.pairwise(sizes), start=1):
            found[f"w{number}"] = uniform((out, wide), wide, generator)
            found[f"bias{number}"] = uniform((out,), wide, generator)
        found["w_input"] = torch.zeros(outputs, inputs)
        found["w_output"] = torch.zeros(outputs, sizes[-1])
        found["bias"] = torch.zeros(outputs)
        return found

    def answer(
        self, rows: Float[Tensor, "B K R"], generator: Generator | None
    ) -> Float[Tensor, "E B L C"]:
        weights, flat = self.weights, rows.flatten(0, 1)[None]  # (1, B K, R)
        first = side_by_side(flat, weights["w1"], weights["bias1"])[0]  # (B K, E, hidden)
        inner = self._drop(first.transpose(0, 1).relu(), generator)  # (E, B K, hidden)
        inner = torch.baddbmm(weights["bias2"][:, None], inner, weights["w2"].mT)
        inner = self._drop(inner.relu(), generator)
        inner = torch.baddbmm(weights["bias3"][:, None], inner, weights["w3"].mT)
        direct = side_by_side(flat, weights["w_input"], weights["bias"])[0].transpose(0, 1)
        found = torch.baddbmm(direct, inner, weights["w_output"].mT)  # (E, B K, C)
        return found.view(len(found), *rows.shape[:2], -1)

    def _drop(
        self, inner: Float[Tensor, "E Q H"], generator: Generator | None
    ) -> Float[Tensor, "E Q H"]:
        return inner if generator is None else drop(inner, self.dropout, generator)


class AttentiveStack(Stack):
    """Learned queries look at all clips of a set; what they see is classified once."""

    def __init__(
        self, heads: int, inputs: int, outputs: int, generator: Generator, *, queries: int
    ) -> None:
        self.queries, self.width = queries, 128
        super().__init__(heads, inputs, outputs, generator)

    def start(self, inputs: int, outputs: int, generator: Generator) -> Weights:
        return {
            "w_key": uniform((self.width, inputs), inputs, generator),
            "w_value": uniform((self.width, inputs), inputs, generator),
            "bias_value": torch.zeros(self.width),
            "queries": uniform((self.queries, self.width), 1, generator),
            "w": torch.zeros(outputs, self.queries * self.width),
            "bias": torch.zeros(outputs),
        }

    def answer(
        self,
        rows: Float[Tensor, "B K R"],
        generator: Generator | None,  # noqa: ARG002
    ) -> Float[Tensor, "E B L C"]:
        weights = self.weights
        silent = torch.zeros_like(weights["bias_value"])
        keys = side_by_side(rows, weights["w_key"], silent)  # (B, K, E, W)
        values = side_by_side(rows, weights["w_value"], weights["bias_value"])
        nearness = torch.einsum("bkew,eqw->ebqk", keys, weights["queries"])
        looks = (nearness / math.sqrt(self.width)).softmax(dim=-1)
        seen = torch.einsum("ebqk,bkew->ebqw", looks, values).flatten(2)  # (E, B, Q W)
        found = torch.baddbmm(weights["bias"][:, None], seen, weights["w"].mT)
        return found[:, :, None]


MakeStack = Callable[[int, int, int, Generator], Stack]


def side_by_side(
    rows: Float[Tensor, "B K R"], weight: Float[Tensor, "E O R"], bias: Float[Tensor, "E O"]
) -> Float[Tensor, "B K E O"]:
    """A linear layer of every head on the same rows, as one matrix product."""
    found = torch.addmm(bias.flatten(), rows.flatten(0, 1), weight.flatten(0, 1).T)
    return found.view(*rows.shape[:2], *bias.shape)


def drop(values: Tensor, chance: float, generator: Generator) -> Tensor:
    """Dropout by one mask that all heads share: over all axes but the first."""
    kept = torch.rand(values.shape[1:], generator=generator) >= chance
    return values * (kept / (1.0 - chance))


def uniform(shape: tuple[int, ...], fan_in: int, generator: Generator) -> Tensor:
    """Weights as a linear layer of torch starts with."""
    return torch.rand(shape, generator=generator).mul_(2.0).sub_(1.0).div_(math.sqrt(fan_in))


def slopes(answers: Float[Tensor, "*A C"], wanted: Tensor, share: float) -> Float[Tensor, "*A C"]:
    """How a share of the cross-entropy (or squared error) of each answer grows with it."""
    if wanted.is_floating_point():
        return (answers - wanted[..., None]).mul_(2.0 * share)
    found = torch.threshold_(answers.softmax(dim=-1), NOTHING, 0.0)
    found.view(-1, found.shape[-1])[torch.arange(wanted.numel()), wanted.flatten()] -= 1.0
    return found.mul_(share)


def sum_of_losses(answers: Float[Tensor, "E B L C"], wanted: Wanted) -> Float[Tensor, ""]:
    """Cross-entropy (or squared error) of each head, added up: no head sees another's gradient."""
    heads, batch, length, classes = answers.shape
    if wanted.is_floating_point():
        wrong = (answers[..., 0] - wanted[None, :, None]) ** 2
        return wrong.sum() / (batch * length)
    every = wanted[None, :, None].expand(heads, batch, length).flatten()
    total = F.cross_entropy(answers.reshape(-1, classes), every, reduction="sum")
    return total / (batch * length)


def to_predictions(answers: Float[Tensor, "*E B L C"], numbers: bool) -> Float[Tensor, "*E B C"]:
    """The mean over a video's clips of their softmax, or of their numbers."""
    return (answers if numbers else answers.softmax(dim=-1)).mean(dim=-2)
