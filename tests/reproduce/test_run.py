"""`clipset reproduce` runs tables cell by cell, goes on, and says what is missing."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.miniatures import TINY, run, write_backbone, write_lvu, write_ucf101

from clipset.features.store import FeatureStore
from clipset.reproduce.run import ReproduceRequest, reproduce
from clipset.reproduce.table import Cell, read_table_file
from clipset.sets.sampling import SetIndices, draw_set_indices
from clipset.training import data

QUICK = [word for word in TINY if "extract" not in word]
CHANGES = tuple(word.removeprefix("--set=") for word in TINY)


@pytest.fixture(scope="module")
def ucf101(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_ucf101(tmp_path_factory.mktemp("ucf"))


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_backbone(tmp_path_factory.mktemp("backbone"))


@pytest.fixture(scope="module")
def finished(ucf101: Path, backbone: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tables") / "ucf101"
    words = ("--data", ucf101, "--out", out, "--backbone", backbone, "--backbone", "svt_vitb16")
    assert run("reproduce", "ucf101", *words, *TINY, "--quiet") == 0
    return out


def cells(folder: Path) -> list[Cell]:
    return read_table_file(folder).cells


def answer(capfd: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    capfd.readouterr()
    assert run(*words, "--json", "--quiet") == 0
    found = json.loads(capfd.readouterr().out)
    assert isinstance(found, dict)
    return found


def test_a_table_of_probes_runs_every_row_on_every_split(finished: Path) -> None:
    found = cells(finished)
    assert {cell.status for cell in found} == {"done"}
    assert len(found) == 7 * 3
    assert {cell.column for cell in found} == {"tints.py:make"}
    assert list(finished.rglob("ledger.sqlite")) == [finished / "tints.py-make/store/ledger.sqlite"]
    assert {cell.tasks for cell in found} == {("split-1", "split-2", "split-3")}
    table = read_table_file(finished)
    assert table.columns[-1] == "tints.py:make"


def test_every_cell_says_how_it_was_made(finished: Path) -> None:
    table = read_table_file(finished)
    for cell in table.cells:
        assert cell.result is not None
        assert cell.result.seeds
        assert (cell.result.split, cell.result.ssl_split) == ("test", "train")
        assert cell.date
        assert cell.seconds > 0
        assert table.recipes[cell.recipe]["extract"]["backbone"].endswith("tints.py:make")
        assert {"clipset", "processor", "cores"} <= set(table.environments[cell.environment])


def test_missing_weights_are_said_with_where_to_get_them(finished: Path) -> None:
    missing = read_table_file(finished).missing
    assert list(missing) == ["svt_vitb16"]
    assert "github.com/kahnchana/svt" in missing["svt_vitb16"]
    for name in ("table.txt", "table.md", "table.html"):
        assert "Weights not found: svt" in (finished / name).read_text("utf-8").replace("\\_", "_")


def test_finished_cells_are_not_run_again_and_lost_ones_are(
    finished: Path, ucf101: Path, backbone: str
) -> None:
    table = read_table_file(finished)
    kept = [c for c in table.cells if (c.row, c.task) != ("SCALE linear", "split-2")]
    content = json.loads((finished / "table.json").read_text())
    content["cells"] = [
        cell
        for cell in content["cells"]
        if (cell["row"], cell["task"]) != ("SCALE linear", "split-2")
    ]
    (finished / "table.json").write_text(json.dumps(content))
    request = ReproduceRequest(data=ucf101, backbones=(backbone,), changes=CHANGES)
    again = reproduce("ucf101", finished, request)
    assert again.cells[:-1] == kept
    [lost] = [c for c in table.cells if (c.row, c.task) == ("SCALE linear", "split-2")]
    assert again.cells[-1].result.value == lost.result.value


def test_another_setting_runs_the_cells_that_it_touches(
    finished: Path, ucf101: Path, backbone: str
) -> None:
    request = ReproduceRequest(
        data=ucf101, backbones=(backbone,), changes=(*CHANGES, "data.task=split-1")
    )
    reproduce("ucf101", finished, request)
    assert [cell.task for cell in cells(finished)] == [""] * 7  # no mixture with the mean


def test_a_table_can_be_written_again_without_running(
    finished: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (finished / "table.html").unlink()
    found = answer(capfd, "reproduce", "ucf101", "--out", finished, "--render")
    assert found["table"] == "ucf101"
    assert (finished / "table.html").is_file()


def test_an_ablation_uses_one_store_for_all_its_cells(
    small_store: FeatureStore, tmp_path: Path
) -> None:
    words = ("--store", small_store.folder, "--out", tmp_path, "--set=evaluate.num_seeds=1")
    assert run("reproduce", "ablation-masking", *words, *QUICK, "--quiet") == 0
    found = cells(tmp_path)
    assert [cell.row for cell in found] == ["0.15", "0.25", "0.35", "0.45"]
    assert {cell.status for cell in found} == {"done"}
    assert not list(tmp_path.rglob("ledger.sqlite"))
    assert len(list(tmp_path.rglob("model.safetensors"))) == 4
    ratios = [
        read_table_file(tmp_path).recipes[cell.recipe]["pretrain"]["mask_ratio"] for cell in found
    ]
    assert ratios == [0.15, 0.25, 0.35, 0.45]
    assert found[0].column.endswith(", efficientnet_lite0")
    assert "UCF101, SVT" in (tmp_path / "table.txt").read_text("utf-8")


def test_the_ablation_of_masking_masks_15_to_45_percent(
    small_store: FeatureStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured on the masks that training draws, some 6,000 clips for each row."""
    fractions: dict[float, list[float]] = {}

    def measure(*words: Any, **settings: Any) -> SetIndices:
        sets = draw_set_indices(*words, **settings)
        fractions.setdefault(words[3], []).append(sets.masked.double().mean().item())
        assert settings["mask_rule"] == "bernoulli"
        return sets

    monkeypatch.setattr(data, "draw_set_indices", measure)
    words = ("--store", small_store.folder, "--out", tmp_path, "--set=evaluate.num_seeds=1")
    longer = ("--set=pretrain.epochs=40", "--set=pretrain.clips_per_set=4")
    assert run("reproduce", "ablation-masking", *words, *QUICK, *longer, "--quiet") == 0
    means = {ratio: sum(own) / len(own) for ratio, own in fractions.items()}
    assert means == pytest.approx({ratio: ratio for ratio in (0.15, 0.25, 0.35, 0.45)}, abs=0.03)


