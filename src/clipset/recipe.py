"""Recipe: the settings of a whole run, layered: defaults ← preset ← recipe file ← changes.

The layers are merged as plain tables before a dataclass is built, so a value that was set by hand
wins over a preset, also if it equals the default.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from clipset.config import build, check_depth, read_toml, to_mapping
from clipset.data.tasks import DataConfig
from clipset.errors import ConfigError
from clipset.features.config import ExtractConfig
from clipset.presets import read_preset
from clipset.probes.config import EvaluateConfig
from clipset.text import path_text
from clipset.training.config import PretrainConfig

PRESET_SECTIONS = {"extract": ExtractConfig, "pretrain": PretrainConfig, "evaluate": EvaluateConfig}
C = TypeVar("C", ExtractConfig, PretrainConfig, EvaluateConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The settings of a run, one section for each step."""

    data: DataConfig = field(default_factory=DataConfig)
    """which videos there are, and which are scored"""
    extract: ExtractConfig = field(default_factory=ExtractConfig)
    """how features are extracted"""
    pretrain: PretrainConfig = field(default_factory=PretrainConfig)
    """how the model is trained"""
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    """how features are evaluated"""


def read_recipe(
    path: Path | None, changes: Sequence[str] = (), flags: Mapping[str, Any] | None = None
) -> Recipe:
    """A recipe from a file (or the default one) with changes such as `pretrain.epochs=100`.

    `flags` are values by name, such as `pretrain.epochs`; None means that a flag was not used.
    """
    tables = read_toml(path) if path else {}
    for change in changes:
        apply_change(tables, change)
    for name, value in (flags or {}).items():
        if value is not None:
            set_value(tables, name, to_mapping(value))
    return resolve_recipe(tables, str(path) if path else "recipe")


def find_recipe(name: str) -> Path:
    """A recipe that comes with clipset: inside the installed package, or in its repository."""
    own_path = Path(__file__).resolve()
    recipe_folders = (own_path.parent / "recipes", own_path.parents[2] / "recipes")
    path = next((folder / f"{name}.toml" for folder in recipe_folders if folder.is_dir()), None)
    if path is None or not path.is_file():
        raise ConfigError(f"the recipe {name}.toml does not come with this clipset; give --recipe")
    return path


def resolve_recipe(tables: Mapping[str, Any], source: str = "recipe") -> Recipe:
    """The recipe of tables in which only what was set by hand appears; presets fill in the rest."""
    layered_tables = dict(tables)
    preset = layered_tables.pop("preset", "recommended")
    for section in PRESET_SECTIONS:
        layered_tables[section] = _layer_section(section, preset, layered_tables.get(section, {}))
    return build(Recipe, layered_tables, source)


def load_settings(kind: type[C], preset: str = "recommended", **changes: Any) -> C:
    """The settings of one section: its defaults, a preset, then the changes.

    `load_settings(PretrainConfig, "paper", epochs=3, model={"width": 64})`
    """
    [section] = [name for name, config in PRESET_SECTIONS.items() if config is kind]
    return build(kind, _layer_section(section, preset, to_mapping(changes)), section)


def change_recipe(recipe: Recipe, changes: Sequence[str]) -> Recipe:
    """A resolved recipe with changes such as `pretrain.epochs=100`."""
    tables = to_mapping(recipe)
    for change in changes:
        if change.partition("=")[0].strip().split(".")[-1] == "preset":
            raise ConfigError(f"{change}: a preset cannot be changed once settings are resolved")
        apply_change(tables, change)
    return build(Recipe, tables, "recipe")


def apply_change(tables: dict[str, Any], change: str) -> None:
    """Set one value of nested tables, from a text such as `pretrain.epochs=100`."""
    name, equals, value = path_text(change).partition("=")  # a word of the command line
    if not equals or not name.strip():
        raise ConfigError(
            f"a setting needs NAME=VALUE, such as pretrain.epochs=100; got {change!r}"
        )
    try:
        parsed_value = check_depth(tomllib.loads(f"value = {value}")["value"], name)
    except tomllib.TOMLDecodeError:
        parsed_value = value.strip()
    except (RecursionError, ValueError):  # nested too deeply, or thousands of digits
        raise ConfigError(f"{name}: no setting has such a value: {value[:40]}…") from None
    set_value(tables, name.strip(), parsed_value)


def set_value(tables: dict[str, Any], name: str, value: Any) -> None:
    """Set the value with a dotted name, such as `pretrain.epochs`, in nested tables."""
    *outer_keys, last_key = name.split(".")
    for key in outer_keys:
        tables = tables.setdefault(key, {})
        if not isinstance(tables, dict):
            raise ConfigError(f"{key!r} in {name!r} is a value, not a table")
    tables[last_key] = value


def _layer_section(section: str, preset: str, own: Any) -> Any:
    """A section's own values over those of its preset."""
    if not isinstance(own, Mapping):
        return own
    name = own.get("preset", preset)
    return _merge(read_preset(name).get(section, {}), {**own, "preset": name})


def _merge(lower: Any, upper: Any) -> Any:
    """Nested tables in which the values of `upper` win."""
    if not (isinstance(lower, Mapping) and isinstance(upper, Mapping)):
        return upper
    return {**lower, **{key: _merge(lower.get(key), value) for key, value in upper.items()}}
