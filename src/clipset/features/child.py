"""Cutter: a child process that cuts videos, replaced when it hangs or crashes."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

import msgspec

from clipset.data.catalog import Video
from clipset.errors import StoreError
from clipset.features.cutting import CutRequest, CutVideo, from_buffer
from clipset.features.worker import Answer, Job, Order
from clipset.isolation import python_command

MEMORY_BYTES = 8 << 30  # what one worker may have; a video that wants more fails
PIPE_BYTES = 1 << 20  # clips are large; a usual pipe takes 1/16 of this at a time
COMMAND = python_command("clipset.features.worker")


@dataclass(frozen=True, slots=True)
class Outcome:
    """A video that was cut, or the reason why it was not."""

    place: int
    cut: CutVideo | None
    reason: str | None = None
    transient: bool = False

    @property
    def last(self) -> bool:
        """Whether there is nothing more to come of this video."""
        return self.cut is None or self.cut.facts.piece + 1 == self.cut.facts.pieces


class Cutter:
    """Sends videos to one worker process, one after the other, and watches it."""

    def __init__(self, request: CutRequest, *, timeout: float) -> None:
        self.request, self.timeout = request, timeout
        self.child: subprocess.Popen[bytes] | None = None

    def cut(self, place: int, video: Video) -> Iterator[Outcome]:
        """The pieces of a video, usually one; nothing more comes of one that fails."""
        outcome = self.cut_piece(place, video)
        yield outcome
        while not outcome.last:
            outcome = self.cut_piece(place, video, more=True)
            yield outcome

    def cut_piece(self, place: int, video: Video, *, more: bool = False) -> Outcome:
        """Order a video's first piece, or its next one; a worker that takes too long is killed."""
        try:
            child = self.child = self.child or self._start()
        except (EOFError, OSError) as error:
            raise StoreError(f"a worker process did not start ({error})") from error
        late = threading.Event()

        def end_it() -> None:
            late.set()
            child.kill()

        watch = threading.Timer(self.timeout, end_it)
        watch.start()
        try:
            return self._answer(child, place, video, more)
        except (EOFError, OSError):
            code = child.wait()
            if late.is_set():
                return Outcome(place, None, f"took longer than {self.timeout:g} s", True)
            return Outcome(place, None, f"the decoder crashed ({_name_of_exit(code)})", True)
        finally:
            watch.cancel()
            if late.is_set() or child.poll() is not None:
                self.close()

    def kill(self) -> None:
        """End the worker from another thread, so that `cut` comes back."""
        child = self.child
        if child is not None:
            child.kill()

    def close(self) -> None:
        """End the worker."""
        child, self.child = self.child, None
        if child is None:
            return
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def _start(self) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"},
            process_group=0 if os.name == "posix" else None,  # Ctrl-C is for the parent
        )
        assert child.stdin is not None
        job = Job(request=self.request, memory_bytes=MEMORY_BYTES, timeout=self.timeout)
        assert child.stdout is not None
        self.child = child  # so that it can be killed while it starts
        _widen(child.stdout)
        child.stdin.write(msgspec.json.encode(job) + b"\n")
        child.stdin.flush()
        if not child.stdout.readline().endswith(b"\n"):
            raise EOFError(_name_of_exit(child.wait()))
        return child

    def _answer(
        self, child: subprocess.Popen[bytes], place: int, video: Video, more: bool
    ) -> Outcome:
        assert child.stdin is not None
        assert child.stdout is not None
        path = os.fsencode(video.path.absolute())
        order = Order(id=video.id, path=path, end=video.end, more=more)
        child.stdin.write(msgspec.json.encode(order) + b"\n")
        child.stdin.flush()
        line = child.stdout.readline()
        if not line.endswith(b"\n"):
            raise EOFError
        answer = msgspec.json.decode(line, type=Answer)
        if answer.facts is None:
            return Outcome(place, None, answer.reason, answer.transient)
        content = bytearray(answer.bytes)
        if child.stdout.readinto(content) != answer.bytes:  # type: ignore[attr-defined]
            raise EOFError
        return Outcome(place, from_buffer(content, answer.facts, self.request))


def _widen(pipe: IO[bytes]) -> None:
    """Let a pipe take more at a time where the system can do that and allows it."""
    with suppress(ImportError, AttributeError, OSError):
        import fcntl

        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)


def _name_of_exit(code: int) -> str:
    try:
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"
    except ValueError:
        return f"exit code {code}"
