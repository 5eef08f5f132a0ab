"""Worker processes that decode videos: one that crashes or hangs costs only its video."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from io import BufferedReader, BufferedWriter

import msgspec

from clipset.clips.decode import DecodedClips, DecodeRequest, decode_video
from clipset.data.catalog import Video
from clipset.errors import StoreError, VideoError
from clipset.features.decode_worker import (
    DecodeReply,
    DecodeTask,
    WorkerSetup,
    as_video_error,
)
from clipset.process.isolation import python_command

PIPE_BYTES = 1 << 20  # the default pipe holds 1/16 of this
START_SECONDS = 5.0  # a worker usually starts and decodes its first video within this time
MAX_AHEAD = 1024  # videos that may be started after one that is not finished
COMMAND = python_command("clipset.features.decode_worker")

DecodeResult = tuple[int, DecodedClips | VideoError]
"""The index of a video, and a chunk of it or the reason why it failed."""


@contextmanager
def decode_videos(
    videos: Sequence[Video], request: DecodeRequest, *, workers: int, timeout: float
) -> Iterator[Iterator[DecodeResult]]:
    """Decode videos in worker processes (0: in this one); results come as they are ready."""
    if workers == 0:
        yield decode_in_process(videos, request)
        return
    with closing(DecodePool(videos, request, min(workers, max(len(videos), 1)), timeout)) as pool:
        yield pool.results()


def decode_in_process(videos: Sequence[Video], request: DecodeRequest) -> Iterator[DecodeResult]:
    """Decode videos in this process, chunk by chunk."""
    for video_index, video in enumerate(videos):
        try:
            for clips in decode_video(video.id, video.path, request, end=video.end):
                yield video_index, clips
                del clips  # free a chunk before the next one is decoded
        except Exception as error:
            yield video_index, as_video_error(error)


class DecodePool:
    """One thread for each worker process: it takes the next video and queues the results.

    The pool starts with one worker and doubles their number whenever a result is waited for. No
    video is started more than `MAX_AHEAD` after one that is not finished, so that a slow video
    does not let finished ones pile up behind it.
    """

    def __init__(
        self, videos: Sequence[Video], request: DecodeRequest, max_workers: int, timeout: float
    ) -> None:
        self.videos, self.request, self.timeout = videos, request, timeout
        self.max_workers = max_workers
        self.queue: queue.Queue[DecodeResult | BaseException] = queue.Queue(maxsize=1)
        self.workers: list[DecodeWorker] = []
        self.threads: list[threading.Thread] = []
        self._state = threading.Condition()
        self._closed = False
        self._next_index = 0
        self._unfinished: set[int] = set()  # indices of videos that were started
        self._num_proven = 0  # workers that have decoded something
        self._grow()

    def results(self) -> Iterator[DecodeResult]:
        """The results of all videos, as they are ready."""
        remaining = len(self.videos)
        while remaining:
            result = self._wait_for_result()
            if isinstance(result, BaseException):
                raise result
            video_index, clips = result
            if isinstance(clips, VideoError) or clips.facts.is_last_chunk:
                remaining -= 1
                with self._state:
                    self._unfinished.discard(video_index)
                    self._state.notify_all()
            yield result
            del result, clips  # do not hold a video's clips while waiting for the next

    def close(self) -> None:
        """End the workers, finished or not."""
        with self._state:
            self._closed = True
            self._state.notify_all()
        while any(thread.is_alive() for thread in self.threads):
            for worker in self.workers:
                worker.kill()
            with suppress(queue.Empty):
                self.queue.get(timeout=0.05)

    def _grow(self) -> None:
        """Double the number of workers, up to the maximum."""
        count = min(max(len(self.workers), 1), self.max_workers - len(self.workers))
        for _ in range(count):
            worker = DecodeWorker(self.request, timeout=self.timeout)
            thread = threading.Thread(target=self._run, args=(worker,), daemon=True, name="decode")
            self.workers.append(worker)
            self.threads.append(thread)
            thread.start()

    def _wait_for_result(self) -> DecodeResult | BaseException:
        """The next result; more workers are started if there is none, but not all at once."""
        if self.queue.empty() and self._num_proven >= len(self.workers):
            self._grow()
        while len(self.workers) < self.max_workers:
            try:
                return self.queue.get(timeout=START_SECONDS)
            except queue.Empty:
                self._grow()
        return self.queue.get()

    def _run(self, worker: DecodeWorker) -> None:
        """Decode videos with one worker until there are no more."""
        proven = False
        try:
            while (video_index := self._next_video()) is not None:
                for result in worker.decode(video_index, self.videos[video_index]):
                    with self._state:
                        self._num_proven += not proven
                    proven = True
                    self.queue.put(result)
                    if self._closed:
                        return
        except BaseException as error:
            if not self._closed:
                self.queue.put(error)
        finally:
            worker.close()

    def _next_video(self) -> int | None:
        """The index of the next video, once it may be started; None at the end."""
        with self._state:
            self._state.wait_for(lambda: self._closed or self._may_start())
            if self._closed or self._next_index == len(self.videos):
                return None
            video_index = self._next_index
            self._next_index += 1
            self._unfinished.add(video_index)
            return video_index

    def _may_start(self) -> bool:
        first = min(self._unfinished, default=self._next_index)
        return self._next_index == len(self.videos) or self._next_index - first <= MAX_AHEAD


class DecodeWorker:
    """A worker process that decodes one video at a time; replaced when it crashes or hangs."""

    def __init__(self, request: DecodeRequest, *, timeout: float) -> None:
        self.request, self.timeout = request, timeout
        self.process: subprocess.Popen[bytes] | None = None

    def decode(self, video_index: int, video: Video) -> Iterator[DecodeResult]:
        """Decode a video chunk by chunk; a failure is the last result."""
        task: DecodeTask = (video.id, os.fsencode(video.path.absolute()), video.end)
        is_last = False
        try:
            while not is_last:
                clips = self._decode_chunk(task)
                task, is_last = None, clips.facts.is_last_chunk
                yield video_index, clips
                del clips  # free a chunk before the next one is decoded
        except VideoError as error:
            yield video_index, error

    def kill(self) -> None:
        """Kill the process from another thread, so that `decode` returns."""
        process = self.process
        if process is not None:
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

    def _decode_chunk(self, task: DecodeTask) -> DecodedClips:
        """Decode one chunk; a worker that takes longer than the timeout is killed."""
        try:
            process = self.process or self._start()
        except (EOFError, OSError) as error:
            raise StoreError(f"a worker process did not start ({error})") from error
        deadline = time.monotonic() + self.timeout
        timer = threading.Timer(self.timeout, process.kill)
        timer.start()
        try:
            reply, content = _exchange(process, task)
            if reply.facts is None:
                raise VideoError(reply.reason, transient=reply.transient)
            return DecodedClips.from_buffer(content, reply.facts, self.request)
        except (EOFError, OSError):  # its pipes are closed
            reason = f"the decoder crashed ({_describe_exit(process.wait())})"
            if time.monotonic() >= deadline:
                reason = f"took longer than {self.timeout:g} s"
            raise VideoError(reason, transient=True) from None
        finally:
            timer.cancel()
            if time.monotonic() >= deadline or process.poll() is not None:
                self.close()

    def _start(self) -> subprocess.Popen[bytes]:
        process = self.process = subprocess.Popen(  # it can be killed while it starts
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"},
            process_group=0 if os.name == "posix" else None,  # Ctrl-C is for the parent
        )
        with suppress(ImportError, AttributeError, OSError):  # not every system can
            import fcntl

            fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, PIPE_BYTES)  # type: ignore[arg-type]
        _exchange(process, (self.request, self.timeout))
        return process


def _exchange(
    process: subprocess.Popen[bytes], message: WorkerSetup | DecodeTask
) -> tuple[DecodeReply, bytearray]:
    """Send a message; receive the reply and the bytes that follow it."""
    assert isinstance(process.stdin, BufferedWriter)
    assert isinstance(process.stdout, BufferedReader)
    process.stdin.write(msgspec.json.encode(message) + b"\n")
    process.stdin.flush()
    line = process.stdout.readline()
    if not line.endswith(b"\n"):
        raise EOFError(_describe_exit(process.wait()))
    reply = msgspec.json.decode(line, type=DecodeReply)
    content = bytearray(reply.num_bytes)
    if process.stdout.readinto(content) != reply.num_bytes:
        raise EOFError(_describe_exit(process.wait()))
    return reply, content


def _describe_exit(code: int) -> str:
    try:
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"
    except ValueError:
        return f"exit code {code}"
