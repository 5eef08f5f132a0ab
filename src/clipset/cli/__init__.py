"""The command `clipset`: one file for each verb, one library function behind each verb.

Nothing heavy is imported until a verb runs, so that `--help` answers at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from clipset.process.isolation import isolate_command

if Path(*sys.argv[:1]).stem in ("-m", "clipset"):  # `python -m clipset.cli`, or the script
    isolate_command()

from cyclopts import CycloptsError

from clipset.cli import (
    backbones,
    catalog,
    demo,
    embed,
    evaluate,
    extract,
    import_features,
    merge,
    predict,
    pretrain,
    repair,
    report,
    reproduce,
    run,
    settings,
    verify,
)
from clipset.cli.app import app
from clipset.errors import ClipsetError, OtherRankError, StreamError
from clipset.process.interrupts import recorded_interrupts, was_interrupted
from clipset.process.streams import guarded_streams, open_closed_streams
from clipset.text import visible

__all__ = [
    "app",
    "backbones",
    "catalog",
    "demo",
    "embed",
    "evaluate",
    "extract",
    "import_features",
    "main",
    "merge",
    "predict",
    "pretrain",
    "repair",
    "report",
    "reproduce",
    "run",
    "settings",
    "verify",
]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a verb; an expected error is one line and its exit code."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
    words = _complete(list(sys.argv[1:] if arguments is None else arguments))
    from clipset.progress import set_quiet

    set_quiet("--quiet" in words)
    silent = sys.stdout is None
    open_closed_streams()
    with recorded_interrupts(), guarded_streams():
        if silent and "--json" in words:
            _fail("standard output is closed, but --json prints to it; open it or omit --json")
        if any("\0" in word for word in words):
            _fail("an argument contains a NUL character, which is not allowed")
        raise SystemExit(_exit_code(words))


def _exit_code(words: list[str]) -> int | str | None:
    """Run a verb; its exception is gone afterwards, and with it what its frames held open."""
    try:
        _run(words)
    except SystemExit as stop:
        return stop.code
    return 0


def _run(words: list[str]) -> None:
    try:
        _call(words)
    except StreamError as error:
        if not str(error):  # the reader has what it needs, as `head` has
            raise SystemExit(1) from None
        _fail(str(error), code=1)
    except OtherRankError as error:
        if os.environ.get("RANK", "0") != "0":  # the first rank prints it
            raise SystemExit(2) from None
        _fail(str(error))
    except (ClipsetError, CycloptsError) as error:
        if was_interrupted():
            _stop()
        if "--debug" in words:
            raise
        _fail(str(error), getattr(error, "exit_code", 2))
    except KeyboardInterrupt:
        _stop()
    except OSError as error:
        if was_interrupted():
            _stop()
        if error.filename is None or "--debug" in words:
            raise
        _fail(f"{error.filename}: {(error.strerror or str(error)).lower()}")
    except Exception:
        if was_interrupted():  # what an interrupt in the middle of an import or a call became
            _stop()
        raise


def _call(words: list[str]) -> None:
    """Call the verb and flush its result."""
    try:
        app(words, exit_on_error=False, print_error=False)
    except SystemExit:
        sys.stdout.flush()
        raise
    sys.stdout.flush()


def _stop() -> NoReturn:
    _fail("stopped; run the same command again to resume", code=130)


def _complete(words: list[str]) -> list[str]:
    """`--ray` without an address means the cluster within this process."""
    return [
        "--ray=local" if word == "--ray" and after.startswith("-") else word
        for word, after in zip(words, [*words[1:], "-"], strict=False)
    ]


def _fail(message: str, code: int = 2) -> NoReturn:
    line = visible(" ".join(message.split()))
    sys.stderr.write(f"clipset: {line}\n")
    with suppress(StreamError):
        sys.stdout.flush()
    raise SystemExit(code)
