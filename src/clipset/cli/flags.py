"""Flags that several verbs have, with their help."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from clipset.errors import ConfigError

SWITCH = Parameter(negative="", show_default=False)
HIDDEN = Parameter(show=False)
Switch = Annotated[bool, SWITCH]
Seed = Annotated[int | None, Parameter(help="Same seed, same result (0 by default).")]
Device = Annotated[str, Parameter(help="auto, cpu, cuda or mps.")]
Preset = Annotated[str | None, Parameter(help="Named settings: recommended, paper or official.")]
RecipeFile = Annotated[
    Path | None,
    Parameter(help="A TOML file (`clipset settings --toml` prints one); flags win over it."),
]
Changes = Annotated[
    tuple[str, ...],
    Parameter(name="--set", help="One setting, such as `pretrain.epochs=100`; may be repeated."),
    SWITCH,
]
AllowLeaks = Annotated[
    bool, Parameter(help="Continue although splits share files or groups; they are listed."), SWITCH
]
Workers = Annotated[
    int | None,
    Parameter(help="Decoding processes (one per core, at most 8; 0: decode in the main process)."),
]
OwnBackbone = Annotated[
    str | None,
    Parameter(help="The backbone, if that is a file or a hub model: mine.py:make, hf:FOLDER."),
]


@Parameter(name="*")
@dataclass(frozen=True)
class Common:
    """Flags of every verb; those without effect on a verb are hidden in its help."""

    seed: Annotated[Seed, HIDDEN] = None
    device: Annotated[Device, HIDDEN] = "auto"
    json: Annotated[Switch, Parameter(help="Print the result as one JSON object.")] = False
    quiet: Annotated[Switch, HIDDEN] = False
    debug: Annotated[Switch, HIDDEN] = False

    def __post_init__(self) -> None:
        if self.seed is not None and not 0 <= self.seed < 2**32:
            raise ConfigError(f"seed must be a whole number from 0 to 2³²−1, got {self.seed}")

    @property
    def random_seed(self) -> int:
        """The seed, or its default."""
        return self.seed or 0


@Parameter(name="*")
@dataclass(frozen=True)
class Seeded(Common):
    """Flags of a verb that draws random numbers."""

    seed: Seed = None


@Parameter(name="*")
@dataclass(frozen=True)
class Computing(Common):
    """Flags of a verb that runs a network."""

    device: Device = "auto"


@Parameter(name="*")
@dataclass(frozen=True)
class Training(Computing):
    """Flags of a verb that trains: random numbers and a network."""

    seed: Seed = None


COMMON, SEEDED, COMPUTING, TRAINING = Common(), Seeded(), Computing(), Training()
