"""Settings of the evaluation: which probes are run and how they are trained."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from clipset.errors import ProbeError

Features = Literal["backbone", "scale"]
KNNVectors = Literal["balanced", "mean", "centred"]
ProbeName = Literal[
    "knn",
    "scale_knn",
    "linear",
    "scale_linear",
    "mlp",
    "transformer",
    "finetune",
    "course_knn",
    "scale_course_knn",
    "ordered",
    "scale_ordered",
    "attentive",
    "scale_attentive",
]


class ProbeKey(NamedTuple):
    """The features that a probe sees and the kind of probe, such as `("scale", "linear")`."""

    features: str
    probe: str

    def __str__(self) -> str:
        return f"{self.features}/{self.probe}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeTraining:
    """How probes are trained."""

    epochs: int = 40
    """passes over the training videos, at most"""
    max_steps: int = 600
    """batches that a transformer is trained on, at most, rounded up to whole epochs; for heads,
    which are cheap, not less than 1,000"""
    num_clips: int = 8
    """random clips of a video in a training step"""
    train_clips: Literal["random", "all"] = "random"
    """clips of the training videos: the random ones, or the regular ones, too"""
    learning_rates: tuple[float, ...] = (3e-4, 1e-3, 3e-3)
    """learning rates to search for transformers"""
    weight_decays: tuple[float, ...] = (1e-2,)
    """weight decays to search for transformers"""
    encoder_lr_scales: tuple[float, ...] = (0.1, 1.0)
    """factors of the learning rate to search for the encoder of transformers"""
    set_token_only: bool = False
    """whether transformers classify the set token alone, not each clip next to it"""
    ordered_weights: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    """weights to search of the clips in order, whose probabilities transformers are mixed with"""
    mix_means: bool = False
    """whether transformers see videos with mixed mean features, which hides the person or place"""
    early_stopping: bool = True
    """whether the epochs of the final training are chosen on validation videos (never those of
    linear heads)"""
    joint_weight: float = 0.0
    """weight of the pre-training losses beside fine-tuning, on all videos, labelled or not"""
    head_learning_rates: tuple[float, ...] = (1e-3,)
    """learning rates to search for heads on frozen features"""
    head_weight_decays: tuple[float, ...] = (1e-3, 1e-2, 1e-1, 1.0)
    """weight decays to search for heads on frozen features"""
    batch_sizes: tuple[int, ...] = (64,)
    """videos in a batch, to search for heads and transformers"""
    optimizers: tuple[Literal["adamw", "sgd"], ...] = ("adamw",)
    """optimizers to search for heads and transformers"""
    batch_norm: tuple[bool, ...] = (True,)
    """whether batch norm without affine precedes the linear layer, to search"""

    def __post_init__(self) -> None:
        for name in ("epochs", "max_steps", "num_clips"):
            if getattr(self, name) < 1:
                raise ProbeError(f"{name} must be at least 1, got {getattr(self, name)}")
        positive = ("learning_rates", "encoder_lr_scales", "head_learning_rates", "batch_sizes")
        for names, rule, is_valid in (
            (positive, "each more than 0", lambda value: 0 < value < math.inf),
            (
                ("weight_decays", "head_weight_decays"),
                "each at least 0",
                lambda v: 0 <= v < math.inf,
            ),
            (("ordered_weights",), "each 0 to 1", lambda value: 0 <= value <= 1),
        ):
            for name in names:
                values = getattr(self, name)
                if not values or not all(map(is_valid, values)):
                    raise ProbeError(f"{name} must list at least one value, {rule}, got {values}")
        for name in ("optimizers", "batch_norm"):
            if not getattr(self, name):
                raise ProbeError(f"{name} must list at least one value, got none")
        if not 0 <= self.joint_weight < math.inf:
            raise ProbeError(f"joint_weight must be at least 0, got {self.joint_weight}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateConfig:
    """Which probes are run and how."""

    preset: str = "recommended"
    """named settings (recommended, paper, official) for all that is not set by hand"""
    probes: tuple[ProbeName, ...] = (
        "knn",
        "scale_knn",
        "linear",
        "scale_linear",
        "mlp",
        "transformer",
        "finetune",  # up to here in the order of the paper's tables
        "course_knn",
        "scale_course_knn",
        "ordered",
        "scale_ordered",
    )
    """probes to run, in the order of the table"""
    num_seeds: int = 3
    """repetitions of each trained probe"""
    mlp_hidden: int = 512
    """width of the MLP's hidden layers"""
    knn_vectors: KNNVectors = "balanced"
    """vectors of k-NN: means over clips with a set token that varies half as much as the features,
    or as much after batches of one group (balanced), with the token as it is (mean, as in the
    paper), or those minus the mean of the training videos (centred, as published)"""
    test_clips: Literal["regular", "all"] = "regular"
    """clips that predictions average over: the regular ones, as in the paper, or also the random
    ones (never for time courses, which need clips at the same times)"""
    label_fraction: float | None = None
    """fraction of each class's training labels that probes may use"""
    label_selection: Literal["random", "first"] = "random"
    """these labels: drawn at random, anew for each seed, or the first of the catalog"""
    training: ProbeTraining = field(default_factory=ProbeTraining)
    """how probes are trained"""

    def __post_init__(self) -> None:
        if self.num_seeds < 1:
            raise ProbeError(f"num_seeds must be at least 1, got {self.num_seeds}")
        if self.mlp_hidden < 4:
            raise ProbeError(f"mlp_hidden must be at least 4, got {self.mlp_hidden}")
        if self.label_fraction is not None and not 0 < self.label_fraction <= 1:
            raise ProbeError(
                f"label_fraction must be more than 0 and at most 1, got {self.label_fraction}"
            )
        if not self.probes or len(set(self.probes)) < len(self.probes):
            raise ProbeError("probes must list at least one probe, and each once")
