"""Plain mappings (TOML, JSON) to checked, frozen dataclasses and back. Knows no stage."""

from __future__ import annotations

import dataclasses
import difflib
import errno
import hashlib
import math
import os
import re
import secrets
import stat
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, TypeVar, get_type_hints

import msgspec

from clipset.errors import ConfigError, OutputError

T = TypeVar("T")
_ODD = re.compile("[\0\ud800-\udfff]")
DEEPEST = 40  # tables and lists inside each other in a file; ours have fewer than ten
LARGEST = 2**63
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
STALE_SECONDS = 3600.0  # a temporary file of this age was left behind by a kill


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file."""
    try:
        return parse_toml(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        raise ConfigError(f"there is no recipe at {path}") from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """The tables in a text; what is wrong with it is said in one line."""
    try:
        return refuse_deep(tomllib.loads(text), where)
    except RecursionError:
        raise ConfigError(f"{where} is nested too deeply; {DEEPEST} levels are allowed") from None
    except ValueError as error:  # also of a number with thousands of digits
        raise ConfigError(f"{where} is not valid TOML: {error}") from None


def refuse_deep(value: T, where: str) -> T:
    """The value itself, unless its tables and lists are nested deeper than any of ours."""
    level: list[Any] = [value]
    for _ in range(DEEPEST):
        inner = [each for each in level if isinstance(each, dict | list)]
        level = [x for each in inner for x in (each.values() if isinstance(each, dict) else each)]
        if not level:
            return value
    raise ConfigError(f"{where} is nested too deeply; {DEEPEST} levels are allowed")


def build(cls: type[T], mapping: Any, where: str) -> T:
    """A `cls` from a mapping; unknown keys and wrong types are errors that name the place."""
    if not isinstance(mapping, Mapping):
        raise ConfigError(f"{where} must be a table of settings, got {type(mapping).__name__}")
    _refuse_unknown_keys(cls, mapping, where)
    check_text(mapping, where)
    _refuse_numbers(mapping, where)
    try:
        return msgspec.convert(mapping, type=cls, strict=True)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}") from None


def to_mapping(value: Any) -> Any:
    """The same value in dictionaries, lists, strings and numbers only."""
    return msgspec.to_builtins(value)


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, with keys such as `pretrain.epochs`."""
    flat: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def fingerprint(*values: Any) -> str:
    """A short name for the content of `values`: equal content, equal name, on any machine."""
    canonical = _encode([to_mapping(value) for value in values])
    return hashlib.sha256(canonical).hexdigest()[:16]


def read_json(path: Path) -> Any:
    """The content of a JSON file."""
    try:
        return parse_json(path.read_bytes(), str(path))
    except FileNotFoundError:
        raise ConfigError(f"there is no file {path}") from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None


def parse_json(text: bytes | str, where: str) -> Any:
    """The value in a text; what is wrong with it is said in one line."""
    try:
        return refuse_deep(msgspec.json.decode(text), where)
    except RecursionError:
        raise ConfigError(f"{where} is nested too deeply; {DEEPEST} levels are allowed") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where} is not valid JSON: {error}") from None


def encode_json(value: Any) -> bytes:
    """A value as the text of a file."""
    return msgspec.json.format(_encode(value, order=None), indent=2) + b"\n"


def write_json(path: Path, value: Any) -> None:
    """Write `value` so that a reader sees the whole old file or the whole new one."""
    write_atomic(path, encode_json(value))


def write_atomic(path: Path, content: bytes) -> None:
    """Write under a temporary name, flush to disk, then rename; folders are made as needed."""
    write_together({path: content})


def write_together(files: Mapping[Path, bytes]) -> None:
    """Write files that belong together; if one cannot be written, the old ones stay as they are.

    The last one says that the others are whole: it is removed first and renamed last.
    """
    temporary: dict[Path, Path] = {}
    try:
        for path, content in files.items():
            with writing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                if _is_special(path):
                    path.write_bytes(content)
                else:
                    temporary[path] = _write_temporary(path, content)
        if len(temporary) > 1:
            with writing(path):
                path.unlink(missing_ok=True)
        for path, written in temporary.items():
            with writing(path):
                written.replace(path)
            _remove_stale(path)
    finally:
        for written in temporary.values():
            written.unlink(missing_ok=True)


