"""FileState: which file was read, to notice another one without reading all of it again."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

MAX_WHOLE_BYTES = 256 << 10  # files up to this size are hashed whole
EDGE_BYTES = 64 << 10  # of larger ones: this many bytes at the start and at the end,
NUM_SAMPLES, SAMPLE_BYTES = 16, 4 << 10  # and blocks between them, evenly spaced


@dataclass(frozen=True, slots=True, kw_only=True)
class FileState:
    """A file at the time it was read.

    `digest` is a hash of its size and parts of its content. `changed_ns` is the inode's change
    time, which, unlike `modified_ns`, cannot be set by hand.
    """

    path: str
    size: int
    modified_ns: int
    changed_ns: int
    digest: str

    def is_current(self, path: Path) -> bool:
        """Whether the file at a path is this one, unchanged."""
        try:
            status = path.stat()
        except (OSError, ValueError):  # it is missing, or no path at all
            return False
        current = (status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        is_unchanged = (self.size, self.modified_ns, self.changed_ns) == current
        return is_unchanged and self.path == resolve_path(path)

    def has_same_content(self, other: FileState) -> bool:
        """Whether two files have the same content, at any path."""
        return (self.size, self.digest) == (other.size, other.digest)


def read_file_state(path: Path) -> FileState | None:
    """The current state of a file, or None if it cannot be read."""
    try:
        file_status, digest = _read_blocks(path)
    except (OSError, ValueError):  # a path with a NUL byte is a ValueError
        return None
    return FileState(
        path=resolve_path(path),
        size=file_status.st_size,
        modified_ns=file_status.st_mtime_ns,
        changed_ns=file_status.st_ctime_ns,
        digest=digest,
    )


def resolve_path(path: Path) -> str:
    """The absolute path without links, as valid UTF-8."""
    return os.fsencode(os.path.realpath(path)).decode(errors="backslashreplace")


def sampled_digest(path: Path) -> str:
    """A hash of a file's size, start, end and some blocks between them."""
    return _read_blocks(path)[1]


def _read_blocks(path: Path) -> tuple[os.stat_result, str]:
    """The status and the digest of a file. A pipe or a device raises OSError without blocking."""
    with FileIO(os.open(path, os.O_RDONLY | os.O_NONBLOCK)) as file:
        file_status = os.fstat(file.fileno())
        if not stat.S_ISREG(file_status.st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", str(path))
        size = file_status.st_size
        blocks = [(0, size)]  # offset and number of bytes
        if size > MAX_WHOLE_BYTES:
            inner = size - 2 * EDGE_BYTES
            offsets = [EDGE_BYTES + inner * i // NUM_SAMPLES for i in range(NUM_SAMPLES)]
            samples = [(offset, SAMPLE_BYTES) for offset in offsets]
            blocks = [(0, EDGE_BYTES), *samples, (size - EDGE_BYTES, EDGE_BYTES)]
        digest = hashlib.blake2b(size.to_bytes(8, "little"), digest_size=16)
        for offset, num_bytes in blocks:
            file.seek(offset)
            digest.update(file.read(num_bytes))
    return file_status, digest.hexdigest()
