"""Worker processes that decode videos: one that crashes or hangs costs only its video."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import msgspec
import torch

from clipset.clips.decode import DecodedClips, DecodeRequest, VideoFacts, decode_video
from clipset.data.catalog import Video
from clipset.errors import StoreError, VideoError
from clipset.features.config import ExtractConfig
from clipset.process.isolation import python_command
from clipset.process.worker import Answer, WorkerProcess, answer_messages, as_video_error

START_SECONDS = 5.0  # a worker usually starts and decodes its first video within this time
MAX_AHEAD = 1024  # videos that may be started after one that is not finished
COMMAND = python_command("clipset.features.decode_pool")

DecodeTask = tuple[str, bytes, float | None, int] | None
"""The id, path, end and draw of a video; None for the next chunk of the previous one."""
DecodeResult = tuple[int, DecodedClips | VideoError]
"""The index of a video, and a chunk of it or the reason why it failed."""


@contextmanager
def decode_videos(
    videos: Sequence[Video], request: DecodeRequest, config: ExtractConfig
) -> Iterator[Iterator[DecodeResult]]:
    """Decode videos in the workers of a config (0: in this process); results come when ready."""
    workers = min(config.num_workers, max(len(videos), 1))
    with closing(ClipDecoder(request, workers=workers, timeout=config.timeout_seconds)) as decoder:
        yield decoder.decode(videos)


def decode_in_process(
    videos: Sequence[Video], request: DecodeRequest, draw: int = 0
) -> Iterator[DecodeResult]:
    """Decode videos in this process, chunk by chunk."""
    for video_index, video in enumerate(videos):
        try:
            for clips in decode_video(video.id, video.path, request, end=video.end, draw=draw):
                yield video_index, clips
                del clips  # free a chunk before the next one is decoded
        except Exception as error:
            yield video_index, as_video_error(error)


class ClipDecoder:
    """Decodes videos in worker processes; with 0 workers, in this one.

    One thread for each worker takes the next video and queues the results. There is one worker at
    first, and their number doubles whenever a result is waited for. No video is started more than
    `max_ahead` after one that is not finished, so that a slow video does not let finished ones pile
    up behind it.
    """

    def __init__(
        self, request: DecodeRequest, *, workers: int, timeout: float, max_ahead: int | None = None
    ) -> None:
        self.request, self.timeout, self.max_workers = request, timeout, workers
        self.max_ahead = MAX_AHEAD if max_ahead is None else max_ahead
        self.videos: Sequence[Video] = ()
        self.draw = 0
        self.queue: queue.Queue[DecodeResult | BaseException] = queue.Queue(maxsize=1)
        self.workers: list[DecodeWorker] = []
        self.threads: list[threading.Thread] = []
        self._state = threading.Condition()
        self._closed = False
        self._next_index = 0
        self._unfinished: set[int] = set()  # indices of videos that were started
        self._proven: set[DecodeWorker] = set()  # those that have decoded something
        self._grow()

    def decode(self, videos: Sequence[Video], draw: int = 0) -> Iterator[DecodeResult]:
        """The results of some videos, as they are ready. Each draw has other random clips.

        The work starts at once. One call ends before the next one begins.
        """
        if self.max_workers == 0:
            return decode_in_process(videos, self.request, draw)
        with self._state:
            self.videos, self.draw, self._next_index = videos, draw, 0
            self._state.notify_all()
        return self._results(len(videos))

    def _results(self, num_remaining: int) -> Iterator[DecodeResult]:
        while num_remaining:
            result = self._wait_for_result()
            if isinstance(result, BaseException):
                raise result
            video_index, clips = result
            if isinstance(clips, VideoError) or clips.facts.is_last_chunk:
                num_remaining -= 1
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
        with suppress(queue.Full):  # another thread may wait for a result
            self.queue.put_nowait(StoreError("the decoder was closed"))

    def _grow(self) -> None:
        """Double the number of workers, up to the maximum."""
        num_new = min(max(len(self.workers), 1), self.max_workers - len(self.workers))
        for _ in range(num_new):
            worker = DecodeWorker(self.request, timeout=self.timeout)
            thread = threading.Thread(target=self._run, args=(worker,), daemon=True, name="decode")
            self.workers.append(worker)
            self.threads.append(thread)
            thread.start()

    def _wait_for_result(self) -> DecodeResult | BaseException:
        """The next result; more workers are started if there is none, but not all at once."""
        if self.queue.empty() and len(self._proven) == len(self.workers):
            self._grow()
        while len(self.workers) < self.max_workers:
            try:
                return self.queue.get(timeout=START_SECONDS)
            except queue.Empty:
                self._grow()
        return self.queue.get()

    def _run(self, worker: DecodeWorker) -> None:
        """Decode videos with one worker until the decoder is closed."""
        try:
            while (video_index := self._next_video()) is not None:
                for result in worker.decode(video_index, self.videos[video_index], self.draw):
                    self._proven.add(worker)
                    self.queue.put(result)
                    if self._closed:
                        return
        except BaseException as error:
            if not self._closed:
                self.queue.put(error)
        finally:
            worker.close()

    def _next_video(self) -> int | None:
        """The index of the next video, once it may be started; None if the decoder is closed."""
        with self._state:
            self._state.wait_for(lambda: self._closed or self._may_start())
            if self._closed:
                return None
            self._unfinished.add(self._next_index)
            self._next_index += 1
            return self._next_index - 1

    def _may_start(self) -> bool:
        first = min(self._unfinished, default=self._next_index)
        return self._next_index < len(self.videos) and self._next_index - first <= self.max_ahead


class DecodeWorker(WorkerProcess):
    """A worker process that decodes one video at a time; replaced when it crashes or hangs."""

    def __init__(self, request: DecodeRequest, *, timeout: float) -> None:
        super().__init__(COMMAND, request, timeout=timeout)
        self.request = request

    def decode(self, video_index: int, video: Video, draw: int = 0) -> Iterator[DecodeResult]:
        """Decode a video chunk by chunk; a failure is the last result."""
        task: DecodeTask = (video.id, os.fsencode(video.path.absolute()), video.end, draw)
        is_last = False
        try:
            while not is_last:
                facts_line, content = self.call(task)
                facts = msgspec.json.decode(facts_line, type=VideoFacts)
                clips = DecodedClips.from_buffer(content, facts, self.request)
                task, is_last = None, facts.is_last_chunk
                yield video_index, clips
                del clips, content  # free a chunk before the next one is decoded
        except VideoError as error:
            yield video_index, error


def make_decoder(setup: bytes) -> Callable[[bytes], Answer]:
    """What a worker process does: decode chunk after chunk to its facts and its arrays as bytes."""
    request = msgspec.json.decode(setup, type=DecodeRequest)
    chunks: Iterator[DecodedClips] = iter(())

    def decode(line: bytes) -> Answer:
        nonlocal chunks
        task = msgspec.json.decode(line, type=DecodeTask)
        if task is not None:
            video_id, path, end, draw = task
            video_file = Path(os.fsdecode(path))
            chunks = iter(decode_video(video_id, video_file, request, end=end, draw=draw))
        clips = next(chunks)
        return clips.facts, clips.to_buffers()

    return decode


def run_worker() -> None:
    """Be a worker process, on standard input and output."""
    torch.set_num_threads(1)
    answer_messages(make_decoder)


if __name__ == "__main__":
    run_worker()
