"""`pretrain.seeds`: several pre-trainings in one run, and rows over all of them."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.miniatures import TINY, run, write_backbone, write_lvu

from clipset.errors import TrainingError
from clipset.evaluation.results import read_predictions
from clipset.probes.config import ProbeKey
from clipset.training.checkpoint import read_card
from clipset.training.config import PretrainConfig

PROBES = '--set=evaluate.probes=["knn", "scale_knn", "linear", "scale_linear"]'
THREE = "--set=pretrain.seeds=3"
MODELS = {"model": 0, "model-seed1": 1, "model-seed2": 2}


@pytest.fixture(scope="module")
def command(small_videos: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[object, ...]:
    """A run with one pre-training, without its folder."""
    backbone = f"--set=extract.backbone={write_backbone(tmp_path_factory.mktemp('backbone'))}"
    return ("run", small_videos, *TINY, PROBES, backbone, "--quiet")


@pytest.fixture(scope="module")
def runs(command: tuple[object, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of runs with one pre-training and with three."""
    folder = tmp_path_factory.mktemp("runs")
    assert run(*command, "--out", folder / "one") == 0
    shutil.copytree(folder / "one", folder / "three")
    assert run(*command, "--out", folder / "three", THREE) == 0
    return folder


def steps(folder: Path) -> dict[str, bool]:
    """Which steps were skipped."""
    records = json.loads((folder / "run.json").read_text())["steps"]
    return {record["name"]: record["skipped"] for record in records}


def rows(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    records = json.loads((folder / "results.json").read_text())
    return {(record["features"], record["probe"]): record | {"seconds": 0} for record in records}


def test_each_pretraining_has_a_folder_and_a_seed_of_its_own(runs: Path) -> None:
    assert {path.name for path in (runs / "one").glob("model*")} == {"model"}
    folders = {path.name: read_card(path).seed for path in (runs / "three").glob("model*")}
    assert folders == MODELS
    weights = {(runs / "three" / name / "model.safetensors").read_bytes() for name in MODELS}
    assert len(weights) == 3


def test_scale_rows_are_over_all_models_and_the_others_stay(runs: Path) -> None:
    one, three = rows(runs / "one"), rows(runs / "three")
    for key, record in three.items():
        if key[0] == "backbone":
            assert record == one[key]
            assert record["num_pretrainings"] is None
        else:
            assert (record["num_pretrainings"], record["seeds"]) == (3, [0, 1, 2])
            assert one[key]["num_pretrainings"] == 1
    assert "SCALE rows over 3 pre-trainings" in (runs / "three" / "report.html").read_text()
    assert "pre-trainings" not in (runs / "one" / "report.html").read_text()


def test_each_repetition_equals_a_run_with_that_model_and_seed(
    runs: Path, command: tuple[object, ...], tmp_path: Path
) -> None:
    three = read_predictions(runs / "three" / "predictions.safetensors")
    for index in range(3):
        out = tmp_path / str(index)
        assert run(*command, "--out", out, "--seed", index) == 0
        alone = read_predictions(out / "predictions.safetensors")
        for probe in ("knn", "linear"):
            key = ProbeKey("scale", probe)
            np.testing.assert_array_equal(three.outputs[key][index], alone.outputs[key][0])


def test_more_pretrainings_leave_the_first_model_and_the_vectors_alone(runs: Path) -> None:
    for name in ("model/model.safetensors", "vectors/vectors.safetensors"):
        assert (runs / "one" / name).read_bytes() == (runs / "three" / name).read_bytes()
    assert steps(runs / "three") == {
        "catalog": True, "extract": True, "pretrain": False, "embed": True, "evaluate": False,
        "report": False,
    }  # fmt: skip


def test_only_the_missing_pretraining_is_done_again(
    runs: Path, command: tuple[object, ...], tmp_path: Path
) -> None:
    out = tmp_path / "copy"
    shutil.copytree(runs / "three", out)
    assert run(*command, "--out", out, THREE) == 0
    assert all(steps(out).values())
    before = {name: (out / name / "model.safetensors").stat().st_mtime_ns for name in MODELS}
    (out / "model-seed2" / "model.json").unlink()
    assert run(*command, "--out", out, THREE) == 0
    after = {name: (out / name / "model.safetensors").stat().st_mtime_ns for name in MODELS}
    assert [name for name in MODELS if after[name] != before[name]] == ["model-seed2"]
    assert rows(out) == rows(runs / "three")


@pytest.mark.slow
def test_tasks_share_the_models_of_all_seeds(tmp_path: Path) -> None:
    backbone = f"--set=extract.backbone={write_backbone(tmp_path)}"
    words = (
        "--set=data.format=lvu",
        "--set=pretrain.seeds=2",
        '--set=evaluate.probes=["scale_knn"]',
    )
    out = tmp_path / "run"
    assert run("run", write_lvu(tmp_path / "lvu"), "--out", out, *TINY, *words, backbone) == 0
    for name in ("model", "model-seed1"):
        assert len({path.read_bytes() for path in out.glob(f"*/{name}/model.safetensors")}) == 1
    assert {
        record["num_pretrainings"] for record in json.loads((out / "results.json").read_text())
    } == {2}


def test_there_is_at_least_one_pretraining() -> None:
    with pytest.raises(TrainingError, match="seeds must be at least 1, got 0"):
        PretrainConfig(seeds=0)
