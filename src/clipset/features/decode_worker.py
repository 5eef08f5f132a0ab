"""The worker process that decodes videos; DecodeWorker in decode_pool.py starts and drives it.

It reads one JSON line with its setup, then one JSON line for each chunk to decode, and answers each
with a JSON line followed by raw bytes. A codec that crashes or hangs ends this process and nothing
else.
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

MEMORY_BYTES = 8 << 30  # of one worker; a video that needs more fails

WorkerSetup = tuple[DecodeRequest, float]
"""Sent to a worker once: how to decode, and the seconds that a chunk may take."""
DecodeTask = tuple[str, bytes, float | None] | None
"""The id, path and end of a video to decode; None for the next chunk of the previous one."""


class DecodeReply(msgspec.Struct):
    """The result of a task; `num_bytes` follow the line if it succeeded."""

    facts: VideoFacts | None = None
    reason: str = ""
    transient: bool = False
    num_bytes: int = 0


def serve(tasks: BinaryIO, replies: BinaryIO) -> None:
    """Decode videos until the stream of tasks ends."""
    request, timeout = msgspec.json.decode(tasks.readline(), type=WorkerSetup)
    _limit_memory()
    _send(replies, DecodeReply())  # ready: the time limit of a video does not include the start
    chunks: Iterator[DecodedClips] = iter(())
    for line in tasks:
        task = msgspec.json.decode(line, type=DecodeTask)
        _limit_time(timeout + 10.0)  # the parent, if it still runs, is faster
        try:
            if task is not None:
                video_id, path, end = task
                chunks = iter(decode_video(video_id, Path(os.fsdecode(path)), request, end=end))
            clips = next(chunks)
        except Exception as error:
            failure = as_video_error(error)
            reason = escape_undecodable(str(failure))
            _send(replies, DecodeReply(reason=reason, transient=failure.transient))
        else:
            buffers = clips.to_buffers()
            _send(replies, DecodeReply(clips.facts, num_bytes=sum(map(len, buffers))), *buffers)
            del clips, buffers  # an idle worker holds no clips
        _limit_time(0.0)


def as_video_error(error: Exception) -> VideoError:
    """Why a video failed, in one line; errors of other libraries are named by their type."""
    if isinstance(error, VideoError):
        return error
    if isinstance(error, ClipsetError):
        return VideoError(str(error))
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return VideoError("needs more memory than one video may have")
    return VideoError(escape_undecodable(f"{type(error).__name__}: {error}"))


def _send(replies: BinaryIO, reply: DecodeReply, *buffers: memoryview) -> None:
    replies.write(msgspec.json.encode(reply) + b"\n")
    for buffer in buffers:
        replies.write(buffer)
    replies.flush()


def _limit_time(seconds: float) -> None:
    """End a worker that hangs even if its parent is gone; 0 stops the timer."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _limit_memory() -> None:
    """Make allocations beyond the limit fail, where the system supports that."""
    try:
        import resource
    except ImportError:  # Windows
        return
    hard_limit = resource.getrlimit(resource.RLIMIT_DATA)[1]
    unlimited = hard_limit == resource.RLIM_INFINITY
    limit = MEMORY_BYTES if unlimited else min(MEMORY_BYTES, hard_limit)
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
