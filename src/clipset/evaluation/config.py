"""How the result is judged."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from clipset.errors import ProbeError

Optimiser = Literal["adamw", "sgd"]
RowName = Literal[
    "knn",
    "scale_knn",
    "linear",
    "scale_linear",
    "mlp",
    "transformer",
    "finetune",
    "ordered",
    "attentive",
    "scale_attentive",
]
PAPER_ROWS: tuple[RowName, ...] = (
    "knn",
    "scale_knn",
    "linear",
    "scale_linear",
    "mlp",
    "transformer",
    "finetune",
)  # in the order of the paper's tables


def _finite(*values: float) -> bool:
    """Whether all are numbers of 0 or more."""
    return all(0 <= value < math.inf for value in values)


@dataclass(frozen=True, slots=True, kw_only=True)
class FitConfig:
    """How probes are trained."""

    epochs: int = 40
    """times that a probe sees every training video"""
    head_steps: int = 1000
    """batches after which the training of a head ends, whatever the epochs; at least one epoch"""
    tuned_steps: int = 600
    """the same where a transformer is trained"""
    batch: int = 64
    """videos in a batch"""
    clips: int = 8
    """random clips of a video that a probe sees at once"""
    regular_too: bool = False
    """whether probes also learn from the regular clips of the training videos"""
    set_draws: int = 4
    """how often a video's clips are divided into sets for heads on frozen set tokens"""
    rates: tuple[float, ...] = (3e-4, 1e-3, 3e-3)
    """learning rates to choose from where a transformer is trained"""
    weight_decay: float = 1e-2
    """decay of the matrices where a transformer is trained"""
    encoder_shares: tuple[float, ...] = (0.1, 1.0)
    """shares of the learning rate to choose from for the pre-trained part of a fine-tuned probe"""
    set_only: bool = False
    """whether trained transformers classify by the set token alone, not next to each clip"""
    mix_means: bool = False
    """whether the means of training videos are mixed with each other's where a transformer is
    trained, so that it learns less from what never changes in a video, such as the person"""
    stop_early: bool = True
    """whether training ends after the epoch that was best on the videos set aside, however high
    the rate still is; if not, it goes on until the rate has come down to nothing"""
    rehearse: float = 0.0
    """weight of the losses of pre-training, which then goes on beside fine-tuning, on all its
    videos, labelled or not (0: it does not; 0.03 is a good first try)"""
    rehearse_batch: int = 128
    """videos in a batch of that, at most"""
    head_rates: tuple[float, ...] = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
    """learning rates to choose from where only a head on frozen features is trained"""
    decays: tuple[float, ...] = (1e-3, 1e-2, 1e-1, 1.0)
    """weight decays to choose from for a head"""
    optimisers: tuple[Optimiser, ...] = ("adamw",)
    """optimisers to choose from for a head"""
    norms: tuple[bool, ...] = (True,)
    """whether batch norm (without affine) stands before a head: the values to choose from"""
    dropouts: tuple[float, ...] = (0.0,)
    """dropouts before a head to choose from"""
    halvings: int = 2
    """how often the weaker half of the grid is dropped on the way (never for linear heads)"""
    penalties: tuple[float, ...] = (1e-2, 1e-1, 1.0, 10.0, 100.0)
    """penalties to choose from where a linear classifier is solved exactly (ordered)"""
    validation: float = 0.25
    """share of the training videos that choices are made on"""
    refit: bool = True
    """whether the final probe learns from all training videos, those of the choice included"""

    def __post_init__(self) -> None:
        for name in ("epochs", "head_steps", "tuned_steps", "batch", "clips", "set_draws"):
            if getattr(self, name) < 1:
                raise ProbeError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("rates", "encoder_shares", "head_rates", "optimisers", "norms", "penalties"):
            if not getattr(self, name):
                raise ProbeError(f"{name} must name at least one value to choose from")
        if not self.dropouts or not self.decays or not _finite(*self.decays, self.weight_decay):
            raise ProbeError(f"decays must be at least 0 and dropouts given, got {self.decays}")
        if not all(0 <= chance < 1 for chance in self.dropouts):
            raise ProbeError(f"dropouts must be at least 0 and less than 1, got {self.dropouts}")
        steps = (*self.rates, *self.head_rates, *self.penalties, *self.encoder_shares)
        if min(steps) <= 0 or not _finite(*steps):
            raise ProbeError("rates, shares and penalties must be more than 0")
        if not 0 < self.validation < 1:
            raise ProbeError(f"validation must lie between 0 and 1, got {self.validation}")
        if not _finite(self.rehearse) or self.rehearse_batch < 2:
            raise ProbeError("rehearse must be at least 0 and rehearse_batch at least 2")
        if self.halvings < 0:
            raise ProbeError(f"halvings must be at least 0, got {self.halvings}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeConfig:
    """Which probes are run and how."""

    preset: str = "recommended"
    """named settings (recommended, paper, official) for all that is not set by hand"""
    rows: tuple[RowName, ...] = (*PAPER_ROWS, "ordered")
    """which rows the table has"""
    seeds: int = 3
    """how often each trained probe is repeated"""
    k: int = 20
    """neighbours that vote"""
    centre: bool = False
    """whether k-NN subtracts the mean of the training videos from both splits"""
    mlp_hidden: int = 512
    """width of the MLP probe's two hidden layers"""
    judge_by: Literal["regular", "all"] = "regular"
    """clips that a video is judged by: the regular ones, as in the paper, or all that are stored,
    the random ones, too (never for ordered, which needs clips at the same times)"""
    queries: int = 4
    """learned queries of the attentive probe"""
    low_shot: float | None = None
    """share of each class's training labels that probes may use; each seed draws its own"""
    shots: int | None = None
    """the same as a number of videos of each class"""
    first_shots: bool = False
    """take the first videos of each class, as the published code does, instead of random ones"""
    fit: FitConfig = field(default_factory=FitConfig)
    """how trained probes are trained"""

    def __post_init__(self) -> None:
        if self.seeds < 1 or self.k < 1:
            raise ProbeError(f"seeds and k must be at least 1, got {self.seeds} and {self.k}")
        if self.mlp_hidden < 4 or self.queries < 1:
            raise ProbeError("mlp_hidden must be at least 4 and queries at least 1")
        if self.low_shot is not None and self.shots is not None:
            raise ProbeError("give low_shot (a share) or shots (a number), not both")
        if self.low_shot is not None and not 0 < self.low_shot <= 1:
            raise ProbeError(f"low_shot must lie above 0 and up to 1, got {self.low_shot}")
        if self.shots is not None and self.shots < 1:
            raise ProbeError(f"shots must be at least 1, got {self.shots}")
        if not self.rows or len(set(self.rows)) < len(self.rows):
            raise ProbeError("rows must name each probe once, and at least one")
