"""The worker process that decodes videos; DecodeWorker in decode_pool.py starts and drives it.

It reads one JSON line with its setup, then one JSON line for each task, and answers each task with
a JSON line followed by raw bytes. A codec that crashes or hangs ends this process and nothing else.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from clipset.clips.decode import DecodedClips, DecodeRequest, VideoFacts, decode_video
from clipset.errors import ClipsetError, VideoError
from clipset.text import escape_undecodable


class WorkerSetup(msgspec.Struct):
    """Sent to a worker once, when it starts."""

    request: DecodeRequest
    memory_bytes: int
    timeout: float


class DecodeTask(msgspec.Struct):
    """One video to decode, or the next chunk of the previous one."""

    id: str
    path: bytes  # file names need not be text
    end: float | None = None
    next_chunk: bool = False


class DecodeReply(msgspec.Struct):
    """The result of a task; `num_bytes` follow the line if it succeeded."""

    facts: VideoFacts | None = None
    reason: str | None = None
    transient: bool = False
    num_bytes: int = 0


def serve(tasks: BinaryIO, replies: BinaryIO) -> None:
    """Decode videos until the stream of tasks ends."""
    setup = msgspec.json.decode(tasks.readline(), type=WorkerSetup)
    _limit_memory(setup.memory_bytes)
    _send(replies, DecodeReply())  # ready: the time limit of a video does not include the start
    chunks: Iterator[DecodedClips] = iter(())
    for line in tasks:
        task = msgspec.json.decode(line, type=DecodeTask)
        _limit_time(setup.timeout)
        try:
            if not task.next_chunk:
                path = Path(os.fsdecode(task.path))
                chunks = iter(decode_video(task.id, path, setup.request, end=task.end))
            clips = next(chunks)
        except Exception as error:
            reason = escape_undecodable(describe_error(error))
            _send(replies, DecodeReply(reason=reason, transient=is_transient(error)))
        else:
            buffers = clips.to_buffers()
            _send(replies, DecodeReply(clips.facts, num_bytes=sum(map(len, buffers))), buffers)
            del clips, buffers  # an idle worker holds no clips
        _limit_time(0.0)


def _send(replies: BinaryIO, reply: DecodeReply, buffers: list[memoryview] | None = None) -> None:
    replies.write(msgspec.json.encode(reply) + b"\n")
    for buffer in buffers or []:
        replies.write(buffer)
    replies.flush()


def describe_error(error: Exception) -> str:
    """Why a video failed, in one line; errors of other libraries are named by their type."""
    if isinstance(error, ClipsetError):
        return str(error)
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return "needs more memory than one video may have"
    return escape_undecodable(f"{type(error).__name__}: {error}")


def is_transient(error: Exception) -> bool:
    """Whether a retry may succeed."""
    return isinstance(error, VideoError) and error.transient


def _limit_time(seconds: float) -> None:
    """End a worker that hangs even if its parent is gone; 0 stops the timer."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds + 10.0 if seconds else 0.0)


def _limit_memory(limit: int) -> None:
    """Make allocations beyond the limit fail, where the system supports that."""
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
    """Serve on standard input and output; what libraries print goes to standard error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import torch

    torch.set_num_threads(1)
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, replies)


if __name__ == "__main__":
    main()
