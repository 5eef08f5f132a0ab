"""Standard streams that survive any text, any terminal and a reader that leaves."""

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
    """Open the null device for closed standard streams.

    Else the next opened file would get their number, and the output of libraries and worker
    processes would go into that file.
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
    """Within: unencodable characters are replaced, and a failing stream is closed.

    A failing standard output raises StreamError; a failing standard error is ignored.
    """
    stdout, stderr = sys.stdout, sys.stderr
    with _encoding_anything(stdout), _encoding_anything(stderr):
        sys.stdout = cast(TextIO, _GuardedStream(stdout, is_output=True))
        sys.stderr = cast(TextIO, _GuardedStream(stderr, is_output=False))
        try:
            yield
        finally:
            sys.stdout, sys.stderr = stdout, stderr


class _GuardedStream:
    """A stream whose output goes to the null device after an error."""

    def __init__(self, stream: Any, *, is_output: bool) -> None:
        self._stream, self._is_output = stream, is_output

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
        """Redirect further output, also the interpreter's last flush; raise StreamError."""
        with suppress(OSError, ValueError):
            null_device = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null_device, self._stream.fileno())
            os.close(null_device)
        if not self._is_output:
            return
        if error.errno == errno.EPIPE:
            raise StreamError("") from None
        reason = (error.strerror or str(error)).lower()
        raise StreamError(
            f"cannot write to standard output: {reason}; the result is not printed, "
            f"but all files were written"
        ) from None


@contextmanager
def _encoding_anything(stream: Any) -> Iterator[None]:
    """Replace or escape characters that the stream's encoding lacks."""
    error_handler = getattr(stream, "errors", None)
    if error_handler is None or not hasattr(stream, "reconfigure"):
        yield
        return
    with suppress(OSError):
        stream.reconfigure(errors=ERRORS)
    try:
        yield
    finally:
        with suppress(OSError, ValueError):
            stream.reconfigure(errors=error_handler)
