"""`clipset settings`: all settings, or what a recipe resolves to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from clipset.cli.app import (
    COMMON,
    Changes,
    Common,
    Switch,
    app,
    print_line,
    show_result,
)

if TYPE_CHECKING:
    from clipset.settings import Setting


@app.command(name="settings")
def settings_command(
    section: str = "",
    /,
    *,
    toml: Annotated[bool, Switch, Parameter(show_default=False)] = False,
    recipe: Path | None = None,
    set: Changes = (),
    common: Common = COMMON,
) -> None:
    """List all settings with type, default and help, or what a recipe resolves to.

    Example: clipset settings pretrain

    Example: clipset settings --toml > recipe.toml

    Example: clipset settings --recipe recipe.toml --json

    Parameters
    ----------
    section
        Only this section, such as `extract.sampling`.
    toml
        Print a commented recipe to edit.
    recipe
        Show the values that this TOML file resolves to, presets included.
    set
        One setting, such as `--set pretrain.preset=paper`; may be repeated.
    """
    from clipset.config import to_mapping
    from clipset.recipe import read_recipe
    from clipset.settings import list_settings, recipe_template

    listed = list_settings(section)
    if toml:
        text = recipe_template()
        show_result({"toml": text}, common, lambda: print_lines(text.splitlines()))
    elif recipe or set:
        resolved = to_mapping(read_recipe(recipe, set))
        values = {
            setting.name: _select(resolved, setting.name)
            for setting in listed
            if "." in setting.name
        }
        result = _select(resolved, section)
        show_result(result, common, lambda: print_lines(describe_settings(listed, values)))
    else:
        show_result({"settings": listed}, common, lambda: print_lines(describe_settings(listed)))


def describe_settings(listed: list[Setting], values: Mapping[str, Any] | None = None) -> list[str]:
    """Two lines for each setting: name, value and type, then its help."""
    from clipset.settings import toml_value

    lines = []
    for setting in listed:
        value = setting.default if values is None else values.get(setting.name, setting.default)
        text = toml_value(value) or "not set"
        default = (
            "" if value == setting.default else f"; default {toml_value(setting.default) or '–'}"
        )
        lines += [f"{setting.name} = {text}  ({setting.type}{default})", f"    {setting.help}"]
    return lines


def print_lines(lines: Iterable[str]) -> None:
    """Print lines one by one."""
    for line in lines:
        print_line(line)


def _select(tables: Any, name: str) -> Any:
    """The value with a dotted name in nested tables."""
    for key in name.split(".") if name else ():
        tables = tables[key]
    return tables
