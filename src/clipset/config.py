"""Plain mappings (TOML, JSON) to checked, frozen dataclasses and back. Knows no stage."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, get_type_hints

import msgspec

from clipset.errors import ConfigError

T = TypeVar("T")
_ODD = re.compile("[\0\ud800-\udfff]")
ADDED = {"added": True}
"""Metadata of a field that a type got later: left out of `settled` where it has its default."""


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no recipe at {path}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def build(cls: type[T], mapping: Mapping[str, Any], where: str) -> T:
    """A `cls` from a mapping; unknown keys and wrong types are errors that name the place."""
    _refuse_unknown_keys(cls, mapping, where)
    check_text(mapping, where)
    try:
        return msgspec.convert(mapping, type=cls, strict=True)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}") from None


def to_mapping(value: Any) -> Any:
    """The same value in dictionaries, lists, strings and numbers only."""
    return msgspec.to_builtins(value)


def settled(value: Any) -> Any:
    """`to_mapping` as it was before fields were added that have their default here.

    So what was made before a type grew keeps its fingerprint, and older versions can read it.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        kept = {field.name: getattr(value, field.name) for field in fields}
        for field in fields:
            factory = field.default_factory
            usual = field.default if factory is dataclasses.MISSING else factory()
            if field.metadata.get("added") and kept[field.name] == usual:
                del kept[field.name]
        return {name: settled(inner) for name, inner in kept.items()}
    if isinstance(value, Mapping):
        return {key: settled(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [settled(inner) for inner in value]
    return to_mapping(value)


def fingerprint(*values: Any) -> str:
    """A short name for the content of `values`: equal content, equal name, on any machine."""
    canonical = _encode([settled(value) for value in values])
    return hashlib.sha256(canonical).hexdigest()[:16]


def read_json(path: Path) -> Any:
    """The content of a JSON file."""
    try:
        return msgspec.json.decode(path.read_bytes())
    except FileNotFoundError:
        raise ConfigError(f"there is no file {path}") from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from None


def write_json(path: Path, value: Any) -> None:
    """Write `value` so that a reader sees the whole old file or the whole new one."""
    encoded = msgspec.json.format(_encode(value, order=None), indent=2)
    write_atomic(path, encoded + b"\n")


def write_atomic(path: Path, content: bytes) -> None:
    """Write under a temporary name, flush to disk, then rename; folders are made as needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name[:50]}.{os.getpid()}.part")  # names end at 255 bytes
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


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


def _refuse_unknown_keys(cls: type, mapping: Mapping[str, Any], where: str) -> None:
    fields = {field.name for field in dataclasses.fields(cls)}
    for key, value in mapping.items():
        if key not in fields:
            raise ConfigError(f"{where}: unknown key {key!r}; {near_names(key, fields)}")
        inner = get_type_hints(cls)[key]
        if dataclasses.is_dataclass(inner) and isinstance(value, Mapping):
            _refuse_unknown_keys(inner, value, f"{where}.{key}")  # type: ignore[arg-type]
