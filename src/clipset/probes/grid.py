"""Search spaces of trained probes: heads on frozen features, and transformers."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from clipset.probes.config import ProbeTraining
from clipset.training.optim import OptimizerName


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSettings:
    """A point of the grid of heads."""

    learning_rate: float
    weight_decay: float
    optimizer: OptimizerName = "adamw"
    batch_norm: bool = True
    batch_size: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerSettings(HeadSettings):
    """A point of the grid of transformers."""

    encoder_lr_scale: float = 1.0
    joint_weight: float = 0.0
    """of the pre-training losses beside fine-tuning; not searched"""
    ordered_weight: float = 0.0
    """of the clips in order in the mixed probabilities; searched once the others are selected"""


Axes = dict[str, tuple[Any, ...]]  # values of each setting, the slowest one first


def head_grid(config: ProbeTraining) -> tuple[HeadSettings, ...]:
    """The grid of heads."""
    axes = _head_axes(config)
    points = itertools.product(*axes.values())
    return tuple(HeadSettings(**dict(zip(axes, point, strict=True))) for point in points)


def transformer_grid(config: ProbeTraining) -> tuple[TransformerSettings, ...]:
    """The grid of transformers, the same from a random start and from a pre-trained model."""
    axes = _transformer_axes(config)
    points = itertools.product(*axes.values())
    return tuple(TransformerSettings(**dict(zip(axes, point, strict=True))) for point in points)


def middle_head(config: ProbeTraining) -> HeadSettings:
    """What a head is trained with, without validation videos."""
    return HeadSettings(**_middle(_head_axes(config)))


def middle_transformer(config: ProbeTraining) -> TransformerSettings:
    """What a transformer is trained with, without validation videos."""
    return TransformerSettings(**_middle(_transformer_axes(config)))


def _head_axes(config: ProbeTraining) -> Axes:
    return {
        "batch_size": config.batch_sizes,
        "batch_norm": config.batch_norm,
        "optimizer": config.optimizers,
        "learning_rate": config.head_learning_rates,
        "weight_decay": config.head_weight_decays,
    }


def _transformer_axes(config: ProbeTraining) -> Axes:
    return {
        "batch_size": config.batch_sizes,
        "batch_norm": config.batch_norm,
        "optimizer": config.optimizers,
        "weight_decay": config.weight_decays,
        "encoder_lr_scale": config.encoder_lr_scales,
        "learning_rate": config.learning_rates,
    }


def _middle(axes: Axes) -> dict[str, Any]:
    """The middle number of each setting, the first of those without an order."""
    unordered = ("batch_norm", "optimizer")
    return {n: values[0 if n in unordered else len(values) // 2] for n, values in axes.items()}
