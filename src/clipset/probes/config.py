"""How the result is judged."""

from __future__ import annotations

from dataclasses import dataclass, field

from clipset.errors import ProbeError


@dataclass(frozen=True, slots=True, kw_only=True)
class FitConfig:
    """How probes are trained."""

    epochs: int = 40
    """times that a probe sees every training video"""
    batch: int = 64
    """videos in a batch"""
    clips: int = 8
    """random clips of a video that a probe sees at once"""
    weight_decay: float = 1e-2
    """decay of the matrices"""
    rates: tuple[float, ...] = (3e-4, 1e-3, 3e-3)
    """learning rates to choose from where a transformer is trained"""
    head_rates: tuple[float, ...] = (1e-3, 1e-2, 5e-2)
    """learning rates to choose from where only a head on frozen features is trained"""
    validation: float = 0.25
    """share of the training videos that choices are made on"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeConfig:
    """Which probes are run and how."""

    seeds: int = 3
    """how often each trained probe is repeated"""
    k: int = 20
    """neighbours that vote"""
    mlp_hidden: int = 512
    """width of the MLP probe's two hidden layers"""
    fit: FitConfig = field(default_factory=FitConfig)
    """how trained probes are trained"""

    def __post_init__(self) -> None:
        if self.seeds < 1 or self.k < 1:
            raise ProbeError(f"seeds and k must be at least 1, got {self.seeds} and {self.k}")
