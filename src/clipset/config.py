"""Checked, frozen dataclasses from plain tables (TOML, JSON), and back."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from clipset.errors import ConfigError

T = TypeVar("T")
_INVALID_TEXT = re.compile("[\0\ud800-\udfff]")
MAX_DEPTH = 40  # of nested tables and lists in a file; ours have fewer than ten
MAX_INT = 2**63
_TYPE_ERROR = re.compile(
    r"(?:Expected `(?P<types>[^`]+)`, got `[^`]+`|Invalid enum value .*)"
    r" - at `\$\.(?P<name>[\w.]+)(?P<item>(?:\[[^`.]*\])?)`"
)
_TYPE_NAMES = {  # those of msgspec, in words
    "int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text",
    "array": 'a list such as ["a", "b"]', "object": "a table of settings",
}  # fmt: skip


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file; errors are one line."""
    try:
        return check_depth(tomllib.loads(path.read_text(encoding="utf-8")), str(path))
    except FileNotFoundError:
        raise ConfigError(f"recipe {path} not found") from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except RecursionError:
        raise ConfigError(f"{path} is nested too deeply (at most {MAX_DEPTH} levels)") from None
    except ValueError as error:  # also of other bytes, and of a number with thousands of digits
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def check_depth(value: T, source: str) -> T:
    """The value itself; refuses tables and lists that are nested too deeply."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        nested = [item for item in level if isinstance(item, dict | list)]
        level = [x for item in nested for x in (item.values() if isinstance(item, dict) else item)]
        if not level:
            return value
    raise ConfigError(f"{source} is nested too deeply (at most {MAX_DEPTH} levels)")


def build(cls: type[T], mapping: Any, source: str) -> T:
    """A `cls` from a mapping; unknown keys and wrong types are errors that name the key."""
    if not isinstance(mapping, Mapping):
        raise ConfigError(f"{source} must be a table of settings, got {type(mapping).__name__}")
    _check_keys(cls, mapping, source)
    check_values(mapping, source)
    try:
        return msgspec.convert(mapping, type=cls, strict=True)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {_describe_error(str(error), cls, mapping)}") from None


def to_mapping(value: Any) -> Any:
    """The same value in dictionaries, lists, strings and numbers only."""
    return msgspec.to_builtins(value)


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, with keys such as `pretrain.epochs`."""
    flat_table: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            flat_table |= flatten(value, f"{prefix}{name}.")
        else:
            flat_table[f"{prefix}{name}"] = value
    return flat_table


def fingerprint(*values: Any) -> str:
    """A short hash of the content of `values`, the same on any machine."""
    canonical = _encode([to_mapping(value) for value in values])
    return hashlib.sha256(canonical).hexdigest()[:16]


def read_json(path: Path) -> Any:
    """The content of a JSON file."""
    try:
        return parse_json(path.read_bytes(), str(path))
    except FileNotFoundError:
        raise ConfigError(f"file {path} not found") from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None


def parse_json(text: bytes | str, source: str) -> Any:
    """The value in a text; errors are one line."""
    try:
        return check_depth(msgspec.json.decode(text), source)
    except RecursionError:
        raise ConfigError(f"{source} is nested too deeply (at most {MAX_DEPTH} levels)") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{source} is not valid JSON: {error}") from None


def encode_json(value: Any) -> bytes:
    """A value as the text of a file."""
    return msgspec.json.format(_encode(value, order=None), indent=2) + b"\n"


def near_names(name: str, names: Iterable[str]) -> str:
    """`did you mean …?` with similar names, else all of them."""
    names = sorted(names)
    close_names = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    return did_you_mean(close_names) if close_names else f"known: {', '.join(names)}"


def did_you_mean(names: Sequence[str]) -> str:
    """`did you mean a, b or c?`"""
    return f"did you mean {' or '.join(filter(None, [', '.join(names[:-1]), names[-1]]))}?"


def _encode(value: Any, order: Literal["sorted"] | None = "sorted") -> bytes:
    try:
        return msgspec.json.encode(value, order=order)
    except UnicodeEncodeError as error:
        text = ascii(error.object)
        raise ConfigError(f"{text} has bytes that are not UTF-8; use another name") from None


def check_values(value: Any, source: str) -> None:
    """Refuse what no file name and no JSON can hold, anywhere in nested settings.

    That is text with NUL or bytes that are not UTF-8, NaN, infinity, and integers over 64 bits.
    """
    if isinstance(value, Mapping):
        for key, inner in value.items():
            check_values(key, source)
            check_values(inner, f"{source}: {key}")
    elif isinstance(value, list | tuple):
        for inner in value:
            check_values(inner, source)
    elif isinstance(value, str) and _INVALID_TEXT.search(value):
        problem = "a NUL character" if "\0" in value else "bytes that are not UTF-8"
        raise ConfigError(f"{source} contains {problem}, got {value!a}")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{source} must be a finite number, got {value}")
    elif isinstance(value, int) and not -MAX_INT <= value < MAX_INT:
        raise ConfigError(f"{source} is too large a number: {str(value)[:24]}…")


def _describe_error(message: str, cls: Any, value: Any) -> str:
    """What msgspec found wrong, in words: the setting, what it takes, and the value given."""
    match = _TYPE_ERROR.fullmatch(message)
    if match is None:
        return message
    for key in match["name"].split("."):
        if not dataclasses.is_dataclass(cls):
            return message  # within a value that may be missing
        cls, value = get_type_hints(cls).get(key), value[key]
    names = (match["types"] or "").split(" | ")
    wanted = " or ".join(_TYPE_NAMES.get(name, name) for name in names if name != "null")
    wanted = wanted or f"one of {', '.join(map(str, _choices(cls)))}"
    return f"{match['name']}{match['item']} must be {wanted}, got {value!r:.80}"


def _choices(type_: Any) -> tuple[Any, ...]:
    """The values of the literals within a type."""
    if get_origin(type_) is Literal:
        return get_args(type_)
    return tuple(choice for inner in get_args(type_) for choice in _choices(inner))


def _check_keys(cls: type, mapping: Mapping[str, Any], source: str) -> None:
    field_names = {field.name for field in dataclasses.fields(cls)}
    field_types = get_type_hints(cls)
    for key, value in mapping.items():
        if key not in field_names:
            inner_names = [
                f"{section}.{key}"
                for section, inner in field_types.items()
                if key in getattr(inner, "__dataclass_fields__", ())
            ]
            hint = did_you_mean(inner_names) if inner_names else near_names(key, field_names)
            raise ConfigError(f"{source}: unknown key {key!r}; {hint}")
        inner_type = field_types[key]
        if dataclasses.is_dataclass(inner_type) and isinstance(value, Mapping):
            _check_keys(inner_type, value, f"{source}.{key}")  # type: ignore[arg-type]
