"""Progress on standard error: a bar in a terminal, lines elsewhere, or nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from clipset.process.interrupts import raise_if_interrupted
from clipset.text import visible

LINE_SECONDS = 10.0  # without a terminal, at most one line in so many seconds

_quiet = False
_later_seconds = 0.0  # of the work after the current bar


def set_quiet(quiet: bool) -> None:
    """Show no progress at all, or show it again."""
    global _quiet
    _quiet = quiet


def is_quiet() -> bool:
    """Whether no progress is shown."""
    return _quiet


def set_later_work(seconds: float) -> None:
    """How long the work after the current step takes: bars show the time left for all of it."""
    global _later_seconds
    _later_seconds = seconds


def log(message: str) -> None:
    """Print one line on standard error."""
    if not _quiet and sys.stderr is not None:
        with suppress(OSError, ValueError):  # a closed terminal does not stop the work
            sys.stderr.write(f"{visible(message)}\n")
            sys.stderr.flush()


@contextmanager
def bar(title: str, total: int, unit: str, *, done: int = 0) -> Iterator[Callable[..., None]]:
    """`with bar("extracting", 240, "videos") as advance:`, then `advance()` for each video.

    `advance` takes the number of videos, a note, and a new total if it has changed. It raises
    KeyboardInterrupt if Ctrl-C was pressed and the exception got lost.
    """
    title, is_shown = visible(title), not _quiet and total > done
    is_terminal = is_shown and sys.stderr is not None and sys.stderr.isatty()
    done_before, num_items = done, total
    started_at = printed_at = time.monotonic()
    progress = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}", markup=False, style="progress.data.speed"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}", markup=False, style="progress.remaining"),
        TextColumn("{task.fields[note]}", markup=False),
        console=Console(stderr=True),
        refresh_per_second=4,
    )
    task = progress.add_task(title, total=total, completed=done, rate=unit, left="", note="")

    def advance(count: int = 1, note: str = "", total: int | None = None) -> None:
        nonlocal done, num_items, printed_at
        now = time.monotonic()
        done, num_items, seconds = done + count, total or num_items, max(now - started_at, 1e-9)
        rate = (done - done_before) / seconds
        left = ((num_items - done) / rate if rate else 0.0) + _later_seconds
        in_all = " in all" if _later_seconds else ""
        if is_terminal:
            progress.update(
                task, advance=count, total=num_items, rate=f"{unit} {rate:.1f}/s",
                left=f"{timedelta(seconds=int(left))} left{in_all}", note=visible(note),
            )  # fmt: skip
        elif is_shown and (now - printed_at >= LINE_SECONDS or done >= num_items):
            printed_at = now
            tail = f", {left:.0f} s left{in_all}" if done < num_items else f" in {seconds:.1f} s"
            note = f" ({note})" if note else ""
            log(f"{title}: {done}/{num_items} {unit}, {rate:.1f}/s{tail}{note}")
        raise_if_interrupted()

    with progress if is_terminal else nullcontext():
        yield advance
