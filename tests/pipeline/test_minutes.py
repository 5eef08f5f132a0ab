"""`--minutes` bounds a run: pre-training and probes are cut to fit, and the run says so."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.miniatures import TINY, make_clusters_small, run, write_backbone

from clipset import progress
from clipset.data.catalog import Catalog, Video
from clipset.data.tasks import Task
from clipset.features.store import FeatureStore
from clipset.planning import probe_speed, time_budget
from clipset.planning.probe_speed import ProbeSize, ProbeSpeed, estimate_probes
from clipset.planning.time_budget import (
    DataSize,
    RunClock,
    count_pretrain_epochs,
    estimate_steps,
)
from clipset.progress import bar, set_later_work
from clipset.recipe import Recipe, read_recipe
from clipset.runs import RunFolder
from clipset.training.checkpoint import read_card

PROBES = '--set=evaluate.probes=["knn", "scale_knn", "linear", "transformer"]'
LONG = ("--set=pretrain.epochs=400", "--set=evaluate.training.epochs=40")
SIZE = DataSize(
    videos=24, group_sizes=(18,), held_out=0, labelled=18, classes=3, dim=6, regular_clips=2,
    tasks=1, trainings=1,
)  # fmt: skip


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
    monkeypatch.setattr(time_budget, "estimate_steps", lambda *_, **__: dict(estimate))
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
    monkeypatch.setattr(time_budget, "estimate_steps", lambda *_, **__: dict(estimate))
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


def test_more_probes_seeds_and_candidates_are_estimated_to_take_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    speed = ProbeSpeed(start=0.0, epoch=0.0, candidate=1.0)
    monkeypatch.setattr(probe_speed, "measure_epochs", lambda *_: speed)
    size = ProbeSize(train_videos=20, classes=4, dim=6, random_clips=16, regular_clips=2)

    def seconds(*changes: str) -> float:
        recipe = read_recipe(None, ('evaluate.probes=["finetune"]', *changes))
        return estimate_probes(
            recipe.evaluate, size, model=recipe.pretrain.model,
            num_models=recipe.pretrain.seeds, joint_seconds=1.0,
        )  # fmt: skip

    # 40 epochs of 6 candidates, then 3, 2 and 1, on 15 videos; three trainings of 0.35
    assert seconds() == pytest.approx(15 * (5 * 6 + 5 * 3 + 10 * 2 + 20 * 1) + 20 * 3 * 14)
    assert seconds("evaluate.training.learning_rates=[0.001]") < seconds()
    assert seconds("pretrain.seeds=3") > seconds()
    assert seconds("evaluate.num_seeds=5") > seconds()
    assert seconds("evaluate.label_fraction=0.5", "evaluate.label_selection=first") < seconds()
    assert seconds("evaluate.training.joint_weight=1") > seconds()
    assert seconds("evaluate.training.early_stopping=false") > seconds()


def test_every_step_is_measured_and_the_random_state_stays_as_it_was() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    seconds = estimate_steps(Recipe(), SIZE, "cpu")
    assert torch.equal(torch.rand(1), expected)
    assert list(seconds) == ["pretrain", "embed", "evaluate", "report"]
    assert all(value > 0 for value in seconds.values())


def test_the_size_of_a_run_knows_groups_held_out_and_labelled_videos() -> None:
    videos = [
        Video(
            id=f"{signer}-{number}", path=Path("x.mp4"), label=f"sign {number % 4}",
            split="train" if signer < 3 else "test", group=f"signer {signer}",
        )
        for signer in range(4)
        for number in range(150)
    ]  # fmt: skip
    task = Task(catalog=Catalog(name="signs", videos=tuple(videos)))
    size = DataSize.of([task], 8, Recipe(), regular_clips=5)
    assert (size.videos, size.labelled, size.classes, size.held_out) == (600, 450, 4, 45)
    assert size.group_sizes == (135, 135, 135)  # each has a tenth of its videos held out
    assert size.count_batches(128) == 6
    assert count_pretrain_epochs(Recipe(), size) == 68  # 20 · √405 steps, 6 in an epoch
    fixed = read_recipe(None, ["pretrain.epochs=7", "pretrain.batch_from=all"])
    size = DataSize.of([task], 8, fixed, regular_clips=5)
    assert (size.group_sizes, size.held_out) == ((450,), 0)
    assert count_pretrain_epochs(fixed, size) == 7
    twice = size.scale(2)
    assert (twice.videos, twice.train_videos, twice.labelled) == (1200, 900, 900)


def videos_without_groups(number: int, *, labelled: bool = True) -> Task:
    videos = [
        Video(
            id=f"{index}", path=Path("x.mp4"), split="train",
            label=f"sign {index % 4}" if labelled else None,
        )
        for index in range(number)
    ]  # fmt: skip
    return Task(catalog=Catalog(name="signs", videos=tuple(videos)))


def test_the_size_of_a_run_knows_batches_of_similar_videos() -> None:
    def size(task: Task, *changes: str) -> DataSize:
        return DataSize.of([task], 8, read_recipe(None, changes), regular_clips=5)

    many, similar = videos_without_groups(1000), "pretrain.batch_from=similar"
    assert size(many, similar).count_batches(128) == 15  # of 64 videos, a tenth of them held out
    assert count_pretrain_epochs(Recipe(), size(many, similar)) == 40  # 20 · √900 steps
    assert size(many, similar).scale(2).count_batches(128) == 31
    assert size(many, similar).scale(1000).count_batches(128) == 256 * 28  # no more clusters
    few = videos_without_groups(100)
    assert size(few, similar).count_batches(128) == 1
    unknown = size(many)
    assert unknown.needs_features
    assert unknown.count_batches(128) == 8  # as many steps, of more videos: this takes longer
    fixed = size(many, "pretrain.epochs=7")
    assert fixed.needs_features
    assert fixed.count_batches(128) == 15  # as many videos, in more steps: this takes longer
    known = (
        size(few),
        size(many, "pretrain.batch_from=all"),
        size(many, similar),
        size(videos_without_groups(1000, labelled=False)),
    )
    assert not any(each.needs_features for each in known)
    assert size(few).scale(10).needs_features


def test_a_limit_is_planned_with_the_batches_that_the_features_decide_for(
    small_store: FeatureStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_clusters_small(monkeypatch)

    def estimate(recipe: Recipe, size: DataSize, *_: Any, **__: Any) -> dict[str, float]:
        pretrain = 60.0 * count_pretrain_epochs(recipe, size)
        return {"pretrain": pretrain, "embed": 0.0, "evaluate": 0.0, "report": 0.0}

    monkeypatch.setattr(time_budget, "estimate_steps", estimate)
    clock = RunClock(
        Recipe(), [Task(catalog=small_store.catalog)], "cpu", dim=8, regular_clips=2,
        started_at=time.perf_counter(), minutes=100.0,
    )  # fmt: skip
    assert clock.seconds["pretrain"] == 300 * 60  # any videos, before there are features
    folder = RunFolder(tmp_path / "run", name="small", recipe={}, seed=0, device="cpu")
    assert clock.limit(folder, small_store).pretrain.epochs in (84, 85)
    line = folder.content["decisions"]["time limit"]
    assert "instead of up to 150" in line  # two batches of similar videos in an epoch


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
