"""Files that are written whole or not at all, and one-line reasons when they cannot be."""

from __future__ import annotations

import errno
import os
import secrets
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import Any, Literal

from clipset.config import encode_json
from clipset.errors import OutputError

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
OWNERS = {"run.json": "run", "manifest.json": "feature store"}  # by a file that is always there
STALE_SECONDS = 3600.0  # a temporary file of this age was left behind by a kill


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON; a reader sees the whole old file or the whole new one."""
    write_atomic(path, encode_json(value))


def write_atomic(path: Path, content: bytes) -> None:
    """Write under a temporary name, flush to disk, then rename; folders are made as needed."""
    write_together({path: content})


def write_together(files: Mapping[Path, bytes]) -> None:
    """Write files that belong together; if one cannot be written, the old ones stay.

    The last one marks the others as complete: it is removed first and renamed last.
    """
    temporary_files: dict[Path, Path] = {}
    try:
        for path, content in files.items():
            with writing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                if _is_special(path):
                    path.write_bytes(content)
                else:
                    temporary_files[path] = _write_temporary(path, content)
        if len(temporary_files) > 1:
            with writing(path):
                path.unlink(missing_ok=True)
        for path, temporary_path in temporary_files.items():
            with writing(path):
                temporary_path.replace(path)
            _remove_stale(path)
    finally:
        for temporary_path in temporary_files.values():
            temporary_path.unlink(missing_ok=True)


def append_whole(path: Path, content: bytes) -> None:
    """Append `content` to a file, all of it or nothing."""
    with writing(path), path.open("ab", buffering=0) as file:
        old_size = os.fstat(file.fileno()).st_size
        try:
            if file.write(content) != len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            os.ftruncate(file.fileno(), old_size)
            raise


@contextmanager
def writing(path: Path | str) -> Iterator[None]:
    """Turn an OSError into an OutputError of one line."""
    try:
        yield
    except (OutputError, BrokenPipeError):
        raise
    except OSError as error:
        reason = error.strerror or (str(error).splitlines() or [type(error).__name__])[0]
        blocking_file = next((p for p in Path(path).absolute().parents if p.is_file()), None)
        if error.errno in (errno.EEXIST, errno.ENOTDIR) and blocking_file is not None:
            reason = f"{blocking_file} is a file, not a folder"
        advice = "free disk space and run the same command again"
        if error.errno not in DISK_FULL:
            advice = "use a writable path"
        raise OutputError(f"cannot write {path}: {reason}", advice, reason) from None


def check_output(path: Path, kind: Literal["file", "folder"]) -> None:
    """Refuse a path that cannot be written to, before any work; creates nothing.

    The folder of a run or a store is refused, too: other files would be mixed with its own.
    """
    for name, owner in OWNERS.items() if kind == "folder" else ():
        if (path / name).is_file():
            reason = f"it is the folder of a {owner}"
            raise OutputError(f"cannot write to {path}: {reason}", "use another folder", reason)
    with writing(path):
        if kind == "file" and path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder, not a file")
        if kind == "file" and _is_special(path):
            above = path
        else:
            start = path if kind == "folder" else path.absolute().parent
            above = next(p for p in (start, *start.absolute().parents) if os.path.lexists(p))
            if not above.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, f"{above} is a file, not a folder")
        if not os.access(above, os.W_OK):
            reason = "read-only" if above.is_dir() else "not writable"
            raise PermissionError(errno.EACCES, f"{above} is {reason}")


def _is_special(path: Path) -> bool:
    """Whether a path is a device or a pipe, which is written to and never replaced."""
    if path.absolute().parent == Path("/dev"):
        return True
    return path.exists() and not path.is_file() and not path.is_dir()


def _write_temporary(path: Path, content: bytes) -> Path:
    """A new file beside `path` with an unpredictable name and the mode of `path`."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    mode = None
    if path.is_file() and not path.is_symlink():
        mode = stat.S_IMODE(path.stat().st_mode)
    temporary = path.with_name(f"{_temporary_prefix(path)}{secrets.token_hex(8)}.part")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(temporary, flags, 0o666 if mode is None else 0o600), "wb") as file:
            file.write(content)
            if mode is not None:
                temporary.chmod(mode)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def _temporary_prefix(path: Path) -> str:
    return f".{path.name[:40]}."


def _remove_stale(path: Path) -> None:
    """Delete temporary files that killed processes left behind."""
    with suppress(OSError):
        for temporary_path in path.parent.glob(f"{escape(_temporary_prefix(path))}*.part"):
            if time.time() - temporary_path.lstat().st_mtime > STALE_SECONDS:
                temporary_path.unlink(missing_ok=True)
