"""Which recipe of the repository, with which changes, a finished run was made by."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from clipset.config import to_mapping
from clipset.errors import ConfigError
from clipset.recipe import Recipe

RECIPES = Path(__file__).resolve().parents[1] / "recipes"
Read = Callable[[Path, Sequence[str]], Recipe]


def find_recipe(wanted: Recipe, read: Read, folder: Path = RECIPES) -> tuple[Path, list[str]]:
    """The recipe that needs the fewest changes, and these; read again, they give `wanted`."""
    found = []
    for path in sorted(folder.glob("*.toml")):
        changes = _changes(path, wanted, read)
        if changes is not None:
            other = read(path, ()).data.name != wanted.data.name
            found.append((other, len(changes), path.name, changes))
    if not found:
        raise ConfigError("no recipe of the repository can be changed into that of the run")
    _, _, name, changes = min(found)
    return folder / name, changes


def as_words(changes: Sequence[str]) -> str:
    """Changes as they are typed."""
    return "".join(f" --set {shlex.quote(change)}" for change in changes)


def _changes(path: Path, wanted: Recipe, read: Read) -> list[str] | None:
    """Presets first, because other settings move with them; then what still differs."""
    target = _flat(to_mapping(wanted))
    changes: list[str] = []
    for presets in (True, False):
        here = _flat(to_mapping(read(path, changes)))
        for name, value in target.items():
            if here.get(name) != value and name.endswith("preset") == presets:
                changes.append(f"{name}={_value(value)}")
    try:
        return changes if read(path, changes) == wanted else None
    except ConfigError:
        return None


def _flat(mapping: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in mapping.items():
        flat |= (
            _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
        )
    return flat


def _value(value: Any) -> str:
    plain = isinstance(value, str) and value.replace("_", "").replace("/", "").isalnum()
    return value if plain else json.dumps(value)
