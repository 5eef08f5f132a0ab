"""Progress on standard error: a bar in a terminal, lines elsewhere, or nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

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


Advance = Callable[..., None]


@contextmanager
def bar(title: str, total: int, unit: str, *, done: int = 0) -> Iterator[Advance]:
    """`with bar("extracting", 240, "videos") as advance:`, then `advance()` for each video.

    `advance` takes the number of videos, a note, and a new total if it has changed.
    `advance` raises KeyboardInterrupt if Ctrl-C was pressed and the exception got lost.
    """
    with _display(visible(title), total, unit, done) as update:

        def advance(count: int = 1, note: str = "", total: int | None = None) -> None:
            update(count, note, total)
            raise_if_interrupted()

        yield advance


@contextmanager
def _display(title: str, total: int, unit: str, done: int) -> Iterator[Advance]:
    if _quiet or total <= done:
        yield _ignore
    elif sys.stderr is not None and sys.stderr.isatty():
        with _rich_bar(title, total, unit, done) as advance:
            yield advance
    else:
        yield _Lines(title, total, unit, done).advance


@contextmanager
def _rich_bar(title: str, total: int, unit: str, done: int) -> Iterator[Advance]:
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(unit),
        TimeElapsedColumn(),
        TextColumn("left"),
        _TimeLeft(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=4) as progress:
        task = progress.add_task(title, total=total, completed=done, note="")

        def advance(count: int = 1, note: str = "", total: int | None = None) -> None:
            progress.update(task, advance=count, note=note, total=total)

        yield advance


def _ignore(count: int = 1, note: str = "", total: int | None = None) -> None:
    """Progress that is not shown."""
    del count, note, total


class _Rate(ProgressColumn):
    """Items per second."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(
            f"{self.unit} {speed:.1f}/s" if speed else self.unit, style="progress.data.speed"
        )


class _TimeLeft(TimeRemainingColumn):
    """The time left for this step and the work after it."""

    def render(self, task: Task) -> Text:
        if task.time_remaining is None or not _later_seconds:
            return super().render(task)
        seconds = int(task.time_remaining + _later_seconds)
        return Text(f"{timedelta(seconds=seconds)} in all", style="progress.remaining")


class _Lines:
    """Prints the progress every few seconds, and once at the end."""

    def __init__(self, title: str, total: int, unit: str, done: int) -> None:
        self.title, self.total, self.unit = title, total, unit
        self.done = self.done_before = done
        self.started_at = self.printed_at = time.monotonic()

    def advance(self, count: int = 1, note: str = "", total: int | None = None) -> None:
        self.done += count
        self.total = total or self.total
        now = time.monotonic()
        if now - self.printed_at >= LINE_SECONDS or self.done >= self.total:
            self.printed_at = now
            seconds = max(now - self.started_at, 1e-9)
            rate = (self.done - self.done_before) / seconds
            left = (self.total - self.done) / rate if rate else 0.0
            in_all = " in all" if _later_seconds else ""
            tail = f", {left + _later_seconds:.0f} s left{in_all}"
            tail = tail if self.done < self.total else f" in {seconds:.1f} s"
            note = f" ({note})" if note else ""
            log(f"{self.title}: {self.done}/{self.total} {self.unit}, {rate:.1f}/s{tail}{note}")
