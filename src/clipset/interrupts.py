"""Ctrl-C that cannot get lost.

Python raises KeyboardInterrupt wherever it happens to be. In a finaliser or in a callback of a
library, the exception is printed and dropped, and the work would go on. So a press is also noted,
and every loop with a progress bar asks after each step whether there was one.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_pressed = False


@contextmanager
def noted_interrupts() -> Iterator[None]:
    """Note each press of Ctrl-C, besides raising KeyboardInterrupt; for the main thread.

    Where interrupts are ignored (a job in the background) or somebody else takes them, they stay
    as they are.
    """
    global _pressed
    _pressed = False
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def was_interrupted() -> bool:
    """Whether Ctrl-C was pressed since `noted_interrupts` began."""
    return _pressed


def raise_if_interrupted() -> None:
    """Raise the KeyboardInterrupt that got lost, if one did."""
    if _pressed:
        raise KeyboardInterrupt


def _note(number: int, frame: FrameType | None) -> None:
    global _pressed
    del number, frame
    _pressed = True
    raise KeyboardInterrupt
