"""MediaLibrary: the files of a run's videos, and pictures and previews made of them."""

from __future__ import annotations

import hashlib
import os
import queue
import stat
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from clipset.data.catalog import EXTENSIONS, Video
from clipset.data.file_state import read_file_state, resolve_path
from clipset.errors import VideoError
from clipset.features.ledger import LedgerEntry
from clipset.features.sprites import read_sprite
from clipset.process.isolation import python_command
from clipset.process.worker import WorkerProcess
from clipset.web.media_worker import MediaKind, MediaTask

MEDIA_COMMAND = python_command("clipset.web.media_worker")
NUM_MEDIA_WORKERS = 2
MEDIA_TIMEOUT = 180.0  # seconds for one picture or preview
MAX_WAITING_PICTURES = 1000  # pictures that are asked for and not made
TEMPORARY_PREFIX = ".new-"  # of files that are being written
PICTURE_VERSION = 1  # of the pictures; another number makes them again
MEDIA_SUFFIXES: dict[MediaKind, str] = {"thumbnail": ".webp", "sprite": ".webp", "preview": ".mp4"}


@dataclass(frozen=True, slots=True)
class ServedFile:
    """A file that may be served, with the state that it was checked in."""

    path: Path
    status: os.stat_result

    @property
    def tag(self) -> str:
        """Another file, or another state of it, has another tag."""
        state = f"{PICTURE_VERSION}:{self.status.st_size}:{self.status.st_mtime_ns}:{self.path}"
        return hashlib.blake2b(os.fsencode(state), digest_size=12).hexdigest()


