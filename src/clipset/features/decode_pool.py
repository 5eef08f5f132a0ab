"""Worker processes that decode videos: one that crashes or hangs costs only its video."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import IO

import msgspec

from clipset.clips.decode import DecodedClips, DecodeRequest, decode_video
from clipset.data.catalog import Video
from clipset.errors import StoreError
from clipset.features.decode_worker import (
    DecodeReply,
    DecodeTask,
    WorkerSetup,
    describe_error,
    is_transient,
)
from clipset.process.isolation import python_command

MEMORY_BYTES = 8 << 30  # of one worker; a video that needs more fails
PIPE_BYTES = 1 << 20  # the default pipe holds 1/16 of this
START_SECONDS = 5.0  # a worker usually starts and decodes its first video within this time
MAX_AHEAD = 1024  # videos that may be started after one that is not finished
COMMAND = python_command("clipset.features.decode_worker")


@dataclass(frozen=True, slots=True)
class DecodeResult:
    """One chunk of the video at `index`, or the reason why the video failed."""

    index: int
    clips: DecodedClips | None
    reason: str | None = None
    transient: bool = False

    @property
    def is_last(self) -> bool:
        """Whether no more chunks of this video follow."""
        return self.clips is None or self.clips.facts.chunk + 1 == self.clips.facts.num_chunks


@contextmanager
def decode_videos(
    videos: Sequence[Video], request: DecodeRequest, *, workers: int, timeout: float
) -> Iterator[Iterator[DecodeResult]]:
    """Decode videos in worker processes (0: in this one); results come as they are ready."""
    if workers == 0:
        yield (
            result
            for index, video in enumerate(videos)
            for result in decode_in_process(index, video, request)
        )
        return
    with closing(DecodePool(videos, request, min(workers, max(len(videos), 1)), timeout)) as pool:
        yield pool.results()


def decode_in_process(index: int, video: Video, request: DecodeRequest) -> Iterator[DecodeResult]:
    """Decode a video in this process, chunk by chunk."""
    try:
        for clips in decode_video(video.id, video.path, request, end=video.end):
            yield DecodeResult(index, clips)
            del clips  # free a chunk before the next one is decoded
    except Exception as error:
        yield DecodeResult(index, None, describe_error(error), is_transient(error))


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
        self._start_workers(1)

    def results(self) -> Iterator[DecodeResult]:
        """The results of all videos, as they are ready."""
        remaining = len(self.videos)
        while remaining:
            result = self._wait_for_result()
            if isinstance(result, BaseException):
                raise result
            if result.is_last:
                remaining -= 1
                with self._state:
                    self._unfinished.discard(result.index)
                    self._state.notify_all()
            yield result
            del result  # do not hold a video's clips while waiting for the next

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

    def _start_workers(self, count: int) -> None:
        for _ in range(count):
            worker = DecodeWorker(self.request, timeout=self.timeout)
            thread = threading.Thread(target=self._run, args=(worker,), daemon=True, name="decode")
            self.workers.append(worker)
            self.threads.append(thread)
            thread.start()

    def _grow(self) -> None:
        self._start_workers(min(len(self.workers), self.max_workers - len(self.workers)))

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

    def _next_video(self) -> int | None:
        """The index of the next video, once it may be started; None at the end."""
        with self._state:
            self._state.wait_for(lambda: self._closed or self._may_start())
            if self._closed or self._next_index == len(self.videos):
                return None
            index = self._next_index
            self._next_index += 1
            self._unfinished.add(index)
            return index

    def _may_start(self) -> bool:
        first = min(self._unfinished, default=self._next_index)
        return self._next_index == len(self.videos) or self._next_index - first <= MAX_AHEAD

    def _run(self, worker: DecodeWorker) -> None:
        """Decode videos with one worker until there are no more."""
        proven = False
        try:
            while (index := self._next_video()) is not None:
                for result in worker.decode(index, self.videos[index]):
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


class DecodeWorker:
    """A worker process that decodes one video at a time; replaced when it crashes or hangs."""

    def __init__(self, request: DecodeRequest, *, timeout: float) -> None:
        self.request, self.timeout = request, timeout
        self.process: subprocess.Popen[bytes] | None = None

    def decode(self, index: int, video: Video) -> Iterator[DecodeResult]:
        """Decode a video chunk by chunk; a failure is the last result."""
        result = self.decode_chunk(index, video)
        yield result
        while not result.is_last:
            result = self.decode_chunk(index, video, next_chunk=True)
            yield result

    def decode_chunk(self, index: int, video: Video, *, next_chunk: bool = False) -> DecodeResult:
        """Decode the first or the next chunk of a video; after the timeout the worker is killed."""
        try:
            process = self.process = self.process or self._start()
        except (EOFError, OSError) as error:
            raise StoreError(f"a worker process did not start ({error})") from error
        timed_out = threading.Event()

        def stop() -> None:
            timed_out.set()
            process.kill()

        timer = threading.Timer(self.timeout, stop)
        timer.start()
        try:
            return self._exchange(process, index, video, next_chunk)
        except (EOFError, OSError):
            code = process.wait()
            reason = f"the decoder crashed ({_describe_exit(code)})"
            if timed_out.is_set():
                reason = f"took longer than {self.timeout:g} s"
            return DecodeResult(index, None, reason, transient=True)
        finally:
            timer.cancel()
            if timed_out.is_set() or process.poll() is not None:
                self.close()

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

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"},
            process_group=0 if os.name == "posix" else None,  # Ctrl-C is for the parent
        )
        self.process = process  # it can be killed while it starts
        assert process.stdin is not None
        assert process.stdout is not None
        _widen(process.stdout)
        setup = WorkerSetup(self.request, memory_bytes=MEMORY_BYTES, timeout=self.timeout)
        process.stdin.write(msgspec.json.encode(setup) + b"\n")
        process.stdin.flush()
        if not process.stdout.readline().endswith(b"\n"):
            raise EOFError(_describe_exit(process.wait()))
        return process

    def _exchange(
        self, process: subprocess.Popen[bytes], index: int, video: Video, next_chunk: bool
    ) -> DecodeResult:
        """Send a task and receive its reply."""
        assert process.stdin is not None
        assert process.stdout is not None
        path = os.fsencode(video.path.absolute())
        task = DecodeTask(id=video.id, path=path, end=video.end, next_chunk=next_chunk)
        process.stdin.write(msgspec.json.encode(task) + b"\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line.endswith(b"\n"):
            raise EOFError
        reply = msgspec.json.decode(line, type=DecodeReply)
        if reply.facts is None:
            return DecodeResult(index, None, reply.reason, reply.transient)
        content = bytearray(reply.num_bytes)
        if process.stdout.readinto(content) != reply.num_bytes:  # type: ignore[attr-defined]
            raise EOFError
        return DecodeResult(index, DecodedClips.from_buffer(content, reply.facts, self.request))


def _widen(pipe: IO[bytes]) -> None:
    """Enlarge a pipe where the system allows it."""
    with suppress(ImportError, AttributeError, OSError):
        import fcntl

        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)


def _describe_exit(code: int) -> str:
    try:
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"
    except ValueError:
        return f"exit code {code}"
