"""Ctrl-C that cannot get lost.

Python raises KeyboardInterrupt wherever it happens to be. In a finaliser or in a callback of a
library, the exception is printed and dropped. So an interrupt is also recorded, and every loop with
a progress bar checks for it after each step.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_interrupted = False


@contextmanager
def recorded_interrupts() -> Iterator[None]:
    """Record Ctrl-C, besides raising KeyboardInterrupt; for the main thread.

    Ignored interrupts (background jobs) and other handlers are left alone.
    """
    global _interrupted
    _interrupted = False
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _record)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def was_interrupted() -> bool:
    """Whether Ctrl-C was pressed since `recorded_interrupts` began."""
    return _interrupted


def raise_if_interrupted() -> None:
    """Raise a KeyboardInterrupt that got lost."""
    if _interrupted:
        raise KeyboardInterrupt


def _record(_number: int, _frame: FrameType | None) -> None:
    global _interrupted
    _interrupted = True
    raise KeyboardInterrupt
