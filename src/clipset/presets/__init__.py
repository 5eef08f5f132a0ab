"""Named settings, as TOML files with the sections of a recipe: recommended, paper, official."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clipset.config import near_names, read_toml
from clipset.errors import ConfigError

PRESETS = ("recommended", "paper", "official")


def read_preset(name: object) -> dict[str, Any]:
    """The tables of a preset; they hold only what differs from the defaults."""
    if name not in PRESETS:
        raise ConfigError(f"unknown preset {name!r}; {near_names(str(name), PRESETS)}")
    return read_toml(Path(__file__).with_name(f"{name}.toml"))
