"""Optimisation: AdamW or SGD, learning rate schedule, weights without decay, gradient clipping.

Pre-training, fine-tuning and probe training share `Optimization`.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn, optim

from clipset.errors import TrainingError

MIXED_PRECISION = {"bfloat16": torch.bfloat16, "float16": torch.float16}
WARMUP_FRACTION = 0.05  # of the steps, as published
OptimizerName = Literal["adamw", "sgd"]
ParamGroup = dict[str, Any]  # of torch.optim; `lr_scale` multiplies the learning rate


def cosine_schedule(
    step: int,
    num_steps: int,
    *,
    peak: float,
    warmup_fraction: float,
    decay_start: int | None = None,
) -> float:
    """The learning rate: linear warm-up from 0, then a cosine down to 0.

    The cosine begins after the warm-up, or at the step `decay_start`.
    """
    warmup_steps = max(warmup_fraction * num_steps, 1e-9)
    if step < warmup_steps:
        return peak * step / warmup_steps
    start = warmup_steps if decay_start is None else max(decay_start, warmup_steps)
    progress = (step - start) / max(num_steps - start, 1e-9)
    return peak * 0.5 * (1.0 + math.cos(math.pi * min(max(progress, 0.0), 1.0)))


def is_without_decay(name: str, parameter: nn.Parameter) -> bool:
    """Biases, norms, learned tokens and cluster prototypes are not decayed; matrices are."""
    last_name = name.rsplit(".", maxsplit=1)[-1]
    return parameter.ndim <= 1 or last_name.endswith("token") or last_name == "prototypes"


def decay_groups(
    module: nn.Module, weight_decay: float, *, lr_scale: float = 1.0
) -> list[ParamGroup]:
    """The trained parameters in two groups: with weight decay, and without."""
    decayed: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            (others if is_without_decay(name, parameter) else decayed).append(parameter)
    return [
        {"params": decayed, "weight_decay": weight_decay, "lr_scale": lr_scale},
        {"params": others, "weight_decay": 0.0, "lr_scale": lr_scale},
    ]


class Optimization:
    """Steps of AdamW, or of SGD with Nesterov momentum.

    With a learning rate schedule, gradient clipping and loss scaling.
    """

    def __init__(
        self,
        module: nn.Module,
        groups: list[ParamGroup],
        *,
        learning_rate: float,
        num_steps: int,
        warmup_fraction: float = WARMUP_FRACTION,
        max_grad_norm: float | None = None,
        scaler: torch.amp.GradScaler | None = None,
        optimizer: OptimizerName = "adamw",
    ) -> None:
        """Optimise parameter groups: of a module, and of what is trained with it.

        `max_grad_norm` bounds the module's gradient; 0 only measures it, None does not even that.
        """
        self.module = module
        self.optimizer: optim.Optimizer
        if optimizer == "sgd":
            self.optimizer = optim.SGD(groups, lr=learning_rate, momentum=0.9, nesterov=True)
        else:
            self.optimizer = optim.AdamW(groups, lr=learning_rate, fused=True)
        self.peak, self.num_steps = learning_rate, num_steps
        self.decay_start: int | None = None  # step at which the learning rate begins to fall
        self.warmup_fraction, self.max_grad_norm = warmup_fraction, max_grad_norm
        self.scaler = scaler or torch.amp.GradScaler("cpu", enabled=False)
        self.num_done = 0

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next step."""
        return cosine_schedule(
            self.num_done,
            self.num_steps,
            peak=self.peak,
            warmup_fraction=self.warmup_fraction,
            decay_start=self.decay_start,
        )

    def step(self, loss: Tensor) -> float:
        """One step; returns the norm of the gradient (0 if it is not measured)."""
        self.backward(loss)
        return self.update()

    def backward(self, loss: Tensor) -> None:
        """Replace the gradients by those of a loss."""
        self.optimizer.zero_grad(set_to_none=True)
        self.scaler.scale(loss).backward()

    def update(self) -> float:
        """Change the parameters by their gradients."""
        learning_rate = self.learning_rate
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate * group["lr_scale"]
        norm = 0.0
        if self.max_grad_norm is not None:
            self.scaler.unscale_(self.optimizer)
            largest = self.max_grad_norm or math.inf
            norm = float(nn.utils.clip_grad_norm_(self.module.parameters(), largest))
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.num_done += 1
        return norm


def choose_precision(precision: str, device: torch.device) -> torch.dtype:
    """The dtype of the forward pass.

    `auto` is bfloat16 on devices that compute in it, float16 on older ones with tensor cores,
    float32 elsewhere.
    """
    available = _fast_dtypes(device)
    if precision == "auto":
        return available[0] if available else torch.float32
    dtype = MIXED_PRECISION.get(precision, torch.float32)
    if dtype != torch.float32 and dtype not in available:
        raise TrainingError(
            f"{precision} is not faster on this device ({device.type}); "
            f"use precision 'auto' or 'float32'"
        )
    return dtype


def _fast_dtypes(device: torch.device) -> list[torch.dtype]:
    """The dtypes in which a device computes faster than in float32, the best one first."""
    if device.type == "cpu":
        capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
        has_bfloat16 = capabilities.get("avx512_bf16") or capabilities.get("amx_bf16")
        return [torch.bfloat16] if has_bfloat16 else []
    if device.type == "cuda":
        major, _minor = torch.cuda.get_device_capability(device)
        return [torch.bfloat16, torch.float16] if major >= 8 else [torch.float16] * (major == 7)
    return []
