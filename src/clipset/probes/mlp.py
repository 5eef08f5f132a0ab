"""MLP probe: an MLP on each clip, whose output joins its input before the classifier."""

from __future__ import annotations

import itertools
from functools import partial

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from clipset.probes.base import Tensors
from clipset.probes.config import EvaluateConfig
from clipset.probes.heads import HeadProbe, HeadStack, MakeStack, stacked_linear, uniform_init

DROPOUT = 0.1


class MLPStack(HeadStack):
    """MLPs with two hidden layers of the same width."""

    def __init__(
        self, num_heads: int, in_dim: int, num_outputs: int, generator: Generator, *, hidden: int
    ) -> None:
        self.hidden = hidden
        super().__init__(num_heads, in_dim, num_outputs, generator)

    def init_weights(self, in_dim: int, num_outputs: int, generator: Generator) -> Tensors:
        layer_dims = (in_dim, self.hidden, self.hidden, self.hidden // 4)
        weights: Tensors = {}
        for layer, (fan_in, fan_out) in enumerate(itertools.pairwise(layer_dims), start=1):
            weights[f"w{layer}"] = uniform_init((fan_out, fan_in), fan_in, generator)
            weights[f"bias{layer}"] = uniform_init((fan_out,), fan_in, generator)
        weights["w_input"] = torch.zeros(num_outputs, in_dim)
        weights["w_output"] = torch.zeros(num_outputs, layer_dims[-1])
        weights["bias"] = torch.zeros(num_outputs)
        return weights

    def logits(
        self, clip_vectors: Float[Tensor, "B K R"], generator: Generator | None
    ) -> Float[Tensor, "E B L C"]:
        weights, flat = self.weights, clip_vectors.flatten(0, 1)[None]  # (1, B K, R)
        first_hidden = stacked_linear(flat, weights["w1"], weights["bias1"])[0]  # (B K, E, hidden)
        hidden = drop_shared(first_hidden.transpose(0, 1).relu(), generator)  # (E, B K, hidden)
        hidden = torch.baddbmm(weights["bias2"][:, None], hidden, weights["w2"].mT)
        hidden = drop_shared(hidden.relu(), generator)
        hidden = torch.baddbmm(weights["bias3"][:, None], hidden, weights["w3"].mT)
        direct_logits = stacked_linear(flat, weights["w_input"], weights["bias"])[0].transpose(0, 1)
        logits = torch.baddbmm(direct_logits, hidden, weights["w_output"].mT)  # (E, B K, C)
        return logits.view(len(logits), *clip_vectors.shape[:2], -1)


def drop_shared(
    hidden: Float[Tensor, "E Q H"], generator: Generator | None
) -> Float[Tensor, "E Q H"]:
    """Dropout with one mask for all heads; none without a generator."""
    if generator is None:
        return hidden
    kept_mask = torch.rand(hidden.shape[1:], generator=generator) >= DROPOUT
    return hidden * (kept_mask / (1.0 - DROPOUT))


class MLPProbe(HeadProbe):
    """MLP heads on the backbone's features."""

    kind = "mlp"

    @classmethod
    def stack_factory(cls, config: EvaluateConfig) -> MakeStack:
        return partial(MLPStack, hidden=config.mlp_hidden)
