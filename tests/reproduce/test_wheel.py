"""What is installed from a wheel has what it needs."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from clipset.reproduce.paper import TABLES

ROOT = Path(__file__).parents[2]
LOOK = """
import clipset, sys
from clipset.recipe import find_recipe
for name in sys.argv[1:]:
    print(find_recipe(name))
from clipset.cli import main
main(["reproduce", "--list"])
"""


def test_recipes_are_found_where_only_the_wheel_is_installed(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as file:
        file.extractall(site)
    recipes = sorted(path.stem for path in (ROOT / "recipes").glob("*.toml"))
    done = subprocess.run(
        [sys.executable, "-c", LOOK, *recipes],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(site)},
        check=True,
        capture_output=True,
        text=True,
    )
    lines = done.stdout.splitlines()
    found = [Path(line) for line in lines[: len(recipes)]]
    assert found == [site / "clipset" / "recipes" / f"{n}.toml" for n in recipes]
    assert [line.split()[0] for line in lines[len(recipes) :]] == list(TABLES)
    assert list((site / "clipset" / "report" / "templates").glob("*.j2"))
