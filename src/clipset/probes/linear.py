"""Linear probe: one linear layer on each clip."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from clipset.probes.base import Tensors
from clipset.probes.config import EvaluateConfig
from clipset.probes.heads import HeadProbe, HeadStack, MakeStack, stacked_linear


class LinearStack(HeadStack):
    """Linear layers."""

    def init_weights(self, in_dim: int, num_outputs: int, generator: Generator) -> Tensors:  # noqa: ARG002
        return {"w": torch.zeros(num_outputs, in_dim), "bias": torch.zeros(num_outputs)}

    def logits(
        self, clip_vectors: Float[Tensor, "B K R"], generator: Generator | None  # noqa: ARG002
    ) -> Float[Tensor, "E B L C"]:  # fmt: skip
        logits = stacked_linear(clip_vectors, self.weights["w"], self.weights["bias"])
        return logits.permute(2, 0, 1, 3)


class LinearProbe(HeadProbe):
    """Linear heads are cheap: no candidate is dropped on the way, and all are trained to the end.

    With weight decay the last epochs, at low learning rates, do not overfit.
    """

    kind = "linear"
    num_halvings = 0
    can_stop_early = False

    @classmethod
    def stack_factory(cls, config: EvaluateConfig) -> MakeStack:  # noqa: ARG003
        return LinearStack
