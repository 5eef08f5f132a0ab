"""The command `clipset`: one verb is one function that calls one library function.

Nothing heavy is imported until a verb runs, so that `--help` answers at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from clipset.isolation import isolate_command

if Path(*sys.argv[:1]).stem in ("-m", "clipset"):  # `python -m clipset.cli`, or the script
    isolate_command()

from cyclopts import CycloptsError

from clipset.cli import backbones, features, learning, reproduce, use, videos, walk
from clipset.cli.app import app
from clipset.errors import ClipsetError, OtherRankError
from clipset.interrupts import noted_interrupts, was_interrupted

__all__ = ["app", "backbones", "features", "learning", "main", "reproduce", "use", "videos", "walk"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a verb. What clipset says on purpose is one line and exit code 2."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
    words = _complete(list(sys.argv[1:] if arguments is None else arguments))
    from clipset.progress import set_quiet

    set_quiet("--quiet" in words)
    with noted_interrupts():
        _run(words)


def _run(words: list[str]) -> None:
    try:
        app(words, exit_on_error=False, print_error=False)
    except OtherRankError as error:
        if os.environ.get("RANK", "0") != "0":  # the first rank says it
            raise SystemExit(2) from None
        _complain(str(error))
    except (ClipsetError, CycloptsError) as error:
        if was_interrupted():
            _stop()
        if "--debug" in words:
            raise
        _complain(str(error))
    except KeyboardInterrupt:
        _stop()
    except BrokenPipeError:
        raise SystemExit(1) from None
    except Exception:
        if was_interrupted():  # what an interrupt in the middle of an import or a call became
            _stop()
        raise


def _stop() -> NoReturn:
    _complain("stopped; run the same command again to go on", code=130)


def _complete(words: list[str]) -> list[str]:
    """`--ray` without an address means the cluster within this process."""
    return [
        "--ray=local" if word == "--ray" and after.startswith("-") else word
        for word, after in zip(words, [*words[1:], "-"], strict=False)
    ]


def _complain(message: str, code: int = 2) -> NoReturn:
    line = " ".join(message.split())
    sys.stderr.write(f"clipset: {line}\n")
    raise SystemExit(code)
