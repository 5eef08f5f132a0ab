"""`clipset settings`: all settings, or what a recipe resolves to."""

from __future__ import annotations

from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from clipset.cli import flags
from clipset.cli.app import app, show_result


@app.command(name="settings")
def settings_command(
    section: str = "",
    /,
    *,
    toml: flags.Switch = False,
    recipe: Path | None = None,
    set: flags.Changes = (),
    common: flags.Common = flags.COMMON,
) -> None:
    """List all settings with type, default and help, or what a recipe resolves to.

    Example: clipset settings pretrain

    Example: clipset settings --toml > recipe.toml

    Example: clipset settings --recipe recipe.toml --json

    Args:
        section: Only this section, such as `extract.sampling`.
        toml: Print a commented recipe to edit.
        recipe: Show the values that this TOML file resolves to, presets included.
    """
    from clipset.config import to_mapping
    from clipset.recipe import read_recipe
    from clipset.settings import list_settings, recipe_template, toml_value

    listed_settings = list_settings(section)
    if toml:
        recipe_text = recipe_template()
        show_result({"toml": recipe_text}, common, recipe_text.splitlines())
        return
    values: dict[str, Any] = {setting.name: setting.default for setting in listed_settings}
    result: Any = {"settings": listed_settings}
    if recipe or set:
        resolved = to_mapping(read_recipe(recipe, set))
        result = reduce(getitem, section.split("."), resolved) if section else resolved
        values |= {
            name: reduce(getitem, name.split("."), resolved) for name in values if name != "preset"
        }
    output_lines = []
    for setting in listed_settings:
        value, default = toml_value(values[setting.name]), toml_value(setting.default)
        default_note = "" if value == default else f"; default {default or '–'}"
        output_lines += [f"{setting.name} = {value or 'not set'}  ({setting.type}{default_note})"]
        output_lines += [f"    {setting.help}"]
    show_result(result, common, output_lines)
