"""What the documents say is true: names, paths, commands, settings and code."""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
import xml.etree.ElementTree as ET
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from clipset.cli import app
from clipset.clips.config import Sampling
from clipset.config import build
from clipset.data.catalog import read_catalog_table
from clipset.evaluation.config import EvaluateConfig, ProbeTraining
from clipset.features.config import ExtractConfig
from clipset.features.store import FeatureStore
from clipset.model.config import ModelConfig
from clipset.recipe import Recipe
from clipset.representation import embed_store, write_vectors
from clipset.training.config import PretrainConfig

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
FOLDERS = "src|docs|tests|examples|benchmarks|recipes"
CONFIGS = {
    config.__name__: config
    for config in (
        Sampling,
        ExtractConfig,
        ModelConfig,
        PretrainConfig,
        ProbeTraining,
        EvaluateConfig,
    )
}


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)


SNIPPETS = blocks(ROOT / "docs" / "quickstart.md", "python")


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.M | re.S)


@cache
def defined(path: Path) -> frozenset[str]:
    """What a Python file defines: names, and the attributes of its classes after a dot."""
    names: set[str] = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        names |= bound_by(node)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{inner}" for part in node.body for inner in bound_by(part)}
            names |= {f"{node.name}.{inner}" for inner in set_on_self(node)}
    return frozenset(names)


def bound_by(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
    return {
        part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)
    }


def set_on_self(node: ast.ClassDef) -> set[str]:
    return {
        part.attr
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute)
        and isinstance(part.ctx, ast.Store)
        and isinstance(part.value, ast.Name)
        and part.value.id == "self"
    }


def verbs() -> set[str]:
    return {name for name in app if not name.startswith("-")}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_file_and_name_that_a_document_refers_to_exists(page: Path) -> None:
    references = re.findall(rf"`((?:{FOLDERS})/[\w./-]+)(?:::([\w.]+))?`", prose(page))
    for path, name in references:
        assert (ROOT / path).exists(), f"{path} does not exist"
        if name:
            assert name in defined(ROOT / path), f"{path} does not define {name}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_of_a_document_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", prose(page)):
        assert target.startswith("https://") or (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_documents_name_no_place_on_one_machine(page: Path) -> None:
    assert not re.findall(r"(?<![\w~.])/(?:home|Users|root|tmp|opt)/\S+", page.read_text("utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_defaults_that_a_document_states_are_those_of_the_code(page: Path) -> None:
    for config, field, value in re.findall(r"`([A-Z]\w+)\.(\w+) = ([^`]+)`", prose(page)):
        assert getattr(CONFIGS[config](), field) == ast.literal_eval(value), f"{config}.{field}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_settings_that_a_document_names_exist(page: Path) -> None:
    names = re.findall(
        r"(?:`|--set )((?:extract|pretrain|probe)\.[a-z_.]+)(?=[`= ])", page.read_text()
    )
    for name in names:
        value: Any = Recipe()
        for part in name.split("."):
            value = getattr(value, part)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_commands_of_a_document_are_understood(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for line in "".join(blocks(page, "sh")).splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["make"]:
            assert re.search(rf"^{words[1]}:", makefile, re.M), line
        elif words[:1] == ["clipset"] and "--help" not in words:
            app.parse_args(words[1:], exit_on_error=False, print_error=False)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_code_of_a_document_imports_what_there_is(page: Path) -> None:
    for block in blocks(page, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("clipset"):
                module = import_module(node.module or "")
                assert all(hasattr(module, name.name) for name in node.names), ast.unparse(node)


def test_the_table_of_verbs_in_the_readme_has_every_verb() -> None:
    table = re.search(r"^\| verb \|.*?\n\n", (ROOT / "README.md").read_text("utf-8"), re.M | re.S)
    assert table is not None
    assert set(re.findall(r"^\| `(\w+)` \|", table[0], re.M)) == verbs()


def tree() -> list[str]:
    """The paths in the README's tree."""
    block = next(block for block in blocks(ROOT / "README.md", "text") if "├──" in block)
    parents: list[str] = []
    paths = []
    for line in block.splitlines()[1:]:
        found = re.match(r"([│ ]*)[├└]── (\S+)", line)
        assert found is not None, line
        parents[len(found[1]) // 4 :] = [found[2].rstrip("/")]
        paths.append("/".join(parents))
    return paths


def test_the_tree_in_the_readme_names_only_what_there_is() -> None:
    for path in tree():
        place = ROOT / path
        assert place.is_file() or any(part.is_file() for part in place.rglob("*")), path


def test_the_tree_in_the_readme_names_every_part_of_the_package() -> None:
    package = ROOT / "src" / "clipset"
    parts = {path.name for path in package.iterdir() if not path.name.startswith((".", "_"))}
    named = {Path(path).name for path in tree() if path.startswith("src/clipset/")}
    assert parts - {"py.typed"} <= named


def test_the_types_in_the_walk_have_the_fields_that_it_lists() -> None:
    row = re.compile(
        rf"^\|[^|]*\| `((?:{FOLDERS})/[\w./]+)::(\w+)`( \(a class\))? \| (.*) \|$", re.M
    )
    rows = row.findall((ROOT / "docs" / "architecture.md").read_text("utf-8"))
    assert len(rows) > 20
    for path, name, is_class, text in rows:
        listed = set(re.findall(r"`(\w+)`", text))
        assert {f"{name}.{field}" for field in listed} <= defined(ROOT / path), name
        assert is_class or fields_of(ROOT / path, name) <= listed, name


def fields_of(path: Path, name: str) -> set[str]:
    """The annotated fields of a class."""
    body = ast.parse(path.read_text("utf-8")).body
    found = next(node for node in body if isinstance(node, ast.ClassDef) and node.name == name)
    return {n for part in found.body if isinstance(part, ast.AnnAssign) for n in bound_by(part)}


def test_the_layers_in_the_walk_are_those_of_the_import_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    layers = next(c["layers"] for c in contracts["contracts"] if c["type"] == "layers")
    [block] = blocks(ROOT / "docs" / "architecture.md", "layers")
    assert block.splitlines() == [layer.replace("clipset.", "") for layer in layers]


def test_the_recipe_and_the_table_of_the_first_half_hour_are_read(tmp_path: Path) -> None:
    page = ROOT / "docs" / "quickstart.md"
    [recipe], [table] = blocks(page, "toml"), blocks(page, "csv")
    assert build(Recipe, tomllib.loads(recipe), "quickstart.md").extract.sampling.flip is False
    (tmp_path / "catalog.csv").write_text(table, "utf-8")
    catalog = read_catalog_table(tmp_path / "catalog.csv")
    assert (catalog.classes, catalog.splits) == (("point", "wave"), ("test", "train"))


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_the_code_of_the_first_half_hour_runs(
    number: int, small_store: FeatureStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = SNIPPETS[number]
    if "import pandas" in block and find_spec("pandas") is None:
        pytest.skip("pandas is not installed")
    folder = tmp_path / "runs" / "first" / "representation"
    write_vectors(embed_store(small_store, None), folder)
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "quickstart.md", "exec"), {})


def test_the_picture_is_whole_and_knows_the_dark() -> None:
    picture = (ROOT / "docs" / "pipeline.svg").read_text("utf-8")
    assert ET.fromstring(picture).tag.endswith("svg")
    assert "prefers-color-scheme: dark" in picture
    assert not re.findall(r"(?:href|src)=\"(?!#)", picture)
