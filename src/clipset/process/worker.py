"""A worker process that answers one message at a time: one that crashes or hangs is replaced.

The parent sends a JSON line with the setup, then one JSON line for each message. The worker answers
each with a JSON line, which raw bytes may follow. A codec that crashes ends the worker and nothing
else.
"""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from io import BufferedReader, BufferedWriter
from typing import Any, BinaryIO

import msgspec

from clipset.errors import ClipsetError, StoreError, VideoError
from clipset.text import escape_undecodable

PIPE_BYTES = 1 << 20  # the default pipe holds 1/16 of this
MEMORY_BYTES = 8 << 30  # of one worker; a video that needs more fails

Answer = tuple[Any, Sequence[memoryview]]
"""What a worker answers to a message: a value for JSON, and bytes."""


class Reply(msgspec.Struct):
    """The line of an answer; `num_bytes` follow it. `reason` says why there is none."""

    value: msgspec.Raw = msgspec.Raw(b"null")
    reason: str | None = None
    transient: bool = False
    num_bytes: int = 0


class WorkerProcess:
    """Starts a worker with the first message, kills it after `timeout` seconds of work."""

    def __init__(self, command: Sequence[str], setup: Any, *, timeout: float) -> None:
        self.command, self.setup, self.timeout = command, setup, timeout
        self.process: subprocess.Popen[bytes] | None = None

    def call(self, message: Any) -> tuple[msgspec.Raw, bytearray]:
        """The answer to a message; VideoError if the worker has a reason, crashes or hangs."""
        try:
            process = self.process or self._start()
        except (EOFError, OSError) as error:
            raise StoreError(f"a worker process did not start ({error})") from error
        end_time = time.monotonic() + self.timeout
        timer = threading.Timer(self.timeout, process.kill)
        timer.start()
        try:
            reply, content = _exchange(process, message)
        except (EOFError, OSError):  # its pipes are closed
            reason = f"the decoder crashed ({_describe_exit(process.wait())})"
            if time.monotonic() >= end_time:
                reason = f"took longer than {self.timeout:g} s"
            raise VideoError(reason, transient=True) from None
        finally:
            timer.cancel()
            if time.monotonic() >= end_time or process.poll() is not None:
                self.close()
        if reply.reason is not None:
            raise VideoError(reply.reason, transient=reply.transient)
        return reply.value, content

    def kill(self) -> None:
        """Kill the process from another thread, so that `call` returns."""
        if (process := self.process) is not None:
            process.kill()

    def close(self) -> None:
        """End the process."""
        process, self.process = self.process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def _start(self) -> subprocess.Popen[bytes]:
        process = self.process = subprocess.Popen(  # it can be killed while it starts
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"},
            process_group=0,  # Ctrl-C is for the parent
        )
        with suppress(AttributeError, OSError):  # not every system can
            fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, PIPE_BYTES)  # type: ignore[arg-type]
        _exchange(process, (self.setup, self.timeout))
        return process


def _exchange(process: subprocess.Popen[bytes], message: Any) -> tuple[Reply, bytearray]:
    """Send a message; receive the reply and the bytes that follow it."""
    assert isinstance(process.stdin, BufferedWriter)
    assert isinstance(process.stdout, BufferedReader)
    process.stdin.write(msgspec.json.encode(message) + b"\n")
    process.stdin.flush()
    line = process.stdout.readline()
    if not line.endswith(b"\n"):
        raise EOFError(_describe_exit(process.wait()))
    reply = msgspec.json.decode(line, type=Reply)
    content = bytearray(reply.num_bytes)
    if process.stdout.readinto(content) != reply.num_bytes:
        raise EOFError(_describe_exit(process.wait()))
    return reply, content


def _describe_exit(code: int) -> str:
    try:
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"
    except ValueError:
        return f"exit code {code}"


def answer_messages(make_handler: Callable[[bytes], Callable[[bytes], Answer]]) -> None:
    """Be a worker: answer messages on standard input until it ends.

    `make_handler` takes the setup and returns what answers a message, both as JSON. What libraries
    print goes to standard error.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    messages, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    setup_line, timeout = msgspec.json.decode(messages.readline(), type=tuple[msgspec.Raw, float])
    handle = make_handler(bytes(setup_line))
    hard_limit = resource.getrlimit(resource.RLIMIT_DATA)[1]
    memory = MEMORY_BYTES if hard_limit == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard_limit)
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))  # beyond it, allocations fail
    _send(replies, Reply())  # ready: the time limit of a message does not include the start
    for line in messages:
        # A worker that hangs ends even if its parent is gone; a parent that runs is faster.
        signal.setitimer(signal.ITIMER_REAL, timeout + 10.0)
        try:
            value, buffers = handle(line)
        except Exception as error:
            failure = as_video_error(error)
            reason = escape_undecodable(str(failure))
            _send(replies, Reply(reason=reason, transient=failure.transient))
        else:
            line_value = msgspec.Raw(msgspec.json.encode(value))
            _send(replies, Reply(line_value, num_bytes=sum(map(len, buffers))), *buffers)
            del value, buffers  # an idle worker holds no pixels
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def as_video_error(error: Exception) -> VideoError:
    """Why a video failed, in one line; errors of other libraries are named by their type."""
    if isinstance(error, VideoError):
        return error
    if isinstance(error, ClipsetError):
        return VideoError(str(error))
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return VideoError("needs more memory than one video may have")
    return VideoError(escape_undecodable(f"{type(error).__name__}: {error}"))


def _send(replies: BinaryIO, reply: Reply, *buffers: memoryview) -> None:
    try:
        replies.write(msgspec.json.encode(reply) + b"\n")
        for buffer in buffers:
            replies.write(buffer)
        replies.flush()
    except BrokenPipeError:
        os._exit(1)  # the parent is gone: nobody to tell
