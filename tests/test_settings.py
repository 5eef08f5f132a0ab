"""Settings: few enough, each with a line of help, and all of them reachable."""

import io
import json
import re
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
from rich.console import Console
from tests.miniatures import run

from clipset.cli.app import app
from clipset.config import build, to_mapping
from clipset.recipe import Recipe, read_recipe, resolve_recipe
from clipset.settings import list_settings, recipe_template

LIMIT = 95  # settings in all; `preset` is one, at the top and in sections
VERBS = (
    "run", "demo", "catalog", "catalog check", "backbones", "backbones check", "extract", "import",
    "verify", "repair", "merge", "pretrain", "pretrain-backbone", "evaluate", "predict", "embed",
    "report", "reproduce", "search", "serve", "settings",
)  # fmt: skip


def test_there_are_few_settings_and_each_has_a_line_of_help() -> None:
    settings = list_settings()
    counted = [each for each in settings if not each.name.endswith(".preset")]
    assert len(counted) <= LIMIT
    assert [each.name for each in settings if not each.help] == []
    assert len({each.name for each in settings}) == len(settings)


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_shows_at_most_twelve_flags(verb: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(*verb.split(), "--help") == 0
    parameters = capfd.readouterr().out.partition("─ Parameters ─")[2]
    flags = re.findall(r"^│ [ *]*(--[a-z-]+)", parameters, flags=re.M)
    assert 1 <= len(flags) <= 12, flags


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("verb", ["", "estimate", *VERBS])
def test_help_fills_the_lines_of_the_terminal(verb: str, width: int) -> None:
    text = io.StringIO()
    app.help_print(verb.split(), console=Console(width=width, file=text))
    lines = text.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    for line, next_line in pairwise(lines):
        is_wrapped = re.match(r"(│ {6,})?[^\s│╭╰]", next_line) and line[:1] not in ("", " ", "╭")
        if is_wrapped and line.startswith("│") == next_line.startswith("│"):
            room = width - 2 if line.startswith("│") else width
            next_word = next_line.strip("│ ").split()[0]
            assert len(line.rstrip(" │")) + 1 + len(next_word) > room, line
            assert not line.startswith("Example:"), "a command cannot be copied from two lines"


def test_the_defaults_are_those_of_a_recipe() -> None:
    resolved = to_mapping(resolve_recipe({}))
    for each in list_settings():
        value = resolved
        for key in each.name.split("."):
            value = value.get(key, each.default)
        assert value == each.default, each.name


def test_the_template_is_a_recipe_with_every_setting() -> None:
    uncommented = re.sub(r"^# (\w+ = .+)$", r"\1", recipe_template(), flags=re.M)
    tables = tomllib.loads(uncommented)
    assert resolve_recipe(tables) == resolve_recipe({})
    names = [each.name for each in list_settings()]
    assert len(re.findall(r"^# \w+ =", recipe_template(), flags=re.M)) == len(names)


def test_the_verb_lists_settings_and_shows_what_a_recipe_resolves_to(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run("settings", "pretrain.model") == 0
    lines = capfd.readouterr().out.splitlines()
    assert all(line.startswith(("pretrain.model.", "    ")) for line in lines)
    assert run("settings", "--toml") == 0
    (tmp_path / "r.toml").write_text('preset = "paper"\n' + capfd.readouterr().out)
    assert run("settings", "--recipe", tmp_path / "r.toml", "--json") == 0
    resolved = build(Recipe, json.loads(capfd.readouterr().out), "printed")
    assert resolved == read_recipe(None, ["preset=paper"])
    assert run("settings", "preset", "--set", "pretrain.epochs=3") == 0
    assert capfd.readouterr().out.startswith('preset = "recommended"')
    assert run("settings", "pretrain.modle") == 2
    assert "did you mean pretrain.model" in capfd.readouterr().err
