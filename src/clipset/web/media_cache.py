"""Files that can be made again, in a folder with a limit: the least recently used ones go."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

TEMPORARY_PREFIX = ".new-"


class MediaCache:
    """Files by name, at most `max_bytes` of them. One process at a time uses a folder."""

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
