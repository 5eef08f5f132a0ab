"""What all verbs share: the command itself, and how a result is printed."""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import App

from clipset.cli.flags import Common
from clipset.errors import OutputError
from clipset.text import ERRORS, name_text, visible

if TYPE_CHECKING:
    from rich.table import Column, Table


class VerbApp(App):
    """A command whose help is wrapped by the terminal: docstrings are wrapped for the source."""

    def default(self, obj: Callable[..., Any] | None = None, **options: Any) -> Any:
        """Take a function as the command."""
        if inspect.isfunction(obj):
            obj.__doc__ = join_lines(obj.__doc__ or "")
        return super().default(obj, **options)


def join_lines(docstring: str) -> str:
    """A docstring with every paragraph and every argument on one line; indented code stays."""
    return re.sub(r"(?<=\S)\n(?: {8})?(?=\S)", " ", inspect.cleandoc(docstring))


app = VerbApp(
    name="clipset",
    help=join_lines("""Learn from sets of clips: better video features from any frozen backbone.

    A backbone is a network that turns a clip (a few frames of a video) into a feature (a vector).
    Frozen means that its weights are not changed.

    From a folder of videos to a report:

        clipset run VIDEOS --out DIR

    Each step is also a command of its own; `clipset COMMAND --help` shows an example. All settings:
    `clipset settings`. Every command also takes --seed and --device (listed where they have an
    effect), --json (print the result as JSON), --quiet (no progress) and --debug (traceback of an
    error)."""),
    version_flags=["--version"],
    help_format="plaintext",
    suppress_keyboard_interrupt=False,  # `main` prints what to do next
)


def show_result(result: Any, common: Common, lines: Iterable[str | Table]) -> None:
    """Print a result as JSON if requested, else as lines and tables."""
    from clipset.files import writing

    try:
        with writing("standard output"):
            if common.json:
                _print_json(result)
            else:
                print_lines(lines)
            sys.stdout.flush()
    except OutputError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else Python tries again when it ends
        raise


def _print_json(result: Any) -> None:
    import msgspec

    def plain(value: object) -> object:
        return name_text(value) if isinstance(value, Path) else str(value)

    json_text = msgspec.json.encode(result, enc_hook=plain).decode()
    if not (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf8"):
        json_text = re.sub(r"[^\x00-\x7f]+", lambda match: json.dumps(match[0])[1:-1], json_text)
    sys.stdout.write(f"{json_text}\n")


def print_lines(lines: Iterable[str | Table]) -> None:
    """Print lines and tables; names in them cannot move the cursor or begin another line."""
    from rich.console import Console

    for line in lines:
        if isinstance(line, str):
            sys.stdout.write(f"{visible(line)}\n")
        else:
            Console(markup=False, emoji=False, highlight=False).print(line)


def make_table(columns: Sequence[str | Column], rows: Iterable[Sequence[str]]) -> Table:
    """A table for `show_result`; its cells are text, never markup."""
    from rich.table import Table

    encoding = sys.stdout.encoding or "utf-8"
    table = Table(*columns)
    for row in rows:
        table.add_row(*(visible(cell).encode(encoding, ERRORS).decode(encoding) for cell in row))
    return table
