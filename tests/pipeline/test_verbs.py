"""Verbs that take a recipe, and what they make of several backbones and unequal clip counts."""

import json
from pathlib import Path

import pytest
from tests.pipeline.test_run import QUICK, run

from clipset.features.store import open_store, store_digest

RECIPE = """
[extract]
frames = 2
stride = 4
size = 32
engine = "torch"
workers = 0
sampling = {num_clips = 8, num_times = 2, num_crops = 2, flip = false}

[pretrain]
epochs = 2
clips_per_set = 4
model = {width = 32, num_layers = 1, projection_hidden = [16, 16], projection_dim = 8}

[evaluate]
num_seeds = 1
mlp_hidden = 16

[evaluate.training]
epochs = 2
num_clips = 4
learning_rates = [0.003]
head_learning_rates = [0.03]
"""


@pytest.fixture(scope="module")
def videos(small_videos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Half of the small videos, so that things are quick."""
    folder = tmp_path_factory.mktemp("half")
    for path in sorted(small_videos.rglob("*.mp4"))[::2]:
        copy = folder / path.parent.name / path.name
        copy.parent.mkdir(exist_ok=True)
        copy.symlink_to(path)
    return folder


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    return path


def test_a_store_and_a_model_are_made_from_the_parts_of_a_recipe(
    videos: Path, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    by_recipe, by_hand = tmp_path / "by recipe", tmp_path / "by hand"
    words = ["extract", videos, "--recipe", recipe, "--quiet"]
    assert (
        run(
            *words,
            "--out",
            by_recipe,
            "--set",
            "extract.size=24",
            "--set=extract.sampling.num_clips=9",
        )
        == 0
    )
    sampling = [
        "--set=extract.sampling.num_clips=9",
        "--set=extract.sampling.num_times=2",
        "--set=extract.sampling.num_crops=2",
    ]
    fed = [
        "--frames",
        2,
        "--set=extract.stride=4",
        "--size",
        24,
        "--set=extract.engine=torch",
        "--workers",
        0,
    ]
    words = [
        "extract",
        videos,
        "--out",
        by_hand,
        *fed,
        *sampling,
        "--set=extract.sampling.flip=false",
    ]
    assert run(*words, "--quiet") == 0
    assert open_store(by_recipe).manifest == open_store(by_hand).manifest
    assert store_digest(by_recipe) == store_digest(by_hand)
    words = ["pretrain", by_recipe, "--out", tmp_path / "model", "--recipe", recipe]
    assert run(*words, "--epochs", 3, "--quiet") == 0
    card = json.loads((tmp_path / "model" / "model.json").read_text())
    assert (card["training"]["epochs"], card["model"]["width"]) == (3, 32)
    capsys.readouterr()
    assert run("extract", videos, "--out", tmp_path / "no", "--set", "extract.sice=2") == 2
    assert "did you mean size" in capsys.readouterr().err


def test_a_whole_run_with_clips_in_proportion_to_the_length(
    videos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sampling = (
        "{num_clips = 8, clips_per_minute = 400.0, "
        "num_times = 2, times_per_minute = 120.0, num_crops = 1}"
    )
    words = [*QUICK, "--set", f"extract.sampling={sampling}", "--set", "evaluate.num_seeds=1"]
    assert run("run", videos, "--out", tmp_path / "run", *words, "--quiet") == 0
    store = open_store(tmp_path / "run" / "store")
    assert len(set(store.random.count.tolist())) > 1
    assert len(set(store.regular.count.tolist())) > 1
    records = json.loads((tmp_path / "run" / "results.json").read_text())
    assert len(records) == 11
    capsys.readouterr()
    words = ["pretrain", tmp_path / "run" / "store", "--out", tmp_path / "m"]
    assert run(*words, "--set=pretrain.clips_per_set=8") == 2
    assert "need 16 clips of a video, the store has 8" in capsys.readouterr().err


def test_misspelt_backbones_and_layers_are_refused_by_an_estimate(
    videos: Path, recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["estimate", videos, "--recipe", recipe]
    assert run(*words, "--backbone", "efficientnet_lit1") == 2
    assert "did you mean efficientnet_lite1" in capsys.readouterr().err
    assert run(*words, "--set=extract.layers=3,7") == 2
    assert "efficientnet_lite0 gives its last output only" in capsys.readouterr().err
