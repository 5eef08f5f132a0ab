"""What the documentation states is true: names, paths, commands, settings and code."""

from __future__ import annotations

import ast
import inspect
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
from cyclopts import App

import clipset
from clipset.cli import app
from clipset.clips.config import Sampling
from clipset.data.catalog import read_catalog_table
from clipset.data.tasks import DataConfig
from clipset.features.config import ExtractConfig
from clipset.features.store import FeatureStore
from clipset.model.config import ModelConfig
from clipset.probes.config import EvaluateConfig, ProbeTraining
from clipset.recipe import Recipe, resolve_recipe
from clipset.representation import embed_store, write_vectors
from clipset.training.config import PretrainConfig

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = (ROOT / "README.md", ROOT / "SECURITY.md", *sorted(DOCS.rglob("*.md")))
TEXTS = (*PAGES, *sorted((ROOT / "results").rglob("*.md")))
FOLDERS = "src|docs|tests|examples|benchmarks|recipes|results"
LONGEST_LINE = 120
MOST_WORDS = 900
CONFIGS = {
    config.__name__: config
    for config in (
        DataConfig,
        Sampling,
        ExtractConfig,
        ModelConfig,
        PretrainConfig,
        ProbeTraining,
        EvaluateConfig,
    )
}


def page_name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)


SNIPPETS = blocks(DOCS / "quickstart.md", "python")


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.M | re.S)


@cache
def defined_names(path: Path) -> frozenset[str]:
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


def links(page: Path) -> list[str]:
    """The targets of the page's links, without anchors."""
    return re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", prose(page))


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_referenced_file_and_name_exists(page: Path) -> None:
    references = re.findall(rf"`((?:{FOLDERS})/[\w./-]+)(?:::([\w.]+))?`", prose(page))
    for path, name in references:
        assert (ROOT / path).exists(), f"{path} does not exist"
        if name:
            assert name in defined_names(ROOT / path), f"{path} does not define {name}"


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_link_has_a_target(page: Path) -> None:
    for target in links(page):
        assert target.startswith("https://") or (page.parent / target).exists(), target


def test_every_page_is_linked_from_the_readme_or_the_index() -> None:
    sources = (ROOT / "README.md", DOCS / "README.md")
    linked = {(page.parent / target).resolve() for page in sources for target in links(page)}
    assert {page for page in PAGES if page not in sources} <= linked
    assert DOCS / "README.md" in linked


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_pages_contain_no_path_of_one_machine(page: Path) -> None:
    assert not re.findall(r"(?<![\w~.])/(?:home|Users|root|tmp|opt)/\S+", page.read_text("utf-8"))


@pytest.mark.parametrize("page", TEXTS, ids=page_name)
def test_lines_are_short(page: Path) -> None:
    """Tables and code may be longer."""
    lines = [line for line in prose(page).splitlines() if not line.startswith("|")]
    assert [line for line in lines if len(line) > LONGEST_LINE] == []


def test_the_readme_is_short() -> None:
    words = (ROOT / "README.md").read_text("utf-8").split()
    assert sum(any(letter.isalnum() for letter in word) for word in words) < MOST_WORDS


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_stated_defaults_are_those_of_the_code(page: Path) -> None:
    for config, field, value in re.findall(r"`([A-Z]\w+)\.(\w+) = ([^`]+)`", prose(page)):
        assert getattr(CONFIGS[config](), field) == ast.literal_eval(value), f"{config}.{field}"


@pytest.mark.parametrize("page", TEXTS, ids=page_name)
def test_named_settings_exist(page: Path) -> None:
    for name in setting_names(page):
        value: Any = Recipe()
        for part in name.split("."):
            if isinstance(value, dict):  # such as data.columns: its keys are the user's
                break
            assert part == "preset" or hasattr(value, part), name
            value = getattr(value, part, None)


