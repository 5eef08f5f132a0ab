"""The list of backbones, and what `clipset backbones check` finds out about one."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from clipset.backbones import check as checking
from clipset.backbones.check import backbone_rows, check_backbone, draw_clips
from clipset.backbones.registry import load_backbone
from clipset.backbones.runtime import open_engine
from clipset.cli import main


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "TIMED_SECONDS", 0.0)


def answer(capfd: pytest.CaptureFixture[str], *words: str) -> str:
    with contextlib.suppress(SystemExit):
        main(words)
    said = capfd.readouterr()
    assert said.err == ""
    return said.out


def test_a_check_describes_the_feature_of_a_clip() -> None:
    found = check_backbone("efficientnet_lite0", frames=2, size=32, engine="torch")
    assert (found.engine, found.device, found.spec.frames) == ("torch", "cpu", 2)
    assert found.repeatable
    assert found.clips_per_second > 0
    spec, network = load_backbone("efficientnet_lite0", frames=2, size=32)
    clip = draw_clips(spec, 1, torch.Generator().manual_seed(0))
    feature = open_engine(spec, network, device="cpu", engine="torch").features(clip)[0].numpy()
    assert found.mean == pytest.approx(feature.mean(), rel=1e-5)
    assert found.std == pytest.approx(feature.std(), rel=1e-4)
    assert (found.min, found.max) == (feature.min(), feature.max())
    assert found.norm == pytest.approx((feature**2).sum() ** 0.5, rel=1e-4)
    assert found.zeros == pytest.approx((feature == 0).mean())
    assert found.parameters > 3_000_000


def test_the_clips_of_a_check_come_from_its_seed() -> None:
    spec, _ = load_backbone("efficientnet_lite0", frames=2, size=32)
    first, again, other = (
        draw_clips(spec, 2, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_the_list_says_where_weights_come_from_and_where_they_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CLIPSET_WEIGHTS", str(tmp_path))
    rows = {row.name: row for row in backbone_rows()}
    assert rows["efficientnet_lite0"].available
    assert rows["efficientnet_lite0"].how_to_get is None
    missing = rows["svt_vitb16"].how_to_get
    assert missing is not None
    for part in (str(tmp_path), "kinetics400_vitb_ssl.pth", "github.com/kahnchana/svt"):
        assert part in missing
    text = answer(capfd, "backbones")
    assert text == answer(capfd, "backbones", "list")
    for part in ("efficientnet_lite0", "1280", "CC-BY-NC-4.0", "missing", str(tmp_path)):
        assert part in text
    listed = json.loads(answer(capfd, "backbones", "--json"))["backbones"]
    assert [row["name"] for row in listed] == list(rows)


def test_a_backbone_that_an_installed_package_offers_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "other_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other_package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[clipset.backbones]\nother = not_imported:make\n")
    monkeypatch.syspath_prepend(tmp_path)
    row = next(row for row in backbone_rows() if row.name == "other")
    assert (row.available, row.dim, row.source) == (True, None, "entry point not_imported:make")


def test_the_check_answers_in_words_and_in_json(capfd: pytest.CaptureFixture[str]) -> None:
    words = ("backbones", "check", "efficientnet_lite0", "--size", "32", "--engine", "torch")
    text = answer(capfd, *words)
    for part in ("torch on cpu", "clips/s", "mean", "std", "min", "max", "norm", "zeros", "1280"):
        assert part in text
    found: dict[str, Any] = json.loads(answer(capfd, *words, "--json"))
    assert found["spec"]["size"] == 32
    assert found["clips_per_second"] > 0


def test_checking_what_is_not_here_says_what_to_do(capfd: pytest.CaptureFixture[str]) -> None:
    for name, part in (
        ("efficientnet_lit0", "did you mean efficientnet_lite0"),
        ("nowhere.py:make", "not found"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(["backbones", "check", name])
        assert stop.value.code == 2
        [line] = capfd.readouterr().err.strip().splitlines()
        assert part in line


@pytest.mark.parametrize("verb", [("backbones",), ("backbones", "check")])
def test_the_help_has_examples(verb: tuple[str, ...], capfd: pytest.CaptureFixture[str]) -> None:
    text = answer(capfd, *verb, "--help")
    assert f"Example: clipset {' '.join(verb)}" in text
    assert "--json" in text
