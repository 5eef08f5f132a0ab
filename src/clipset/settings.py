"""All settings with their types, defaults and help, as a list and as a commented recipe."""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from clipset.config import near_names, to_mapping
from clipset.errors import ConfigError
from clipset.presets import PRESETS
from clipset.recipe import resolve_recipe

LINE_LENGTH = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting: its dotted name, the values it takes, its default and its help."""

    name: str
    type: str
    default: Any
    help: str


def list_settings(section: str = "") -> list[Setting]:
    """The settings of a section such as `pretrain` or `pretrain.model`, or all of them."""
    preset_setting = Setting(
        name="preset",
        type=" | ".join(PRESETS),
        default=PRESETS[0],
        help="named settings for all sections; what is set by hand wins",
    )
    settings = [preset_setting, *_walk(resolve_recipe({}), "")]
    selected = [s for s in settings if not section or f"{s.name}.".startswith(f"{section}.")]
    if not selected:
        section_names = {setting.name.rpartition(".")[0] for setting in settings} - {""}
        raise ConfigError(f"no section {section!r}; {near_names(section, section_names)}")
    return selected


def recipe_template() -> str:
    """A recipe with every setting in a comment, to edit."""
    template_lines = ["# Remove the # before a setting to change it; the values are the defaults."]
    section = ""
    for setting in list_settings():
        table, _, name = setting.name.rpartition(".")
        if table != section:
            section = table
            template_lines += ["", f"[{table}]"]
        help_lines = textwrap.wrap(setting.help, LINE_LENGTH - 2)
        value_line = f"{name} = {toml_value(setting.default)}".rstrip()
        template_lines += ["", *(f"# {line}" for line in (*help_lines, value_line))]
    return "\n".join(template_lines) + "\n"


def toml_value(value: Any) -> str:
    """A value as TOML writes it; an unset one is empty."""
    if value is None:
        return ""
    if isinstance(value, Mapping):
        pairs = (f"{key} = {toml_value(inner)}" for key, inner in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(map(toml_value, value))}]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str | bool) else repr(value)


def _walk(config: Any, prefix: str) -> Iterator[Setting]:
    """The settings of a dataclass, then those of the dataclasses in it."""
    type_hints, help_texts = get_type_hints(type(config)), field_docstrings(type(config))
    field_values = {field.name: getattr(config, field.name) for field in fields(config)}
    for name, value in field_values.items():
        if not is_dataclass(value):
            yield Setting(
                name=f"{prefix}{name}",
                type=_type_text(type_hints[name]),
                default=to_mapping(value),
                help=help_texts.get(name, ""),
            )
    for name, value in field_values.items():
        if is_dataclass(value):
            yield from _walk(value, f"{prefix}{name}.")


def field_docstrings(cls: type) -> dict[str, str]:
    """The text under each field of a dataclass."""
    [class_body] = ast.parse(inspect.getsource(cls)).body
    assert isinstance(class_body, ast.ClassDef)
    help_texts = {}
    for statement, next_statement in zip(class_body.body, class_body.body[1:], strict=False):
        if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)):
            continue
        if isinstance(next_statement, ast.Expr) and isinstance(next_statement.value, ast.Constant):
            help_texts[statement.target.id] = " ".join(str(next_statement.value.value).split())
    return help_texts


def _type_text(kind: Any) -> str:
    """A type in the words of a recipe."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return " | ".join(str(value) for value in inner)
    if origin in (Union, types.UnionType):
        return " | ".join(_type_text(one) for one in inner if one is not types.NoneType)
    if origin is tuple:
        inner_kinds = list(dict.fromkeys(_type_text(one) for one in inner if one is not Ellipsis))
        length_text = "" if Ellipsis in inner else f"{len(inner)} "
        return f"{length_text}[{', '.join(inner_kinds)}]"
    if origin is dict:
        return "table"
    return str(getattr(kind, "__name__", kind))
