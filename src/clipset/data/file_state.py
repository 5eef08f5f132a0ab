"""Which file was read: enough to tell it from another one without reading all of it again."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

WHOLE_BYTES = 256 << 10  # files up to this size are hashed whole
EDGE_BYTES = 64 << 10  # of longer ones, so much at the start and at the end
SAMPLES, SAMPLE_BYTES = 16, 4 << 10  # and so many blocks in between, evenly spread


@dataclass(frozen=True, slots=True, kw_only=True)
class FileState:
    """A file as it was when it was read.

    `digest` is a hash of its length and of parts of its content, `changed_ns` the time of the last
    change of its inode, which cannot be set by hand as `modified_ns` can.
    """

    path: str
    size: int
    modified_ns: int
    changed_ns: int
    digest: str

    def is_current(self, path: Path) -> bool:
        """Whether the file at a path is this one, untouched. Raises OSError if there is none."""
        status = path.stat()
        same = (self.size, self.modified_ns, self.changed_ns) == (
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,
        )
        return same and self.path == resolve(path)

    def has_content_of(self, other: FileState) -> bool:
        """Whether two files have the same content, wherever they are."""
        return (self.size, self.digest) == (other.size, other.digest)


def read_state(path: Path) -> FileState:
    """The state of a file now. Raises OSError if it cannot be read."""
    with open_regular(path) as file:
        status = os.fstat(file.fileno())
        digest = _digest(file, status.st_size)
    return FileState(
        path=resolve(path),
        size=status.st_size,
        modified_ns=status.st_mtime_ns,
        changed_ns=status.st_ctime_ns,
        digest=digest,
    )


def try_read_state(path: Path) -> FileState | None:
    """The state of a file now, or None if it cannot be read."""
    try:
        return read_state(path)
    except (OSError, ValueError):  # a path with a NUL byte is a ValueError
        return None


def resolve(path: Path) -> str:
    """The absolute path without links, as text that any file can hold."""
    return os.fsencode(os.path.realpath(path)).decode(errors="backslashreplace")


def file_digest(path: Path) -> str:
    """A hash of a file's length, start, end and some blocks in between."""
    with open_regular(path) as file:
        return _digest(file, os.fstat(file.fileno()).st_size)


def open_regular(path: Path) -> FileIO:
    """A file to read from. A pipe or a device is an OSError, and is not waited for."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    file = FileIO(os.open(path, flags), closefd=True)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
    return file


def _digest(file: FileIO, size: int) -> str:
    digest = hashlib.blake2b(size.to_bytes(8, "little"), digest_size=16)
    for first, count in _blocks(size):
        file.seek(first)
        digest.update(file.read(count))
    return digest.hexdigest()


def _blocks(size: int) -> list[tuple[int, int]]:
    """Which bytes are hashed: first byte, count."""
    if size <= WHOLE_BYTES:
        return [(0, size)]
    inner = size - 2 * EDGE_BYTES
    samples = [(EDGE_BYTES + inner * i // SAMPLES, SAMPLE_BYTES) for i in range(SAMPLES)]
    return [(0, EDGE_BYTES), *samples, (size - EDGE_BYTES, EDGE_BYTES)]
