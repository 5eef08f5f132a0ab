"""`clipset settings`: all settings, or what a recipe resolves to."""

from __future__ import annotations

from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from clipset.cli import flags
from clipset.cli.app import app, show_result


@app.command(name="settings", usage="clipset settings [OPTIONS] [SECTION]")
def settings_command(
    section: Annotated[str, Parameter(show_default=False)] = "",
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
    resolved = to_mapping(read_recipe(recipe, set)) if recipe or set else {}

    def find(name: str) -> Any:
        return reduce(getitem, name.split("."), resolved)

    lines = []
    for setting in listed_settings:
        default = value = toml_value(setting.default)
        if resolved and setting.name != "preset":
            value = toml_value(find(setting.name))
        default_note = "" if value == default else f"; default {default or '–'}"
        lines.append(f"{setting.name} = {value or 'not set'}  ({setting.type}{default_note})")
        lines.append(f"    {setting.help}")
    has_section = section not in ("", "preset")  # a resolved recipe has no preset any more
    result = find(section) if resolved and has_section else resolved
    show_result(result or {"settings": listed_settings}, common, lines)
