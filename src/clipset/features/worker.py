"""The child process that reads videos: clipset.features.worker, started and driven by child.py.

It reads one JSON line with the request, then one JSON line for each video, and answers each with a
JSON line followed by raw bytes. A codec that crashes or hangs ends this process and nothing else.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from clipset.errors import ClipsetError, VideoError
from clipset.features.cutting import CutFacts, CutRequest, CutVideo, cut_video, to_buffers
from clipset.text import escape_undecodable


class Job(msgspec.Struct):
    """What a worker is told once."""

    request: CutRequest
    memory_bytes: int
    timeout: float


class Order(msgspec.Struct):
    """One video to cut, or the next piece of the one before."""

    id: str
    path: bytes  # names of files need not be text
    end: float | None = None
    more: bool = False


class Answer(msgspec.Struct):
    """What became of it; `bytes` follow the line if it went well."""

    facts: CutFacts | None = None
    reason: str | None = None
    transient: bool = False
    bytes: int = 0


def serve(orders: BinaryIO, answers: BinaryIO) -> None:
    """Cut videos until there are no more orders."""
    job = msgspec.json.decode(orders.readline(), type=Job)
    _limit_memory(job.memory_bytes)
    _send(answers, Answer())  # ready: the time of a video does not begin before
    pieces: Iterator[CutVideo] = iter(())
    for line in orders:
        order = msgspec.json.decode(line, type=Order)
        _limit_time(job.timeout)
        try:
            if not order.more:
                path = Path(os.fsdecode(order.path))
                pieces = iter(cut_video(order.id, path, job.request, end=order.end))
            cut = next(pieces)
        except Exception as error:
            reason = escape_undecodable(describe_error(error))
            _send(answers, Answer(reason=reason, transient=is_transient(error)))
        else:
            buffers = to_buffers(cut)
            _send(answers, Answer(facts=cut.facts, bytes=sum(map(len, buffers))), buffers)
            del cut, buffers  # a worker that waits holds no clips
        _limit_time(0.0)


def _send(answers: BinaryIO, answer: Answer, buffers: list[memoryview] | None = None) -> None:
    answers.write(msgspec.json.encode(answer) + b"\n")
    for buffer in buffers or []:
        answers.write(buffer)
    answers.flush()


def describe_error(error: Exception) -> str:
    """Why a video failed, in one line; what is not ours is named by its type."""
    if isinstance(error, ClipsetError):
        return str(error)
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return "needs more memory than one video may have"
    return escape_undecodable(f"{type(error).__name__}: {error}")


def is_transient(error: Exception) -> bool:
    """Whether the cause may be gone at the next try."""
    return isinstance(error, VideoError) and error.transient


def _limit_time(seconds: float) -> None:
    """End a worker that hangs even if nobody watches it any more; 0: it has nothing to do."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds + 10.0 if seconds else 0.0)


def _limit_memory(limit: int) -> None:
    """Let a video that asks for too much fail by itself, where the system can do that."""
    try:
        import resource
    except ImportError:  # Windows
        return
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard) if limit else hard
    if limit:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def main() -> None:
    """Keep standard output for answers: whatever a library prints goes to standard error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import torch

    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