class MediaCache:
    """Files that can be made again, by name, at most `max_bytes` of them: the least used ones go.

    One process at a time uses a folder.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder, self.max_bytes = folder, max_bytes
        self._lock = threading.Lock()
        self._count = 0
        folder.mkdir(parents=True, exist_ok=True)
        entries = [entry for entry in os.scandir(folder) if entry.is_file(follow_symlinks=False)]
        for entry in entries:
            if entry.name.startswith(TEMPORARY_PREFIX):  # of a killed server
                Path(entry).unlink(missing_ok=True)
        states = [(e.stat(), e.name) for e in entries if not e.name.startswith(TEMPORARY_PREFIX)]
        states.sort(key=lambda state: state[0].st_mtime_ns)
        self._sizes = OrderedDict((name, status.st_size) for status, name in states)
        self._total = sum(self._sizes.values())
        self._evict()

    def find(self, name: str) -> Path | None:
        """The file of this name, which is now the most recently used one."""
        with self._lock:
            if name not in self._sizes:
                return None
            self._sizes.move_to_end(name)
        path = self.folder / name
        with suppress(OSError):
            os.utime(path)  # the order survives a restart
            return path
        with self._lock:  # somebody deleted it
            self._total -= self._sizes.pop(name, 0)
        return None

    def temporary(self) -> Path:
        """The path of a file to write, for `add`."""
        with self._lock:
            self._count += 1
            return self.folder / f"{TEMPORARY_PREFIX}{self._count}"

    def add(self, name: str, temporary: Path) -> Path:
        """Rename a written file to its name; older files make room for it."""
        size, path = temporary.stat().st_size, self.folder / name
        temporary.replace(path)
        with self._lock:
            self._total += size - self._sizes.pop(name, 0)
            self._sizes[name] = size
            self._evict()
        return path

    def _evict(self) -> None:
        """Delete the least recently used files beyond the limit, but not the last one."""
        while self._total > self.max_bytes and len(self._sizes) > 1:
            name, size = self._sizes.popitem(last=False)
            self._total -= size
            (self.folder / name).unlink(missing_ok=True)


class MediaLibrary:
    """Opens files of videos that may be served; makes pictures of them in worker processes."""

    def __init__(
        self,
        videos: Sequence[Video],
        entries: Sequence[LedgerEntry],
        cache: MediaCache,
        store_folder: Path,
    ) -> None:
        """`entries` without a file are of videos that were not read, such as imported ones.

        The store in `store_folder` may have sprites.
        """
        self.videos, self.entries, self.cache = videos, entries, cache
        self.store_folder = store_folder
        self.executor = ThreadPoolExecutor(NUM_MEDIA_WORKERS, thread_name_prefix="media")
        self.workers = [
            WorkerProcess(MEDIA_COMMAND, None, timeout=MEDIA_TIMEOUT)
            for _ in range(NUM_MEDIA_WORKERS)
        ]
        self._idle: queue.SimpleQueue[WorkerProcess] = queue.SimpleQueue()
        for worker in self.workers:
            self._idle.put(worker)
        self._lock = threading.Lock()
        self._waiting: dict[str, Future[Path]] = {}
        self._reasons: dict[str, str] = {}  # of what cannot be made, by name

    def open_file(self, video_index: int) -> ServedFile:
        """The file of a video; VideoError if it is missing or not the one that was read.

        The path is resolved first: a link that leads elsewhere than when the features were
        extracted is refused, and so is a file that is not called like a video.
        """
        video, read = self.videos[video_index], self.entries[video_index].file
        real_path = resolve_path(video.path)
        parent = resolve_path(video.path.parent)
        expected = str(Path(parent, video.path.name)) if read is None else read.path
        if real_path != expected:
            raise VideoError("its path leads to another file than the one that was read")
        path = Path(os.path.realpath(video.path))
        if path.suffix.lower().removeprefix(".") not in EXTENSIONS:
            raise VideoError("is not called like a video")
        try:
            status = path.stat()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise VideoError(reason.lower(), transient=True) from None
        if not stat.S_ISREG(status.st_mode):
            raise VideoError("is not a regular file")
        if not os.access(path, os.R_OK):
            raise VideoError("permission denied", transient=True)
        return ServedFile(path, status)

    def find_problem(self, video_index: int) -> str | None:
        """Why a video cannot be played, or what is wrong with it; None if nothing is."""
        read = self.entries[video_index].file
        try:
            file = self.open_file(video_index)
        except VideoError as error:
            return str(error)
        if read is not None and not read.is_current(file.path):
            now = read_file_state(file.path)
            if now is None or not now.has_same_content(read):
                return "the file has changed since its features were extracted"
        return self.entries[video_index].damage

    def stored_sprite(self, video_index: int) -> bytes:
        """The sprite that was made when the video was read, whatever became of its file."""
        return read_sprite(self.store_folder, self.entries[video_index].ordinal)

    def make(
        self, file: ServedFile, video_index: int, kind: MediaKind, start: float | None = None
    ) -> Future[Path]:
        """A picture or preview of a file: its path in the cache, once it is made."""
        moment = "" if start is None else f"-{start:.3f}"
        name = f"{file.tag}-{kind}{moment}{MEDIA_SUFFIXES[kind]}"
        with self._lock:
            if name in self._waiting:
                return self._waiting[name]
            made: Future[Path] = Future()
            if name in self._reasons:
                made.set_exception(VideoError(self._reasons[name]))
            elif (path := self.cache.find(name)) is not None:
                made.set_result(path)
            elif len(self._waiting) >= MAX_WAITING_PICTURES:
                made.set_exception(VideoError("too many pictures are waited for", transient=True))
            else:
                end = self.videos[video_index].end
                task = MediaTask(kind, os.fsencode(file.path), end, start)
                made = self._waiting[name] = self.executor.submit(self._make, name, task)
            return made

    def _make(self, name: str, task: MediaTask) -> Path:
        temporary = self.cache.temporary()
        task.out = os.fsencode(temporary)
        try:
            _, content = self.call(task)
            if content:
                temporary.write_bytes(content)
            return self.cache.add(name, temporary)
        except VideoError as error:
            with self._lock:
                self._reasons[name] = str(error)
            raise
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise VideoError(f"the cache cannot be written: {reason}", transient=True) from None
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            with self._lock:
                self._waiting.pop(name, None)

    def read_duration(self, path: Path) -> float:
        """The duration of any file, read in a worker; VideoError if it is not a video."""
        value, _ = self.call(MediaTask("duration", os.fsencode(path)))
        return msgspec.json.decode(value, type=float)

    def call(self, task: MediaTask) -> tuple[msgspec.Raw, bytearray]:
        """Let the next idle worker do a task."""
        worker = self._idle.get()
        try:
            return worker.call(task)
        finally:
            self._idle.put(worker)

    def close(self) -> None:
        """End the workers, finished or not."""
        self.executor.shutdown(wait=False, cancel_futures=True)
        for worker in self.workers:
            worker.kill()
        self.executor.shutdown(wait=True)
        for worker in self.workers:
            worker.close()
