"""Linear probe: one linear layer on each clip."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from clipset.probes.base import Tensors
from clipset.probes.config import EvaluateConfig
from clipset.probes.heads import HeadProbe, HeadStack, MakeStack, loss_gradient, stacked_linear
from clipset.probes.task import Labels


class LinearStack(HeadStack):
    """Linear layers, with the gradient by hand."""

    def init_weights(self, in_dim: int, num_outputs: int, generator: Generator) -> Tensors:  # noqa: ARG002
        return {"w": torch.zeros(num_outputs, in_dim), "bias": torch.zeros(num_outputs)}

    def logits(
        self,
        clip_vectors: Float[Tensor, "B K R"],
        generator: Generator | None,  # noqa: ARG002
    ) -> Float[Tensor, "E B L C"]:
        return self._logits(clip_vectors).permute(2, 0, 1, 3)

    def gradients(
        self,
        clip_vectors: Float[Tensor, "B K R"],
        labels: Labels,
        generator: Generator,  # noqa: ARG002
    ) -> Tensors:
        """Two matrix products for all heads, and nothing else that is large."""
        logits = self._logits(clip_vectors)  # (B, K, E, C)
        clip_labels = labels[:, None, None].expand(logits.shape[:-1])
        loss_scale = 1.0 / clip_vectors.shape[:2].numel()
        logit_gradients = loss_gradient(logits, clip_labels, loss_scale).flatten(2).flatten(0, 1)
        return {
            "w": (logit_gradients.T @ clip_vectors.flatten(0, 1)).view_as(self.weights["w"]),
            "bias": logit_gradients.sum(dim=0).view_as(self.weights["bias"]),
        }

    def predict(
        self, clip_vectors: Float[Tensor, "B K R"], is_regression: bool
    ) -> Float[Tensor, "E B C"]:
        logits = self._logits(clip_vectors)  # (B, K, E, C)
        return (logits if is_regression else logits.softmax(dim=-1)).mean(dim=1).transpose(0, 1)

    def _logits(self, clip_vectors: Float[Tensor, "B K R"]) -> Float[Tensor, "B K E C"]:
        return stacked_linear(clip_vectors, self.weights["w"], self.weights["bias"])


class LinearProbe(HeadProbe):
    """Linear heads are cheap: no candidate is dropped on the way."""

    kind = "linear"
    num_halvings = 0

    @classmethod
    def stack_factory(cls, config: EvaluateConfig) -> MakeStack:  # noqa: ARG003
        return LinearStack
