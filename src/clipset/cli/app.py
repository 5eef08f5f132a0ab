"""What all verbs share: the command itself, its common options, and how a result is shown."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import App, Parameter

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
        return str(value)

    sys.stdout.write(msgspec.json.encode(result, enc_hook=plain).decode() + "\n")


def print_line(line: object) -> None:
    """One line of the result."""
    sys.stdout.write(f"{line}\n")