def setting_names(page: Path) -> list[str]:
    """Settings in prose and commands; tables and commands of the results are of older commits."""
    if page == DOCS / "results.md":
        return []  # its prose is in results/*.md
    pattern = r"(?:`|--set '?)((?:data|extract|pretrain|evaluate)\.[a-z_.]+)(?=[`= ])"
    return re.findall(pattern, page.read_text("utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_commands_parse(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for line in "".join(blocks(page, "sh")).splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["make"]:
            assert re.search(rf"^{words[1]}:", makefile, re.M), line
        elif words[:1] == ["clipset"] and "--help" not in words:
            app.parse_args(words[1:], exit_on_error=False, print_error=False)


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_code_imports_existing_names(page: Path) -> None:
    for block in blocks(page, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("clipset"):
                module = import_module(node.module or "")
                assert all(hasattr(module, name.name) for name in node.names), ast.unparse(node)


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_calls_of_the_library_fit_its_signatures(page: Path) -> None:
    for block in blocks(page, "python"):
        for node in ast.walk(ast.parse(block)):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if isinstance(node.func.value, ast.Name) and node.func.value.id == "clipset":
                assert node.func.attr in clipset.__all__
                signature = inspect.signature(getattr(clipset, node.func.attr))
                signature.bind(*node.args, **{word.arg or "": word.value for word in node.keywords})


def test_the_readme_uses_the_front_door_alone() -> None:
    for block in blocks(ROOT / "README.md", "python"):
        imports = [
            n for n in ast.walk(ast.parse(block)) if isinstance(n, ast.Import | ast.ImportFrom)
        ]
        assert [ast.unparse(node) for node in imports] == ["import clipset"]
    assert {"scores", "report"} <= set(dir(clipset.RunResult))
    assert hasattr(clipset.ScaleModel, "save_pretrained")


OTHER_OPTIONS = {"--help", "--no-python", "--max-restarts"}  # of every command, and of torchrun


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_named_options_exist(page: Path) -> None:
    codes = re.findall(r"`([^`]+)`", prose(page))
    options = {name for code in codes for name in re.findall(r"(?<![\w-])--[a-z][a-z-]+", code)}
    assert options - OTHER_OPTIONS - options_of(app) - options_of_scripts() == set()


def options_of(parent: App) -> frozenset[str]:
    """The long options of all verbs."""
    verbs = [parent[name] for name in parent if not name.startswith("-")]
    own = {
        name
        for verb in verbs
        for option in verb.assemble_argument_collection()
        for name in option.names
    }
    return frozenset(own.union(*(options_of(verb) for verb in verbs)))


@cache
def options_of_scripts() -> frozenset[str]:
    """The long options of the scripts in results/ and benchmarks/."""
    scripts = [*(ROOT / "results").glob("*.py"), *(ROOT / "benchmarks").glob("*.py")]
    texts = [path.read_text("utf-8") for path in scripts]
    return frozenset(
        n for text in texts for n in re.findall(r"add_argument\(\s*\"(--[a-z-]+)", text)
    )


def test_the_table_of_verbs_in_the_readme_is_complete() -> None:
    table = re.search(r"^\| verb \|.*?\n\n", (ROOT / "README.md").read_text("utf-8"), re.M | re.S)
    assert table is not None
    assert set(re.findall(r"^\| `([\w-]+)` \|", table[0], re.M)) == verbs()


def test_the_glossary_has_twenty_words_with_their_types() -> None:
    rows = re.findall(
        r"^\| ([a-z -]+) \| .* \| (.*) \|$", (DOCS / "glossary.md").read_text("utf-8"), re.M
    )
    rows = [(word, place) for word, place in rows if word != "word"]
    assert len({word for word, _ in rows}) == len(rows) == 20
    assert all(re.fullmatch(r"`src/[\w./]+::[\w.]+`", place) for _, place in rows)


def tree() -> list[str]:
    """The paths in the tree of the repository."""
    block = next(block for block in blocks(DOCS / "architecture.md", "text") if "├──" in block)
    parents: list[str] = []
    paths = []
    for line in block.splitlines()[1:]:
        match = re.match(r"([│ ]*)[├└]── (\S+)", line)
        assert match is not None, line
        parents[len(match[1]) // 4 :] = [match[2].rstrip("/")]
        paths.append("/".join(parents))
    return paths


def test_the_tree_contains_only_existing_paths() -> None:
    for path in tree():
        full = ROOT / path
        assert full.is_file() or any(part.is_file() for part in full.rglob("*")), path


def test_the_tree_contains_every_module_and_package_at_the_top() -> None:
    package = ROOT / "src" / "clipset"
    parts = {path.name for path in package.iterdir() if not path.name.startswith((".", "_"))}
    listed = {Path(path).name for path in tree() if path.startswith("src/clipset/")}
    assert parts - {"py.typed"} <= listed


def test_types_have_the_listed_fields() -> None:
    row = re.compile(
        rf"^\|[^|]*\| `((?:{FOLDERS})/[\w./]+)::(\w+)`( \(a class\))? \| (.*) \|$", re.M
    )
    rows = row.findall((DOCS / "architecture.md").read_text("utf-8"))
    assert len(rows) > 20
    for path, name, is_class, text in rows:
        listed = set(re.findall(r"`(\w+)`", text))
        assert {f"{name}.{field}" for field in listed} <= defined_names(ROOT / path), name
        assert is_class or fields_of(ROOT / path, name) <= listed, name


def fields_of(path: Path, name: str) -> set[str]:
    """The annotated fields of a class."""
    body = ast.parse(path.read_text("utf-8")).body
    node = next(node for node in body if isinstance(node, ast.ClassDef) and node.name == name)
    return {n for part in node.body if isinstance(part, ast.AnnAssign) for n in bound_by(part)}


def test_layers_are_those_of_the_import_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    layers = next(c["layers"] for c in contracts["contracts"] if c["type"] == "layers")
    [block] = blocks(DOCS / "architecture.md", "layers")
    assert block.splitlines() == [layer.replace("clipset.", "") for layer in layers]


def test_the_recipe_and_the_table_of_the_quickstart_are_read(tmp_path: Path) -> None:
    page = DOCS / "quickstart.md"
    [recipe], [table] = blocks(page, "toml"), blocks(page, "csv")
    resolved = resolve_recipe(tomllib.loads(recipe), "quickstart.md")
    assert resolved.extract.sampling.flip is False
    (tmp_path / "catalog.csv").write_text(table, "utf-8")
    catalog = read_catalog_table(tmp_path / "catalog.csv")
    assert (catalog.classes, catalog.splits) == (("point", "wave"), ("test", "train"))


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_the_code_of_the_quickstart_runs(
    number: int, small_store: FeatureStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = SNIPPETS[number]
    if "import pandas" in block and find_spec("pandas") is None:
        pytest.skip("pandas is not installed")
    folder = tmp_path / "runs" / "first" / "vectors"
    write_vectors(embed_store(small_store, None), folder)
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "quickstart.md", "exec"), {})


def test_the_picture_of_the_pipeline_is_whole_and_has_a_dark_mode() -> None:
    picture = (DOCS / "pipeline.svg").read_text("utf-8")
    assert ET.fromstring(picture).tag.endswith("svg")
    assert "prefers-color-scheme: dark" in picture
    assert not re.findall(r"(?:href|src)=\"(?!#)", picture)


@pytest.mark.parametrize("name", ["report.png", "page-search.png", "page-label.png"])
def test_pictures_are_small(name: str) -> None:
    picture = DOCS / name
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size < 300_000
