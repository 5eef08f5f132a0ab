"""Several cutters at work, one thread for each."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

from clipset.data.catalog import Video
from clipset.features.child import Cutter, Outcome
from clipset.features.cutting import CutRequest, cut_video
from clipset.features.worker import describe_error, is_transient

PATIENCE = 5.0  # seconds in which a worker starts up and cuts its first video, usually


@contextmanager
def cut_videos(
    videos: Sequence[Video], request: CutRequest, *, workers: int, timeout: float
) -> Iterator[Iterator[Outcome]]:
    """Cut videos in worker processes (0: in this one); outcomes come as they are ready."""
    if workers == 0:
        yield (
            outcome
            for place, video in enumerate(videos)
            for outcome in cut_here(place, video, request)
        )
        return
    pool = _Pool(videos, request, min(workers, max(len(videos), 1)), timeout)
    with closing(pool):
        yield pool.outcomes()


def cut_here(place: int, video: Video, request: CutRequest) -> Iterator[Outcome]:
    """The pieces of a video, usually one, cut in this process."""
    try:
        for cut in cut_video(video.id, video.path, request, end=video.end):
            yield Outcome(place, cut)
            del cut  # do not hold a piece while the next one is cut
    except Exception as error:
        yield Outcome(place, None, describe_error(error), is_transient(error))


class _Pool:
    """Each thread takes the next video, has its cutter cut it, and hands the outcome on.

    It begins with one worker. Whenever their outcomes have to be waited for, there are twice as
    many: those that would only wait themselves are never started.
    """

    def __init__(
        self, videos: Sequence[Video], request: CutRequest, workers: int, timeout: float
    ) -> None:
        self.videos = videos
        self.todo = iter(enumerate(videos))
        self.lock = threading.Lock()
        self.closed = threading.Event()
        self.ready: queue.Queue[Outcome | BaseException] = queue.Queue(maxsize=1)
        self.request, self.timeout, self.most = request, timeout, workers
        self.cutters: list[Cutter] = []
        self.threads: list[threading.Thread] = []
        self.proved = 0  # cutters that have cut something
        self._start(1)

    def _start(self, count: int) -> None:
        for _ in range(count):
            cutter = Cutter(self.request, timeout=self.timeout)
            thread = threading.Thread(target=self._drive, args=(cutter,), daemon=True, name="cut")
            self.cutters.append(cutter)
            self.threads.append(thread)
            thread.start()

    def _grow(self) -> None:
        self._start(min(len(self.cutters), self.most - len(self.cutters)))

    def _next(self) -> Outcome | BaseException:
        """Wait for an outcome; have more workers if there is none, but let them start up first."""
        if self.ready.empty() and self.proved >= len(self.cutters):
            self._grow()
        while len(self.cutters) < self.most:
            try:
                return self.ready.get(timeout=PATIENCE)
            except queue.Empty:
                self._grow()
        return self.ready.get()

    def outcomes(self) -> Iterator[Outcome]:
        """The outcomes of all videos, as they come."""
        left = len(self.videos)
        while left:
            outcome = self._next()
            if isinstance(outcome, BaseException):
                raise outcome
            left -= outcome.last
            yield outcome
            del outcome  # do not hold a video's clips while waiting for the next

    def close(self) -> None:
        """End the workers, finished or not."""
        self.closed.set()
        while any(thread.is_alive() for thread in self.threads):
            for cutter in self.cutters:
                cutter.kill()
            try:
                self.ready.get(timeout=0.05)
            except queue.Empty:
                continue

    def _drive(self, cutter: Cutter) -> None:
        first = True
        try:
            while not self.closed.is_set():
                with self.lock:
                    place, video = next(self.todo, (None, None))
                if place is None or video is None:
                    break
                for outcome in cutter.cut(place, video):
                    with self.lock:
                        self.proved += first
                    first = False
                    self.ready.put(outcome)
                    if self.closed.is_set():
                        break
        except BaseException as error:
            if not self.closed.is_set():
                self.ready.put(error)
        finally:
            cutter.close()
