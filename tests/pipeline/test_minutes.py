"""`--minutes` bounds a run: pre-training and probes are cut to fit, and the run says so."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.miniatures import TINY, run, write_backbone

from clipset import progress
from clipset.planning import time_budget
from clipset.planning.time_budget import DataSize, count_probe_sets, estimate_steps
from clipset.progress import bar, set_later_work
from clipset.recipe import Recipe, read_recipe
from clipset.training.checkpoint import read_card

PROBES = '--set=evaluate.probes=["knn", "scale_knn", "linear", "transformer"]'
LONG = ("--set=pretrain.epochs=400", "--set=evaluate.training.epochs=40")
SIZE = DataSize(videos=24, train_videos=18, dim=6, tasks=1)


def content(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "run.json").read_text()))


def skipped(folder: Path) -> list[str]:
    return [step["name"] for step in content(folder)["steps"] if step["skipped"]]


@pytest.mark.slow
def test_a_limit_cuts_epochs_and_the_same_limit_keeps_them(
    small_videos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    estimate = {"pretrain": 600.0, "embed": 0.0, "evaluate": 400.0, "report": 0.0}
    monkeypatch.setattr(time_budget, "estimate_steps", lambda *_: dict(estimate))
    backbone = f"--set=extract.backbone={write_backbone(tmp_path)}"
    words = ("run", small_videos, "--out", tmp_path / "run", *TINY, *LONG, PROBES, backbone)
    assert run(*words, "--minutes", 10) == 0
    line = content(tmp_path / "run")["decisions"]["time limit"]
    assert line.startswith("limit of 10 minutes: pre-training has ")
    assert line in capfd.readouterr().err
    steps = read_card(tmp_path / "run" / "model").steps
    assert 100 < steps < 210  # of 400, at most 0.85 * 600 s of 1000 s; the rest takes seconds
    assert "instead of up to 400" in (tmp_path / "run" / "report.html").read_text()
    monkeypatch.setattr(time_budget, "estimate_steps", None)  # not measured again
    assert run(*words, "--minutes", 10) == 0
    assert skipped(tmp_path / "run") == [
        "catalog", "extract", "pretrain", "embed", "evaluate", "report",
    ]  # fmt: skip
    monkeypatch.setattr(time_budget, "estimate_steps", lambda *_: dict(estimate))
    assert run(*words, "--minutes", 90) == 0
    assert read_card(tmp_path / "run" / "model").steps == 400
    assert "time limit" not in content(tmp_path / "run")["decisions"]


def test_a_limit_that_extraction_exceeds_leaves_one_epoch_and_says_so(
    small_videos: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    backbone = f"--set=extract.backbone={write_backbone(tmp_path)}"
    words = ("run", small_videos, "--out", tmp_path / "run", *TINY, *LONG, PROBES, backbone)
    assert run(*words, "--minutes", 0.001) == 0
    printed = capfd.readouterr()
    assert "limit of 0.001 minutes: extraction alone took longer" in printed.err
    assert "no time left for probes: linear, transformer" in printed.out
    assert read_card(tmp_path / "run" / "model").steps == 1
    records = json.loads((tmp_path / "run" / "results.json").read_text())
    assert [record["probe"] for record in records] == ["knn", "knn"]
    assert run(*words, "--minutes", 0) == 2
    assert "minutes must be more than 0, got 0" in capfd.readouterr().err


def test_more_work_is_estimated_to_take_longer() -> None:
    def sets(*changes: str) -> float:
        return count_probe_sets(read_recipe(None, changes), 500)

    assert sets("evaluate.training.learning_rates=[0.001]") < sets()
    assert sets("pretrain.seeds=3") > sets()
    assert sets("evaluate.num_seeds=5") > sets()
    assert sets('evaluate.probes=["knn"]') == 0
    seconds = estimate_steps(Recipe(), SIZE, "cpu")
    assert all(value > 0 for value in seconds.values())


def test_bars_show_the_time_left_for_the_whole_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    set_later_work(1000.0)
    with bar("extracting", 2, "videos") as advance:
        advance()
    set_later_work(0.0)
    with bar("extracting", 2, "videos") as advance:
        advance()
    first, second = capsys.readouterr().err.splitlines()
    assert first.split(", ")[-1] == "1000 s left in all"
    assert second.split(", ")[-1] == "0 s left"
