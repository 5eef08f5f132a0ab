"""The command `clipset`: one file for each verb, one library function behind each verb.

Nothing heavy is imported until a verb runs, so that `--help` answers at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from clipset.process.isolation import isolate_command

if Path(*sys.argv[:1]).stem in ("-m", "clipset"):  # `python -m clipset.cli`, or the script
    isolate_command()

from cyclopts import CycloptsError, UnusedCliTokensError

from clipset.cli.app import app
from clipset.errors import ClipsetError, OtherRankError, StreamError
from clipset.process.interrupts import recorded_interrupts, was_interrupted
from clipset.process.streams import guarded_streams, open_closed_streams
from clipset.text import visible

VERBS = (
    "backbones", "catalog", "demo", "embed", "estimate", "evaluate", "extract", "import_features",
    "merge", "predict", "pretrain", "pretrain_backbone", "repair", "report", "reproduce", "run",
    "search", "serve", "settings", "verify",
)  # fmt: skip
for verb in VERBS:
    import_module(f"clipset.cli.{verb}")  # adds its command to `app`


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a verb; an expected error is one line and its exit code."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
    words = list(sys.argv[1:] if arguments is None else arguments)
    words = [  # `--ray` without an address means the cluster within this process
        "--ray=local" if word == "--ray" and next_word.startswith("-") else word
        for word, next_word in zip(words, [*words[1:], "-"], strict=False)
    ]
    from clipset.progress import set_quiet

    set_quiet("--quiet" in words)
    is_silent = sys.stdout is None
    open_closed_streams()
    with recorded_interrupts(), guarded_streams():
        if is_silent and "--json" in words:
            exit_code = _fail(
                "standard output is closed, but --json prints to it; open it or omit --json"
            )
        elif "" in words:
            exit_code = _fail("an argument is empty; perhaps a variable of the shell is not set")
        elif any("\0" in word for word in words):
            exit_code = _fail("an argument contains a NUL character, which is not allowed")
        else:
            exit_code = _run(words)
        raise SystemExit(exit_code)


def _run(words: list[str]) -> int:
    """The exit code of a verb; its exception is gone afterwards, and what its frames held open."""
    exit_code = 0
    try:
        try:
            app(words, exit_on_error=False, print_error=False)
        except SystemExit as stop:
            exit_code = int(stop.code or 0)
        sys.stdout.flush()
    except StreamError as error:
        return _fail(str(error), 1) if str(error) else 1  # none if a reader such as `head` left
    except OtherRankError as error:  # the first rank prints it
        return _fail(str(error)) if os.environ.get("RANK", "0") == "0" else 2
    except (KeyboardInterrupt, Exception) as error:
        if isinstance(error, KeyboardInterrupt) or was_interrupted():
            return _fail("stopped; run the same command again to resume", 130)
        if "--debug" not in words:
            if isinstance(error, UnusedCliTokensError):
                unused_words = " ".join(error.unused_tokens or ())
                verb_words = " ".join(("clipset", *(error.command_chain or ())))
                return _fail(f"unexpected argument {unused_words!r}; see `{verb_words} --help`")
            if isinstance(error, ClipsetError | CycloptsError):
                return _fail(str(error), getattr(error, "exit_code", 2))
            if isinstance(error, OSError) and error.filename is not None:
                return _fail(f"{error.filename}: {(error.strerror or str(error)).lower()}")
        raise
    return exit_code


def _fail(message: str, code: int = 2) -> int:
    """Print an error as one line; returns the exit code."""
    error_line = visible(" ".join(message.split()))
    sys.stderr.write(f"clipset: {error_line}\n")
    with suppress(StreamError):
        sys.stdout.flush()
    return code
