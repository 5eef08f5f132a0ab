"""Search spaces of trained probes: heads on frozen features, and transformers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from clipset.probes.config import ProbeTraining
from clipset.training.optim import OptimizerName

HEAD_WEIGHT_DECAYS = (1e-3, 1e-2, 1e-1, 1.0)  # to search: heads of a grid are trained at once
T = TypeVar("T")


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


def head_grid(config: ProbeTraining) -> tuple[HeadSettings, ...]:
    """The grid of heads."""
    points = itertools.product(
        config.batch_sizes, config.batch_norm, config.optimizers, config.head_learning_rates,
        HEAD_WEIGHT_DECAYS,
    )  # fmt: skip
    return tuple(
        HeadSettings(
            learning_rate=learning_rate, weight_decay=decay, optimizer=optimizer, batch_norm=norm,
            batch_size=batch_size,
        )
        for batch_size, norm, optimizer, learning_rate, decay in points
    )  # fmt: skip


def transformer_grid(config: ProbeTraining) -> tuple[TransformerSettings, ...]:
    """The grid of transformers, the same from a random start and from a pre-trained model."""
    points = itertools.product(
        config.batch_sizes, config.batch_norm, config.optimizers, config.weight_decays,
        config.encoder_lr_scales, config.learning_rates,
    )  # fmt: skip
    return tuple(
        TransformerSettings(
            learning_rate=learning_rate, weight_decay=decay, optimizer=optimizer, batch_norm=norm,
            batch_size=batch_size, encoder_lr_scale=scale,
        )
        for batch_size, norm, optimizer, decay, scale, learning_rate in points
    )  # fmt: skip


def middle_head(config: ProbeTraining) -> HeadSettings:
    """What a head is trained with, without validation videos."""
    return HeadSettings(
        learning_rate=_middle(config.head_learning_rates),
        weight_decay=_middle(HEAD_WEIGHT_DECAYS),
        optimizer=config.optimizers[0],
        batch_norm=config.batch_norm[0],
        batch_size=_middle(config.batch_sizes),
    )


def middle_transformer(config: ProbeTraining) -> TransformerSettings:
    """What a transformer is trained with, without validation videos."""
    return TransformerSettings(
        learning_rate=_middle(config.learning_rates),
        weight_decay=_middle(config.weight_decays),
        optimizer=config.optimizers[0],
        batch_norm=config.batch_norm[0],
        batch_size=_middle(config.batch_sizes),
        encoder_lr_scale=_middle(config.encoder_lr_scales),
    )


def _middle(values: Sequence[T]) -> T:
    return values[len(values) // 2]
