"""The recipe of the repository, and the changes to it, of a finished run."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from clipset.config import flatten, to_mapping
from clipset.errors import ConfigError
from clipset.recipe import Recipe

RECIPES = Path(__file__).resolve().parents[1] / "recipes"
Read = Callable[[Path, Sequence[str]], Recipe]


def match_recipe(target: Recipe, read: Read, folder: Path = RECIPES) -> tuple[Path, list[str]]:
    """The recipe that needs the fewest changes, and the changes; together they give `target`."""
    candidates = []
    for path in sorted(folder.glob("*.toml")):
        changes = _list_changes(path, target, read)
        if changes is not None:
            other = read(path, ()).data.name != target.data.name
            candidates.append((other, len(changes), path.name, changes))
    if not candidates:
        raise ConfigError("no recipe of the repository can be changed into the one of the run")
    _, _, name, changes = min(candidates)
    return folder / name, changes


def as_options(changes: Sequence[str]) -> str:
    """Changes as options of the command line."""
    return "".join(f" --set {shlex.quote(change)}" for change in changes)


def _list_changes(path: Path, target: Recipe, read: Read) -> list[str] | None:
    """Presets first, because they change other settings; then the remaining differences."""
    settings = flatten(to_mapping(target))
    changes: list[str] = []
    for presets in (True, False):
        current = flatten(to_mapping(read(path, changes)))
        for name, value in settings.items():
            if current.get(name) != value and name.endswith("preset") == presets:
                changes.append(f"{name}={_toml_value(value)}")
    try:
        return changes if read(path, changes) == target else None
    except ConfigError:
        return None


def _toml_value(value: Any) -> str:
    plain = isinstance(value, str) and value.replace("_", "").replace("/", "").isalnum()
    return value if plain else json.dumps(value)
