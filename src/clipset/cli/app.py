"""What all verbs share: the command itself, the common flags, and how a result is printed."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from clipset.errors import ConfigError
from clipset.text import ERRORS, name_text, visible

if TYPE_CHECKING:
    from rich.table import Column

app = App(
    name="clipset",
    help="""Learn from sets of clips: better video features from any frozen backbone.

    From a folder of videos to a report:

        clipset run VIDEOS --out DIR

    Each step is also a command of its own; `clipset COMMAND --help` shows an example. All settings:
    `clipset settings`. Every command also takes --seed, --device, --json (print the result as
    JSON), --quiet (no progress) and --debug (traceback of an error).""",
    version_flags=["--version"],
    help_format="plaintext",
    suppress_keyboard_interrupt=False,  # `main` prints what to do next
)

Switch = Parameter(negative="")
Changes = Annotated[tuple[str, ...], Parameter(name="--set", negative="", show_default=False)]


@Parameter(name="*")
@dataclass(frozen=True)
class Common:
    """Flags of every verb; those without effect on a verb are hidden in its help."""

    seed: Annotated[int, Parameter(show=False)] = 0
    """seed of all randomness: same seed, same result"""
    device: Annotated[str, Parameter(show=False)] = "auto"
    """auto, cpu, cuda or mps"""
    json: Annotated[bool, Switch, Parameter(show_default=False)] = False
    """print the result as one JSON object"""
    quiet: Annotated[bool, Switch, Parameter(show=False)] = False
    """show no progress"""
    debug: Annotated[bool, Switch, Parameter(show=False)] = False
    """show the traceback of an error"""

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**32:
            raise ConfigError(f"seed must be a whole number from 0 to 2³²−1, got {self.seed}")


@Parameter(name="*")
@dataclass(frozen=True)
class Seeded(Common):
    """Flags of a verb that draws random numbers."""

    seed: int = 0
    """seed of all randomness: same seed, same result"""


@Parameter(name="*")
@dataclass(frozen=True)
class Computing(Common):
    """Flags of a verb that runs a network."""

    device: str = "auto"
    """auto, cpu, cuda or mps"""


@Parameter(name="*")
@dataclass(frozen=True)
class Training(Computing):
    """Flags of a verb that trains: random numbers and a network."""

    seed: int = 0
    """seed of all randomness: same seed, same result"""


COMMON, SEEDED, COMPUTING, TRAINING = Common(), Seeded(), Computing(), Training()


def show_result(result: Any, common: Common, show: Callable[[], None]) -> None:
    """Print a result as JSON if requested, else by `show`."""
    from clipset.errors import OutputError
    from clipset.files import writing

    try:
        with writing("standard output"):
            _print_json(result) if common.json else show()
            sys.stdout.flush()
    except OutputError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else Python tries again when it ends
        raise


def _print_json(result: Any) -> None:
    import msgspec

    def plain(value: object) -> object:
        return name_text(value) if isinstance(value, Path) else str(value)

    text = msgspec.json.encode(result, enc_hook=plain).decode()
    if not (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf8"):
        text = re.sub(r"[^\x00-\x7f]+", lambda match: json.dumps(match[0])[1:-1], text)
    sys.stdout.write(f"{text}\n")


def print_line(line: object) -> None:
    """Print one line; names in it cannot move the cursor or begin another line."""
    sys.stdout.write(f"{visible(str(line))}\n")


def print_table(columns: Sequence[str | Column], rows: Iterable[Sequence[str]]) -> None:
    """Print a table; its cells are text, never markup."""
    from rich.console import Console
    from rich.table import Table

    encoding = sys.stdout.encoding or "utf-8"
    table = Table(*columns)
    for row in rows:
        cells = (visible(cell).encode(encoding, ERRORS).decode(encoding) for cell in row)
        table.add_row(*cells)
    Console(markup=False, emoji=False, highlight=False).print(table)
