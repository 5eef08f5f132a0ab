"""Worker processes that decode and cut videos, and a watch over them."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass

import msgspec

from clipset.errors import ClipsetError
from clipset.features.cutting import CutRequest, CutVideo, cut_video, from_buffer
from clipset.features.worker import Answer, Job, Order
from clipset.videos.catalog import Video

MEMORY_BYTES = 8 << 30  # what one worker may have; a video that wants more fails


@dataclass(frozen=True, slots=True)
class Outcome:
    """A video that was cut, or the reason why it was not."""

    place: int
    cut: CutVideo | None
    reason: str | None = None


@contextmanager
def cut_videos(
    videos: Sequence[Video], request: CutRequest, *, workers: int, timeout: float
) -> Iterator[Iterator[Outcome]]:
    """Cut videos in worker processes (0: in this one); outcomes come as they are ready."""
    if workers == 0:
        yield (_cut_here(place, video, request) for place, video in enumerate(videos))
        return
    pool = _Pool(videos, request, min(workers, max(len(videos), 1)), timeout)
    with closing(pool):
        yield pool.outcomes()


def _cut_here(place: int, video: Video, request: CutRequest) -> Outcome:
    try:
        return Outcome(place, cut_video(video.id, video.path, request, end=video.end))
    except ClipsetError as error:
        return Outcome(place, None, str(error))


class _Pool:
    """One thread for each worker process: it sends an order, waits for the answer, hands it on."""

    def __init__(
        self, videos: Sequence[Video], request: CutRequest, workers: int, timeout: float
    ) -> None:
        self.videos, self.request, self.timeout = videos, request, timeout
        self.todo = iter(enumerate(videos))
        self.lock = threading.Lock()
        self.closed = threading.Event()
        self.ready: queue.Queue[Outcome | BaseException] = queue.Queue(maxsize=1)
        self.threads = [
            threading.Thread(target=self._drive, daemon=True, name=f"cut-{number}")
            for number in range(workers)
        ]
        self.children: set[subprocess.Popen[bytes]] = set()
        for thread in self.threads:
            thread.start()

    def outcomes(self) -> Iterator[Outcome]:
        """One outcome for each video."""
        for _ in self.videos:
            outcome = self.ready.get()
            if isinstance(outcome, BaseException):
                raise outcome
            yield outcome

    def close(self) -> None:
        """End the workers, finished or not."""
        self.closed.set()
        for child in list(self.children):
            child.kill()
        while any(thread.is_alive() for thread in self.threads):
            try:
                self.ready.get(timeout=0.05)
            except queue.Empty:
                continue

    def _drive(self) -> None:
        child = None
        try:
            while not self.closed.is_set():
                with self.lock:
                    place, video = next(self.todo, (None, None))
                if place is None or video is None:
                    break
                child = child or self._start()
                outcome = self._ask(child, place, video)
                if child.poll() is not None:
                    self._forget(child)
                    child = None
                self.ready.put(outcome)
        except BaseException as error:
            if not self.closed.is_set():
                self.ready.put(error)
        finally:
            if child is not None:
                self._forget(child)

    def _start(self) -> subprocess.Popen[bytes]:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        child = subprocess.Popen(
            [sys.executable, "-m", "clipset.features.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        self.children.add(child)
        assert child.stdin is not None
        job = Job(request=self.request, memory_bytes=MEMORY_BYTES)
        child.stdin.write(msgspec.json.encode(job) + b"\n")
        return child

    def _forget(self, child: subprocess.Popen[bytes]) -> None:
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        self.children.discard(child)

    def _ask(self, child: subprocess.Popen[bytes], place: int, video: Video) -> Outcome:
        """Send one order and read the answer; the watch kills a worker that takes too long."""
        late = threading.Event()

        def end_it() -> None:
            late.set()
            child.kill()

        watch = threading.Timer(self.timeout, end_it)
        watch.start()
        try:
            return self._answer(child, place, video)
        except (EOFError, OSError):
            code = child.wait()
            if late.is_set():
                return Outcome(place, None, f"took longer than {self.timeout:g} s")
            return Outcome(place, None, f"the decoder crashed ({_name_of_exit(code)})")
        finally:
            watch.cancel()

    def _answer(self, child: subprocess.Popen[bytes], place: int, video: Video) -> Outcome:
        assert child.stdin is not None
        assert child.stdout is not None
        order = Order(id=video.id, path=os.fsencode(video.path.absolute()), end=video.end)
        child.stdin.write(msgspec.json.encode(order) + b"\n")
        child.stdin.flush()
        line = child.stdout.readline()
        if not line.endswith(b"\n"):
            raise EOFError
        answer = msgspec.json.decode(line, type=Answer)
        if answer.facts is None:
            return Outcome(place, None, answer.reason)
        content = bytearray(answer.bytes)
        if child.stdout.readinto(content) != answer.bytes:  # type: ignore[attr-defined]
            raise EOFError
        return Outcome(place, from_buffer(content, answer.facts, self.request))


def _name_of_exit(code: int) -> str:
    try:
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"
    except ValueError:
        return f"exit code {code}"
