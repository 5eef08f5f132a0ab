"""Attentive probe: learned queries attend to all clips of a set, and the result is classified."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from clipset.probes.base import Tensors
from clipset.probes.config import EvaluateConfig
from clipset.probes.heads import HeadProbe, HeadStack, MakeStack, stacked_linear, uniform_init
from clipset.representation import VectorPart

NUM_QUERIES = 4
WIDTH = 128


class AttentiveStack(HeadStack):
    """Single-head attention of a few learned queries; one prediction for each set."""

    def init_weights(self, in_dim: int, num_outputs: int, generator: Generator) -> Tensors:
        return {
            "w_key": uniform_init((WIDTH, in_dim), in_dim, generator),
            "w_value": uniform_init((WIDTH, in_dim), in_dim, generator),
            "bias_value": torch.zeros(WIDTH),
            "queries": uniform_init((NUM_QUERIES, WIDTH), 1, generator),
            "w": torch.zeros(num_outputs, NUM_QUERIES * WIDTH),
            "bias": torch.zeros(num_outputs),
        }

    def logits(
        self,
        clip_vectors: Float[Tensor, "B K R"],
        generator: Generator | None,  # noqa: ARG002
    ) -> Float[Tensor, "E B L C"]:
        weights = self.weights
        no_bias = torch.zeros_like(weights["bias_value"])
        keys = stacked_linear(clip_vectors, weights["w_key"], no_bias)  # (B, K, E, W)
        values = stacked_linear(clip_vectors, weights["w_value"], weights["bias_value"])
        attention_scores = torch.einsum("bkew,eqw->ebqk", keys, weights["queries"])
        attention = (attention_scores / math.sqrt(WIDTH)).softmax(dim=-1)
        pooled_values = torch.einsum("ebqk,bkew->ebqw", attention, values).flatten(2)  # (E, B, Q W)
        logits = torch.baddbmm(weights["bias"][:, None], pooled_values, weights["w"].mT)
        return logits[:, :, None]


class AttentiveProbe(HeadProbe):
    """Attentive heads on features with boxes, or with the encoder's refined tokens."""

    kind = "attentive"
    token: VectorPart = "token"  # type: ignore[misc]
    with_boxes = True

    @classmethod
    def stack_factory(cls, config: EvaluateConfig) -> MakeStack:  # noqa: ARG003
        return AttentiveStack
