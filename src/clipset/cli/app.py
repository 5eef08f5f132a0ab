"""What all verbs share: the command itself, its common options, and how a result is shown."""

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

    Each step is also a verb of its own; `clipset VERB --help` shows an example.""",
    version_flags=["--version"],
    help_format="plaintext",
    suppress_keyboard_interrupt=False,  # `main` says what to do next
)


@Parameter(name="*")
@dataclass(frozen=True)
class Common:
    """What every verb understands."""

    seed: int = 0
    """where all chance comes from: same seed, same result"""
    device: str = "auto"
    """auto, cpu, cuda or mps"""
    json: Annotated[bool, Parameter(negative="")] = False
    """print the result as one JSON object and nothing else on standard output"""
    quiet: Annotated[bool, Parameter(negative="")] = False
    """show no progress"""
    debug: Annotated[bool, Parameter(negative="")] = False
    """show the traceback of an error"""

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**32:
            raise ConfigError(f"seed must be a whole number from 0 to 2³²−1, got {self.seed}")


COMMON = Common()
Flat = Parameter(name="*")  # the fields of a config become options of their own
Changes = Annotated[tuple[str, ...], Parameter(name="--set", negative="")]


def show_result(result: Any, common: Common, show: Callable[[], None]) -> None:
    """The result as JSON if that was asked for, else as a person likes it."""
    from clipset.config import writing
    from clipset.errors import OutputError

    try:
        with writing("standard output"):
            _show_json(result) if common.json else show()
            sys.stdout.flush()
    except OutputError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else Python tries again when it ends
        raise


def _show_json(result: Any) -> None:
    import msgspec

    def plain(value: object) -> object:
        return name_text(value) if isinstance(value, Path) else str(value)

    text = msgspec.json.encode(result, enc_hook=plain).decode()
    if not (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf8"):
        text = re.sub(r"[^\x00-\x7f]+", lambda match: json.dumps(match[0])[1:-1], text)
    sys.stdout.write(f"{text}\n")


def print_line(line: object) -> None:
    """One line of the result; names in it cannot move the cursor or begin another line."""
    sys.stdout.write(f"{visible(str(line))}\n")


def print_table(columns: Sequence[str | Column], rows: Iterable[Sequence[str]]) -> None:
    """A table of the result; what its cells hold is text, never markup."""
    from rich.console import Console
    from rich.table import Table

    encoding = sys.stdout.encoding or "utf-8"
    table = Table(*columns)
    for row in rows:
        cells = (visible(cell).encode(encoding, ERRORS).decode(encoding) for cell in row)
        table.add_row(*cells)
    Console(markup=False, emoji=False, highlight=False).print(table)