def append_whole(path: Path, content: bytes) -> None:
    """Put `content` behind what a file holds, all of it or nothing."""
    with writing(path), path.open("ab", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            if file.write(content) != len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            os.ftruncate(file.fileno(), size)
            raise


@contextmanager
def writing(path: Path | str) -> Iterator[None]:
    """Say in one line why something cannot be written."""
    try:
        yield
    except (OutputError, BrokenPipeError):
        raise
    except OSError as error:
        reason = error.strerror or (str(error).splitlines() or [type(error).__name__])[0]
        blocking = next((p for p in Path(path).absolute().parents if p.is_file()), None)
        if error.errno in (errno.EEXIST, errno.ENOTDIR) and blocking is not None:
            reason = f"{blocking} is a file, not a folder"
        advice = "make room and run the same command again"
        if error.errno not in FULL:
            advice = "give a path that can be written to"
        raise OutputError(f"cannot write {path}: {reason}", advice, reason) from None


def check_output(path: Path, kind: Literal["file", "folder"]) -> None:
    """Refuse a path that cannot be written to before work is done for it; nothing is made."""
    with writing(path):
        if kind == "file" and path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder, a file is needed")
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
    """Whether a path leads to a device or a pipe, which is written to and never replaced."""
    if path.absolute().parent == Path("/dev"):
        return True
    return path.exists() and not path.is_file() and not path.is_dir()


def _write_temporary(path: Path, content: bytes) -> Path:
    """A new file beside `path` under a name that nobody can know, with the mode `path` has."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    mode = None
    if path.is_file() and not path.is_symlink():
        mode = stat.S_IMODE(path.stat().st_mode)
    temporary = path.with_name(f"{_temporary_prefix(path)}{secrets.token_hex(8)}.part")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    flags |= getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
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
    """Delete what kills left of earlier tries to write this file."""
    prefix, now = _temporary_prefix(path), time.time()
    with suppress(OSError), os.scandir(path.parent) as entries:
        for entry in entries:
            if entry.name.startswith(prefix) and entry.name.endswith(".part"):
                with suppress(OSError):
                    if now - entry.stat(follow_symlinks=False).st_mtime > STALE_SECONDS:
                        Path(entry.path).unlink()


def near_names(name: str, known: Iterable[str]) -> str:
    """`did you mean …?` if something close is known, else the whole list."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"known: {', '.join(known)}"


def _encode(value: Any, order: Literal["sorted"] | None = "sorted") -> bytes:
    try:
        return msgspec.json.encode(value, order=order)
    except UnicodeEncodeError as error:
        text = ascii(error.object)
        raise ConfigError(f"{text} has bytes that are not UTF-8; use another name") from None


def check_text(value: Any, where: str) -> None:
    """Refuse what no file name and no JSON can hold, wherever it is in the settings."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            check_text(key, where)
            check_text(inner, f"{where}: {key}")
    elif isinstance(value, list | tuple):
        for inner in value:
            check_text(inner, where)
    elif isinstance(value, str) and _ODD.search(value):
        what = "a NUL character" if "\0" in value else "bytes that are not UTF-8"
        raise ConfigError(f"{where} holds {what}, got {value!a}")


def _refuse_numbers(value: Any, where: str) -> None:
    """Refuse what no setting can be: NaN, infinity, and whole numbers of more than 64 bits."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _refuse_numbers(inner, f"{where}: {key}")
    elif isinstance(value, list | tuple):
        for inner in value:
            _refuse_numbers(inner, where)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{where} must be a finite number, got {value}")
    elif isinstance(value, int) and not -LARGEST <= value < LARGEST:
        raise ConfigError(f"{where} is too large a number: {str(value)[:24]}…")


def _refuse_unknown_keys(cls: type, mapping: Mapping[str, Any], where: str) -> None:
    fields = {field.name for field in dataclasses.fields(cls)}
    kinds = get_type_hints(cls)
    for key, value in mapping.items():
        if key not in fields:
            raise ConfigError(f"{where}: unknown key {key!r}; {near_names(key, fields)}")
        inner = kinds[key]
        if dataclasses.is_dataclass(inner) and isinstance(value, Mapping):
            _refuse_unknown_keys(inner, value, f"{where}.{key}")  # type: ignore[arg-type]
