"""The videos to train on, decoded once: small frames as bytes, in a file that is mapped to memory.

The system keeps of the file what fits into memory and drops it where memory is short.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from jaxtyping import UInt8

from clipset.data.catalog import Video
from clipset.decoding.reader import VideoInfo
from clipset.errors import TrainingError, VideoError
from clipset.files import writing
from clipset.process.isolation import python_command
from clipset.process.worker import WorkerProcess
from clipset.progress import bar, log
from clipset.ssl.frame_worker import FrameFacts, FrameRequest, FrameTask

COMMAND = python_command("clipset.ssl.frame_worker")
TIMEOUT = 120.0  # seconds for one video
DISK_FRACTION = 0.5  # of the free disk space, for frames
MAX_WORKERS = 8


@dataclass(frozen=True, slots=True)
class VideoFrames:
    """Some frames of a video; read like a video file by `cut_clips`."""

    info: VideoInfo
    pixels: UInt8[np.ndarray, "F H W 3"]

    def frames(
        self,
        indices: Sequence[int],
        *,
        short_side: int | None = None,  # noqa: ARG002  they are small
    ) -> Iterator[tuple[int, UInt8[np.ndarray, "H W 3"]]]:
        """The frames with the given indices."""
        for index in indices:
            yield index, self.pixels[index]


class FrameReader(WorkerProcess):
    """A worker process that reads the frames of one video at a time."""

    def __init__(self, request: FrameRequest) -> None:
        super().__init__(COMMAND, request, timeout=TIMEOUT)

    def read(self, video: Video) -> VideoFrames:
        """The frames of a video; raises VideoError."""
        task: FrameTask = (os.fsencode(video.path.absolute()), video.end)
        value, content = self.call(task)
        facts = msgspec.json.decode(value, type=FrameFacts)
        shape = (len(facts.times), facts.height, facts.width, 3)
        info = VideoInfo(
            width=facts.width,
            height=facts.height,
            frame_times=np.array(facts.times),
            duration=facts.duration,
        )
        return VideoFrames(info, np.frombuffer(content, np.uint8).reshape(shape))


class VideoPool:
    """The frames of many videos: kept if there is room for them, else read again when needed.

    The file of kept frames has no name: it is gone when the process ends, however it ends.
    """

    def __init__(
        self,
        videos: Sequence[Video],
        request: FrameRequest,
        folder: Path,
        *,
        limit: int | None = None,
    ) -> None:
        """Read the videos; the file is in `folder`, with up to `limit` bytes."""
        self.request = request
        with writing(folder):
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
            free = shutil.disk_usage(folder).free
        self.limit = int(DISK_FRACTION * free) if limit is None else limit
        self.num_bytes = 0
        self._lock = threading.Lock()
        self._reader = FrameReader(request)
        try:
            results = self._read_all(videos)
        except BaseException:
            self.close()
            raise
        self.videos = [v for v, r in zip(videos, results, strict=True) if _is_usable(v, r)]
        self.kept = [result for result in results if not isinstance(result, VideoError)]
        if len(self.videos) < 2:
            self.close()
            raise TrainingError(f"training needs at least 2 videos, {len(self.videos)} can be read")
        num_kept = sum(frames is not None for frames in self.kept)
        if num_kept < len(self.videos):
            log(
                f"the frames of {num_kept} of {len(self.videos)} videos fit into "
                f"{self.limit / 1e9:.1f} GB; the others are decoded in every epoch"
            )

    def __len__(self) -> int:
        return len(self.videos)

    def frames(self, index: int) -> VideoFrames:
        """The frames of a video; raises VideoError if it has to be read and cannot be."""
        return self.kept[index] or self._reader.read(self.videos[index])

    def close(self) -> None:
        """End the worker process and delete the kept frames."""
        self._reader.close()
        self._file.close()

    def _keep(self, frames: VideoFrames) -> VideoFrames:
        """The same frames in the file."""
        with self._lock:
            start, self.num_bytes = self.num_bytes, self.num_bytes + frames.pixels.nbytes
        with writing("the file of frames"):
            os.pwrite(self._file.fileno(), frames.pixels.data, start)
        mapped = np.memmap(self._file, np.uint8, "c", start, frames.pixels.shape)
        return VideoFrames(frames.info, mapped)

    def _read_all(self, videos: Sequence[Video]) -> list[VideoFrames | VideoError | None]:
        """The frames of each video, the reason why there are none, or None if there is no room."""
        readers: list[FrameReader] = []
        own = threading.local()

        def read(video: Video) -> VideoFrames | VideoError | None:
            if self.num_bytes >= self.limit:
                return None
            if not hasattr(own, "reader"):
                own.reader = FrameReader(self.request)
                readers.append(own.reader)
            try:
                return self._keep(own.reader.read(video))
            except VideoError as error:
                return error

        with _stopping(readers), ThreadPoolExecutor(_count_workers()) as threads:
            pending = [threads.submit(read, video) for video in videos]
            try:
                results = []
                with bar("reading", len(videos), "videos") as advance:
                    for each in pending:
                        results.append(each.result())
                        advance()
                return results
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                for reader in readers:
                    reader.kill()
                raise


@contextmanager
def _stopping(readers: list[FrameReader]) -> Iterator[None]:
    """End the worker processes."""
    try:
        yield
    finally:
        for reader in readers:
            reader.close()


def _count_workers() -> int:
    return max(1, min(os.cpu_count() or 1, MAX_WORKERS))


def _is_usable(video: Video, result: VideoFrames | VideoError | None) -> bool:
    if isinstance(result, VideoError):
        log(f"{video.id} is left out: {result}")
        return False
    return True
