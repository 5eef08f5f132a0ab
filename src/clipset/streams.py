"""Standard output and error that no text, no terminal and no reader can make fail halfway."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

from clipset.errors import StreamError
from clipset.text import ERRORS


def open_closed_streams() -> None:
    """Give each standard stream that is closed the null device.

    Else the next file to be opened would get its number, and what libraries and worker processes
    print would go into that file.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123


@contextmanager
def guarded_streams() -> Iterator[None]:
    """Within: characters that a stream lacks get stand-ins; a stream that fails is given up.

    Of standard output that is an StreamError, of standard error nothing is said: nobody hears it.
    """
    before = sys.stdout, sys.stderr
    with _encoding_anything(before[0]), _encoding_anything(before[1]):
        sys.stdout = cast(TextIO, _Output(before[0]))
        sys.stderr = cast(TextIO, _Messages(before[1]))
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before


class _Guarded:
    """A stream in all but what happens when it fails."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return int(self._stream.write(text))
        except OSError as error:
            self._fail(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._fail(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _fail(self, error: OSError) -> None:
        """Send what comes next, the interpreter's last flush too, to the null device."""
        del error
        with suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._stream.fileno())
            os.close(null)


class _Output(_Guarded):
    def _fail(self, error: OSError) -> None:
        super()._fail(error)
        if error.errno == errno.EPIPE:
            raise StreamError("") from None
        reason = (error.strerror or str(error)).lower()
        raise StreamError(
            f"cannot write to standard output: {reason}; the result is not shown, "
            f"but all files were written"
        ) from None


class _Messages(_Guarded):
    pass


@contextmanager
def _encoding_anything(stream: Any) -> Iterator[None]:
    """Have a stream write stand-ins and escapes for what its encoding lacks."""
    configure, before = getattr(stream, "reconfigure", None), getattr(stream, "errors", None)
    if configure is None or before is None:
        yield
        return
    with suppress(OSError):
        configure(errors=ERRORS)
    try:
        yield
    finally:
        with suppress(OSError, ValueError):
            configure(errors=before)
