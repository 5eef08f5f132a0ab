"""Recipe: a whole experiment in one value, and in one TOML file."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from clipset.config import build, read_toml, refuse_deep, to_mapping
from clipset.data.tasks import DataConfig
from clipset.errors import ConfigError
from clipset.evaluation.config import ProbeConfig
from clipset.features.config import ExtractConfig
from clipset.text import path_text
from clipset.training.config import PretrainConfig

C = TypeVar("C")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How the walk is walked, step by step."""

    test_fraction: float = 0.25
    """share of the labelled videos set aside for the test, where the catalog says nothing"""
    data: DataConfig = field(default_factory=DataConfig)
    """which videos there are, and who is judged"""
    extract: ExtractConfig = field(default_factory=ExtractConfig)
    """how features are made"""
    pretrain: PretrainConfig = field(default_factory=PretrainConfig)
    """how the model is trained"""
    probe: ProbeConfig = field(default_factory=ProbeConfig)
    """how the result is judged"""

    def __post_init__(self) -> None:
        if not 0 < self.test_fraction < 1:
            raise ConfigError(f"test_fraction must lie between 0 and 1, got {self.test_fraction}")


def read_recipe(path: Path | None, changes: Sequence[str] = ()) -> Recipe:
    """A recipe from a file (or the default one) with changes such as `pretrain.epochs=100`."""
    tables = read_toml(path) if path else {}
    for change in changes:
        _apply(tables, change)
    return build(Recipe, tables, str(path) if path else "recipe")


def find_recipe(name: str) -> Path:
    """A recipe that comes with clipset: inside the installed package, or in its repository."""
    here = Path(__file__).resolve()
    folders = (here.parent / "recipes", here.parents[2] / "recipes")
    path = next((folder / f"{name}.toml" for folder in folders if folder.is_dir()), None)
    if path is None or not path.is_file():
        raise ConfigError(f"the recipe {name}.toml does not come with this clipset; give --recipe")
    return path


def overlay(base: C, given: C, usual: C) -> C:
    """The settings of `base`, but for those of `given` that are not the usual ones."""
    settings: Any = given
    chosen = {}
    for each in fields(settings):
        old, new, plain = (getattr(one, each.name) for one in (base, given, usual))
        if is_dataclass(new) and not isinstance(new, type):
            new = overlay(old, new, plain)
        elif new == plain:
            continue
        chosen[each.name] = new
    changed: C = replace(base, **chosen)  # type: ignore[type-var]
    return changed


def change_recipe(recipe: Recipe, changes: Sequence[str]) -> Recipe:
    """The recipe with changes such as `pretrain.epochs=100`."""
    tables = to_mapping(recipe)
    for change in changes:
        _apply(tables, change)
    return build(Recipe, tables, "recipe")


def _apply(tables: dict[str, Any], change: str) -> None:
    name, equals, value = path_text(change).partition("=")  # a word of the command line
    if not equals or not name.strip():
        raise ConfigError(f"a change looks like pretrain.epochs=100, got {change!r}")
    try:
        parsed = refuse_deep(tomllib.loads(f"value = {value}")["value"], name)
    except tomllib.TOMLDecodeError:
        parsed = value.strip()
    except (RecursionError, ValueError):  # nested too deeply, or thousands of digits
        raise ConfigError(f"{name}: no setting has such a value: {value[:40]}…") from None
    *outer, last = name.strip().split(".")
    for key in outer:
        tables = tables.setdefault(key, {})
        if not isinstance(tables, dict):
            raise ConfigError(f"{key!r} in {change!r} is a value, not a table")
    tables[last] = parsed
