"""The guide to adding a backbone is followed to the letter, and it works."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import clipset.backbones
from clipset.backbones import check as checking
from clipset.backbones import registry
from clipset.cli import main
from clipset.features.store import open_store

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guides" / "own-backbone.md").read_text("utf-8")


def write_files(folder: Path) -> dict[str, Path]:
    """Every Python block of the guide, under the name in its first line."""
    blocks = re.findall(r"^```python\n# (\S+\.py)\n(.*?)^```", GUIDE, re.M | re.S)
    for name, code in blocks:
        (folder / name).write_text(code)
    return {name: folder / name for name, _ in blocks}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checking, "TIMED_SECONDS", 0.0)
    return write_files(tmp_path)


@pytest.fixture
def extended(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The package with the guide's file in it and the guide's line in FAMILIES."""
    [line] = re.findall(r'^\+    "(\w+)",$', GUIDE, re.M)
    folder = files["motion.py"].parent
    monkeypatch.setattr(clipset.backbones, "__path__", [*clipset.backbones.__path__, str(folder)])
    monkeypatch.setattr(registry, "FAMILIES", (*registry.FAMILIES, line))
    monkeypatch.setenv("CLIPSET_WEIGHTS", str(folder))
    yield folder
    monkeypatch.delattr("clipset.backbones.motion", raising=False)
    monkeypatch.delitem(sys.modules, "clipset.backbones.motion", raising=False)


def run(*words: str) -> None:
    """A command that must go well."""
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert not stop.value.code


def check(capfd: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    run("backbones", "check", *words, "--json")
    found = json.loads(capfd.readouterr().out)
    assert isinstance(found, dict)
    return found


def test_the_file_of_the_guide_is_checked_and_extracts(
    files: dict[str, Path], small_videos: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert "mine.py" in files
    found = check(capfd, "mine.py:make", "--frames", "8", "--size", "32")
    assert found["repeatable"]
    assert found["spec"]["dim"] == 96
    words = ["extract", str(small_videos / "red"), "--out", "store", "--backbone", "mine.py:make"]
    words += [
        "--frames",
        "2",
        "--size",
        "32",
        "--workers",
        "0",
        "--set=extract.sampling.num_clips=2",
    ]
    run(*words, "--quiet", "--set=extract.engine=torch")
    store = open_store(Path("store"))
    assert len(store) == 8
    assert store.manifest.backbone.name == "mine.py:make"
    assert store.random.features.shape == (16, 96)


def test_the_spec_of_the_guide_is_taken(
    files: dict[str, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    assert "mine_with_spec.py" in files
    found = check(capfd, "mine_with_spec.py:make")
    assert found["spec"]["name"] == "motion"
    assert found["spec"]["size"] == 112


def test_one_new_file_and_one_line_add_a_backbone(
    extended: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run("backbones", "--json")
    rows = {row["name"]: row for row in json.loads(capfd.readouterr().out)["backbones"]}
    assert not rows["motion"]["available"]
    assert "where it can be got" in rows["motion"]["how_to_get"]
    filters = nn.Conv2d(3, 8, 3)
    state = {f"filters.{key}": value for key, value in filters.state_dict().items()}
    torch.save(state | {"head.weight": torch.zeros(2, 2)}, extended / "motion.pth")
    found = check(capfd, "motion", "--size", "32", "--engine", "torch")
    assert found["spec"]["dim"] == 8
    assert found["repeatable"]
