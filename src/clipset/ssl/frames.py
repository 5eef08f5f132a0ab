"""The videos to train on, decoded once: small frames as bytes, in a file that is mapped to memory.

The system keeps of the file what fits into memory and drops it where memory is short. Worker
processes read the videos: one that crashes or hangs costs only its video.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import msgspec
import numpy as np
from jaxtyping import UInt8

from clipset.clips.sampling import frame_indices_at
from clipset.data.catalog import Video
from clipset.decoding.reader import VideoInfo, open_video
from clipset.errors import TrainingError, VideoError
from clipset.files import writing
from clipset.process.isolation import python_command
from clipset.process.worker import Answer, WorkerProcess, answer_messages
from clipset.progress import bar, log

COMMAND = python_command("clipset.ssl.frames")
TIMEOUT = 120.0  # seconds for one video
DISK_FRACTION = 0.5  # of the free disk space, for frames
MAX_WORKERS = 8

FrameTask = tuple[bytes, float | None]
"""The path and the end of a video."""
FrameFacts = tuple[list[float], float, int, int]
"""The times of the frames, the video's duration, the frames' height and width; pixels follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameRequest:
    """Which frames of every video are read: one each `interval` seconds, scaled down."""

    short_side: int
    interval: float


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
        times, duration, height, width = msgspec.json.decode(value, type=FrameFacts)
        info = VideoInfo(width=width, height=height, frame_times=np.array(times), duration=duration)
        pixels = np.frombuffer(content, np.uint8).reshape(len(times), height, width, 3)
        return VideoFrames(info, pixels)


class VideoPool:
    """The frames of many videos: kept if there is room for them, else read again when needed.

    The file of kept frames has no name: it is gone when the process ends, however it ends.
    """

    def __init__(self, videos: Sequence[Video], request: FrameRequest, folder: Path) -> None:
        """Read the videos; the file is in `folder`."""
        with writing(folder):
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
            self.limit = int(DISK_FRACTION * shutil.disk_usage(folder).free)
        self.num_bytes = 0
        self._lock = threading.Lock()
        num_workers = min(os.cpu_count() or 1, MAX_WORKERS)
        self._readers = [FrameReader(request) for _ in range(num_workers)]
        self.videos: list[Video] = []
        self.kept: list[VideoFrames | None] = []  # None: there was no room
        try:
            self._read_all(videos)
            if len(self) < 2:
                raise TrainingError(f"training needs at least 2 videos, {len(self)} can be read")
        except BaseException:
            self.close()
            raise
        num_kept = sum(frames is not None for frames in self.kept)
        if num_kept < len(self):
            log(
                f"the frames of {num_kept} of {len(self)} videos fit into "
                f"{self.limit / 1e9:.1f} GB; the others are decoded in every epoch"
            )

    def __len__(self) -> int:
        return len(self.videos)

    def frames(self, index: int) -> VideoFrames:
        """The frames of a video; raises VideoError if it has to be read and cannot be."""
        return self.kept[index] or self._readers[0].read(self.videos[index])

    def close(self) -> None:
        """End the worker processes and delete the kept frames."""
        for reader in self._readers:
            reader.close()
        self._file.close()

    def _read_all(self, videos: Sequence[Video]) -> None:
        idle: SimpleQueue[FrameReader] = SimpleQueue()
        for reader in self._readers:
            idle.put(reader)

        def read(video: Video) -> VideoFrames | VideoError | None:
            if self.num_bytes >= self.limit:
                return None
            reader = idle.get()
            try:
                return self._keep(reader.read(video))
            except VideoError as error:
                return error
            finally:
                idle.put(reader)

        with ThreadPoolExecutor(len(self._readers)) as threads:
            pending = [threads.submit(read, video) for video in videos]
            try:
                with bar("reading", len(videos), "videos") as advance:
                    for video, future in zip(videos, pending, strict=True):
                        result = future.result()
                        if isinstance(result, VideoError):
                            log(f"{video.id} is left out: {result}")
                        else:
                            self.videos.append(video)
                            self.kept.append(result)
                        advance()
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                for reader in self._readers:
                    reader.kill()
                raise
        for reader in self._readers:  # one starts again if there was no room
            reader.close()

    def _keep(self, frames: VideoFrames) -> VideoFrames:
        """The same frames in the file."""
        with self._lock:
            start, self.num_bytes = self.num_bytes, self.num_bytes + frames.pixels.nbytes
        with writing("the file of frames"):
            os.pwrite(self._file.fileno(), frames.pixels.data, start)
        mapped = np.memmap(self._file, np.uint8, "c", start, frames.pixels.shape)
        return VideoFrames(frames.info, mapped)


def make_reader(setup: bytes) -> Callable[[bytes], Answer]:
    """What a worker process does: read one video after the other."""
    request = msgspec.json.decode(setup, type=FrameRequest)

    def read(line: bytes) -> Answer:
        path, end = msgspec.json.decode(line, type=FrameTask)
        with open_video(Path(os.fsdecode(path)), end=end) as video:
            info = video.info
            times = np.arange(0.0, max(info.duration, request.interval), request.interval)
            indices = np.unique(frame_indices_at(times, info.frame_times))
            requested = video.frames(indices.tolist(), short_side=request.short_side)
            frames = [frame for _, frame in requested]
            video.check_usable()
        facts: FrameFacts = (
            info.frame_times[indices].tolist(),
            info.duration,
            *frames[0].shape[:2],
        )
        return facts, [memoryview(frame.data).cast("B") for frame in frames]

    return read


if __name__ == "__main__":
    answer_messages(make_reader)