def test_a_cell_that_fails_is_recorded_and_the_others_go_on(
    small_store: FeatureStore, tmp_path: Path
) -> None:
    words = ("--store", small_store.folder, "--out", tmp_path)
    assert run("reproduce", "ablation-clips-batch", *words, *QUICK, "--quiet") == 0
    status = {cell.row: cell.status for cell in cells(tmp_path)}
    assert status["4 × 2 clips, batch 256"] == "done"  # the store has 8 clips of a video
    assert status["6 × 2 clips, batch 256"] == "failed"
    assert status["4 × 2 clips, batch 1024"] == "done"
    text = (tmp_path / "table.txt").read_text("utf-8")
    assert "two sets of 6 need 12 clips of a video, the store has 8" in text


def test_a_backbone_that_cannot_be_run_fails_alone(tmp_path: Path, backbone: str) -> None:
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos" / "a.mp4").touch()
    out = tmp_path / "out"
    request = ReproduceRequest(
        data=tmp_path / "videos", backbones=(backbone,), changes=(*CHANGES, "data.format=auto")
    )
    table = reproduce("k400", out, request)
    assert {(cell.status, cell.column) for cell in table.cells} == {("failed", "tints.py:make")}
    assert len(table.cells) == 5
    assert "Failed: " in (out / "table.txt").read_text("utf-8")


def test_lvu_has_a_column_for_each_task_and_rows_for_each_backbone(
    tmp_path: Path, backbone: str
) -> None:
    request = ReproduceRequest(
        data=write_lvu(tmp_path / "lvu"),
        backbones=(backbone,),
        changes=(*CHANGES, "data.task=genre"),
    )
    table = reproduce("lvu", tmp_path / "out", request)
    assert {cell.column for cell in table.cells} == {"Genre"}
    assert table.cells[0].row == "tints.py:make, Linear"
    assert {cell.status for cell in table.cells} == {"done"}


def test_the_tables_are_listed(capfd: pytest.CaptureFixture[str]) -> None:
    assert run("reproduce", "--list") == 0
    said = capfd.readouterr().out
    for name in ("ucf101", "k400-low-shot", "lvu", "ablation-clips-batch"):
        assert name in said
    assert len(answer(capfd, "reproduce", "--list")["tables"]) == 11


def test_bad_calls_are_answered_in_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], ucf101: Path, small_store: FeatureStore
) -> None:
    def refused(*words: object) -> str:
        capfd.readouterr()
        assert run("reproduce", *words) == 2
        said = capfd.readouterr().err.strip()
        assert "\n" not in said
        return said

    out = ("--out", tmp_path / "out")
    assert "did you mean ucf101" in refused("ucf11", "--data", ucf101, *out)
    assert "--out DIR" in refused("ucf101", "--data", ucf101)
    assert "--data FOLDER, or --store STORE" in refused("ucf101", *out)
    store = ("--store", small_store.folder)
    assert "has its backbone already" in refused("ucf101", *store, "--backbone", "i3d", *out)
    assert "did you mean i3d" in refused(
        "ucf101", "--data", ucf101, "--backbone", "i3d_kinetics40", *out
    )
    assert "has no table.json" in refused("ucf101", *out, "--render")
    assert "did you mean epochs" in refused(
        "ucf101", "--data", ucf101, *out, "--set", "pretrain.epoch=3"
    )
    assert not (tmp_path / "out").exists()
