"""Flags that several verbs have, with their help."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, Token

from clipset.errors import ConfigError

SWITCH = Parameter(negative="", show_default=False)
HIDDEN = Parameter(show=False)
Switch = Annotated[bool, SWITCH]


def read_whole_number(type_: type[int], tokens: Sequence[Token]) -> int:
    """The number that is typed; one with a fraction is refused, not rounded."""
    [token] = tokens
    try:
        return type_(token.value)
    except ValueError:
        name = token.keyword or "the argument"
        raise ConfigError(f"{name} must be a whole number, got {token.value:.40}") from None


Int = Annotated[int, Parameter(converter=read_whole_number)]
Seed = Annotated[Int | None, Parameter(help="Same seed, same result (0 by default).")]
Device = Annotated[str, Parameter(help="auto, cpu, cuda or mps.")]
Preset = Annotated[str | None, Parameter(help="Named settings: recommended, paper or official.")]
RecipeFile = Annotated[
    Path | None,
    Parameter(help="A TOML file (`clipset settings --toml` prints one); flags win over it."),
]


def setting_flag(example: str) -> Parameter:
    """The flag --set of a verb, with an example of a setting that has an effect there."""
    help_text = f"Change a setting, such as `{example}`; repeat the flag for more settings."
    return Parameter(name="--set", metavar="NAME=VALUE", help=help_text)


Changes = Annotated[tuple[str, ...], setting_flag("pretrain.epochs=100"), SWITCH]
AllowLeaks = Annotated[
    bool, Parameter(help="Continue although splits share files or groups; they are listed."), SWITCH
]
Workers = Annotated[
    Int | None,
    Parameter(help="Decoding processes (one per core, at most 8; 0: decode in the main process)."),
]
Model = Annotated[str | None, Parameter(metavar="MODEL")]
"""A folder or a hub name: a path would lose the `./` that tells them apart."""
OwnBackbone = Annotated[
    str | None,
    Parameter(
        help="Needed if the backbone is a file of yours or a model of the hub (mine.py:make, "
        "hf:OWNER/NAME)."
    ),
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
