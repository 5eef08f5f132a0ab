"""What every row of the table is made from, and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Float
from torch import Tensor

from clipset.errors import ProbeError
from clipset.model.config import ModelConfig
from clipset.model.encoder import SetEncoder
from clipset.probes.config import ProbeConfig
from clipset.probes.problem import Problem
from clipset.probes.selection import Parts, divide


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What every row is made from. Targets, where there are some, are standardised."""

    problem: Problem
    encoder: SetEncoder | None
    model: ModelConfig
    config: ProbeConfig
    seeds: tuple[int, ...]

    @property
    def numbers(self) -> bool:
        """Whether numbers are predicted."""
        return not self.problem.classes

    def divide(self) -> Parts:
        """The videos to choose by."""
        problem = self.problem
        return divide(problem.train, self.config.fit, self.seeds[0], problem.validation)

    def trained_encoder(self) -> SetEncoder:
        """The encoder, without which there is no SCALE row."""
        if self.encoder is None:
            raise ProbeError("rows on clipset's features need a trained model; give one")
        return self.encoder


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a row predicts for the test videos, once for each seed, and how it was chosen."""

    predictions: list[Float[Tensor, "M C"]]
    seeds: tuple[int, ...]
    selected_on: str
    rate: float | None = None
    epochs: int | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    tried: int = 1
