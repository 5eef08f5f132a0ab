"""One writer at a time: a lock on a folder that ends with its process.

The lock is the operating system's (`flock`), so a killed process leaves none. Its file `.lock`
names the holder and is removed with the lock.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from clipset.errors import LockError

LOCK_NAME = ".lock"
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_lock_counts: dict[tuple[int, str], int] = {}  # locks of this process, by folder


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Lock a folder for this process; the folder is created if needed.

    A process may lock a folder several times. Raises LockError, which names the holder, if another
    process has the lock, or if the file system cannot lock.
    """
    lock_key = (os.getpid(), os.path.realpath(folder))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock_file = None if _lock_counts.get(lock_key) else _acquire(folder)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        if isinstance(error, FileExistsError | NotADirectoryError):
            reason = "a file is in its place; use another folder"
        raise LockError(f"cannot write to {folder}: {reason}") from None
    _lock_counts[lock_key] = _lock_counts.get(lock_key, 0) + 1
    try:
        yield
    finally:
        _lock_counts[lock_key] -= 1
        if lock_file is not None:
            with suppress(OSError):  # the folder may have been removed meanwhile
                (folder / LOCK_NAME).unlink()
            os.close(lock_file)


def is_empty(folder: Path) -> bool:
    """Whether a folder holds nothing but perhaps a lock."""
    return all(path.name == LOCK_NAME for path in folder.iterdir())


def _acquire(folder: Path) -> int:
    """The descriptor of the locked file."""
    lock_path = folder / LOCK_NAME
    while True:
        descriptor = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            _lock(descriptor, folder)
            with suppress(FileNotFoundError):
                if os.path.samestat(lock_path.stat(follow_symlinks=False), os.fstat(descriptor)):
                    _write_holder(descriptor)
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # the holder before removed this file: try with the new one


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 4096, 0).decode(errors="backslashreplace")
        raise LockError(
            f"{folder} is being written by {holder or 'another process'}; "
            f"wait until it has ended, or use another folder"
        ) from None
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            raise LockError(
                f"the file system of {folder} has no locks, so two writers could mix their data; "
                f"use a folder on another file system"
            ) from None
        raise


def _write_holder(descriptor: int) -> None:
    """Write who holds the lock, for the error message of others."""
    command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:2]])
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    holder = f"process {os.getpid()} on {socket.gethostname()} ({command}, since {since})"
    with suppress(OSError):  # the lock holds on a full disk, too
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, holder.encode(errors="backslashreplace"), 0)
