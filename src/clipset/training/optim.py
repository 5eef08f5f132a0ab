"""Learning rate and weight decay."""

from __future__ import annotations

import math

from torch import nn


def learning_rate(step: int, steps: int, *, peak: float, warmup: float) -> float:
    """Linear warm-up from 0 over a share of the steps, then a cosine down to 0."""
    rising = max(warmup * steps, 1e-9)
    if step < rising:
        return peak * step / rising
    done = (step - rising) / max(steps - rising, 1e-9)
    return peak * 0.5 * (1.0 + math.cos(math.pi * min(done, 1.0)))


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Matrices decay; biases, norms and learned tokens do not."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]
