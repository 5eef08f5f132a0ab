"""Every protocol of the paper runs end to end on a miniature of its dataset's folder."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.miniatures import (
    LABELS,
    TINY,
    paint,
    run,
    write_backbone,
    write_lines,
    write_lvu,
    write_ucf101,
)

from clipset.data.catalog import read_catalog_table
from clipset.data.datasets import CLASSIFICATION, REGRESSION
from clipset.data.tasks import DataConfig, Task, join_tasks, read_tasks
from clipset.errors import ClipsetError
from clipset.evaluation.results import read_predictions
from clipset.probes.config import EvaluateConfig
from clipset.probes.registry import probe_key
from clipset.recipe import load_settings, read_recipe

RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_backbone(tmp_path_factory.mktemp("backbone"))


ROWS = [probe_key(name) for name in load_settings(EvaluateConfig, "paper").probes]


def run_recipe(name: str, data: Path, out: Path, backbone: str, *more: str) -> list[dict[str, Any]]:
    """The records of a recipe's run."""
    recipe = RECIPES / f"{name}.toml"
    settings = (*TINY, f"--set=extract.backbone={backbone}", *more)
    assert run("run", data, "--out", out, "--recipe", recipe, *settings, "--quiet") == 0
    records = json.loads((out / "results.json").read_text())
    assert isinstance(records, list)
    assert (out / "report.html").is_file()
    return records


def rows(records: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(record["features"], record["probe"]) for record in records]


@pytest.fixture(scope="module")
def ucf101(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_ucf101(tmp_path_factory.mktemp("ucf"))


@pytest.fixture(scope="module")
def finished(ucf101: Path, backbone: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "ucf101"
    run_recipe("ucf101", ucf101, out, backbone)
    return out


def test_ucf101_runs_on_three_splits_and_the_result_is_their_mean(finished: Path) -> None:
    out = finished
    records = json.loads((out / "results.json").read_text())
    assert rows(records) == ROWS
    for record in records:
        values = [
            next(
                each["value"]
                for each in json.loads((out / name / "results.json").read_text())
                if (each["features"], each["probe"]) == (record["features"], record["probe"])
            )
            for name in ("split-1", "split-2", "split-3")
        ]
        assert list(record["task_values"].values()) == values
        assert record["value"] == pytest.approx(sum(values) / 3)
        assert record["interval"][0] <= record["value"] <= record["interval"][1]
        assert record["n"] == 3 * 6
        assert record["ssl_split"] == "train"
    assert list(out.rglob("ledger.sqlite")) == [out / "store" / "ledger.sqlite"]
    card = json.loads((out / "split-2" / "model" / "model.json").read_text())
    assert card["videos"] == 12  # never those that the split tests
    page = (out / "report.html").read_text()
    assert "split-3/report.html" in page
    assert (out / "split-3" / "report.html").is_file()
    comparisons = json.loads((out / "comparisons.json").read_text())
    values = {(each["features"], each["probe"]): each["value"] for each in records}
    assert len(comparisons) == 3  # each SCALE row and its baseline
    for each in comparisons:
        against = values[each["baseline_features"], each["baseline_probe"]]
        gap = values[each["features"], each["probe"]] - against
        assert each["difference"] == pytest.approx(gap)
        assert each["n"] == 18  # every video is tested by one split
    assert "SCALE linear minus Linear, mean over the splits" in page


def test_a_run_of_several_splits_goes_on_where_it_stopped(
    finished: Path, ucf101: Path, backbone: str, capfd: pytest.CaptureFixture[str]
) -> None:
    out = finished
    first = json.loads((out / "results.json").read_text())
    models = sorted(out.glob("*/model/model.safetensors"))
    stamps = [path.stat().st_mtime_ns for path in models]
    (out / "split-2" / "results.json").unlink()
    again = run_recipe("ucf101", ucf101, out, backbone)
    assert len(models) == 3
    assert [path.stat().st_mtime_ns for path in models] == stamps
    assert [record["value"] for record in again] == [record["value"] for record in first]
    assert "ssl_split = train" in capfd.readouterr().out
    assert run("report", out / "split-2", "--quiet") == 0  # a part finds the store of the whole


def test_the_page_of_the_whole_and_of_a_part_can_be_written_again(finished: Path) -> None:
    for folder in (finished, finished / "split-3"):
        (folder / "report.html").unlink()
        assert run("report", folder, "--quiet") == 0
        assert (folder / "report.html").is_file()
    assert "split-3/report.html" in (finished / "report.html").read_text()


def test_errors_are_reported_on_their_own_scale(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    part = tmp_path / "run" / "split-1"
    records = json.loads((part / "results.json").read_text())
    errors = [
        record | {"metric": "mse", "value": 5.4, "interval": [4.8, 5.9], "confusion": None}
        for record in records
    ]
    (part / "results.json").write_text(json.dumps(errors))
    assert run("report", part, "--quiet") == 0
    page = (part / "report.html").read_text()
    assert "mean squared error" in page
    assert ">5.4<" in page
    assert "Regression by simple probes" in page
    assert 'id="confusion"' not in page  # there are no classes that could be mixed up
    assert "4.8–5.9" in page


def test_one_split_is_a_run_like_any_other(ucf101: Path, tmp_path: Path, backbone: str) -> None:
    more = ("--set=data.task=split-1", "--set=pretrain.ssl_split=all")
    records = run_recipe("ucf101", ucf101, tmp_path / "out", backbone, *more)
    assert {record["n"] for record in records} == {6}
    assert {record["ssl_split"] for record in records} == {"all"}
    card = json.loads((tmp_path / "out" / "model" / "model.json").read_text())
    assert card["videos"] == 18


@pytest.mark.slow
def test_hmdb51_runs_on_three_splits(tmp_path: Path, backbone: str) -> None:
    folder = tmp_path / "hmdb"
    for number, label in enumerate(LABELS):
        names = [f"film_{label}_{place}" for place in range(7)]
        for place, name in enumerate(names):
            paint(folder / "hmdb51_org" / label / f"{name}.mp4", number, 7 * number + place)
        for fold in (1, 2, 3):  # one video is in neither part
            flags = [2 if place // 2 == fold - 1 else 0 if place == 6 else 1 for place in range(7)]
            lines = [f"{name}.avi {flag} " for name, flag in zip(names, flags, strict=True)]
            write_lines(folder / "splits" / f"{label}_test_split{fold}.txt", lines)
    records = run_recipe("hmdb51", folder, tmp_path / "out", backbone)
    assert rows(records) == ROWS
    assert {record["n"] for record in records} == {18}
    card = json.loads((tmp_path / "out" / "split-1" / "model" / "model.json").read_text())
    assert card["videos"] == 12


def write_kinetics(folder: Path) -> Path:
    header = "label,youtube_id,time_start,time_end,split"
    for split, count, word in (("train", 10, "train"), ("val", 2, "validate"), ("test", 1, "test")):
        lines = [header]
        for number, label in enumerate(LABELS):
            for place in range(count):
                youtube = f"{split}{label}{place:05d}"
                lines.append(f"{label} things,{youtube},0,10,{word}")
                if split != "test":
                    name = f"{youtube}_000000_000010.mp4"
                    paint(folder / split / f"{label} things" / name, number, 10 * number + place)
        write_lines(folder / f"{split}.csv", lines)
    return folder


def test_kinetics_is_judged_on_its_validation_videos(tmp_path: Path, backbone: str) -> None:
    folder = write_kinetics(tmp_path / "k400")
    records = run_recipe("k400", folder, tmp_path / "out", backbone)
    assert rows(records) == ROWS
    assert {(record["split"], record["n"]) for record in records} == {("val", 6)}
    assert read_catalog_table(tmp_path / "out" / "catalog.csv").splits == ("train", "val")


def test_low_shot_kinetics_pre_trains_on_all_and_probes_on_a_tenth(
    tmp_path: Path, backbone: str
) -> None:
    folder = write_kinetics(tmp_path / "k400")
    more = ("--set=evaluate.label_fraction=0.2",)  # a tenth of ten videos leaves none to choose on
    records = run_recipe("k400_low_shot", folder, tmp_path / "out", backbone, *more)
    assert read_recipe(RECIPES / "k400_low_shot.toml").evaluate.label_fraction == 0.1
    assert {record["label_fraction"] for record in records} == {0.2}
    assert {record["n"] for record in records} == {6}
    card = json.loads((tmp_path / "out" / "model" / "model.json").read_text())
    assert card["videos"] == 30
    mlp = next(record for record in records if record["probe"] == "mlp")
    assert mlp["settings"]["labels"] == "6 of 30 training labels"


def test_ssv2_has_two_times_three_regular_clips_and_mirrors_none(
    tmp_path: Path, backbone: str
) -> None:
    folder = tmp_path / "ssv2"
    entries: dict[str, list[dict[str, str]]] = {
        "train": [],
        "validation": [],
        "test": [{"id": "99"}],
    }
    for number, label in enumerate(LABELS):
        for place in range(6):
            id = str(10 * number + place)
            paint(folder / "videos" / f"{id}.mp4", number, int(id))
            part = "train" if place < 4 else "validation"
            entries[part].append({"id": id, "template": f"Showing [something] {label}"})
    lists = folder / "labels"
    lists.mkdir()
    names = {f"Showing something {label}": str(n) for n, label in enumerate(LABELS)}
    (lists / "labels.json").write_text(json.dumps(names))
    for part, found in entries.items():
        (lists / f"{part}.json").write_text(json.dumps(found))
    records = run_recipe("ssv2", folder, tmp_path / "out", backbone)
    assert rows(records) == ROWS
    assert {(record["split"], record["n"]) for record in records} == {("val", 6)}
    manifest = json.loads((tmp_path / "out" / "store" / "manifest.json").read_text())
    sampling = manifest["sampling"]
    assert (sampling["num_times"], sampling["num_crops"], sampling["flip"]) == (2, 3, False)
    assert (sampling["crop"], manifest["backbone"]["stride"]) == ("short-side", 2)


@pytest.fixture(scope="module")
def lvu(backbone: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lvu")
    run_recipe("lvu", write_lvu(folder / "lvu"), folder / "out", backbone)
    return folder / "out"


@pytest.mark.slow
def test_lvu_runs_on_all_tasks_with_features_extracted_once(lvu: Path) -> None:
    out, records = lvu, json.loads((lvu / "results.json").read_text())
    found = {(record["task"], record["metric"]) for record in records}
    assert found == {(task, "top1") for task in CLASSIFICATION} | {(t, "mse") for t in REGRESSION}
    assert rows(records) == 9 * ROWS
    assert {record["split"] for record in records} == {"test"}
    assert list(out.rglob("ledger.sqlite")) == [out / "store" / "ledger.sqlite"]
    ends = [line.rsplit(",", 1)[1] for line in (out / "catalog.csv").read_text().splitlines()[1:]]
    assert len(ends) == 16
    assert ends.count("0.25") == 1  # the outro is cut off
    page = (out / "report.html").read_text()
    for task in (*CLASSIFICATION, *REGRESSION):
        assert f"{task}/report.html" in page


@pytest.mark.parametrize(
    ("task", "scale"),
    [
        ("like_ratio", lambda n: 10 * (n + 1) / (n + 4)),  # ten times the share of likes
        ("view_count", lambda n: math.log(100 * (n + 1))),  # the logarithm of the views
    ],
)
def test_lvu_predicts_numbers_on_the_scale_of_the_benchmark(
    lvu: Path, task: str, scale: Callable[[int], float]
) -> None:
    records = [r for r in json.loads((lvu / "results.json").read_text()) if r["task"] == task]
    said = read_predictions(lvu / task / "predictions.safetensors")
    films = [int(id.removeprefix("film").removesuffix(".mp4")) for id in said.ids]
    truth = np.array([scale(number) for number in films])
    guess = np.mean([scale(number) for number in range(10)])  # the training videos
    np.testing.assert_allclose(said.truth, truth, rtol=1e-5)
    assert sorted(films) == [12, 13, 14, 15]
    assert len(records) == len(ROWS)
    for record in records:
        outputs = said.outputs[record["features"], record["probe"]][..., 0]
        error = np.mean((outputs - truth) ** 2)
        assert record["metric"] == "mse"
        assert record["value"] == pytest.approx(error, rel=1e-4)
        assert record["metrics"]["mse"] == record["value"]
        assert record["chance_level"] == pytest.approx(np.mean((truth - guess) ** 2), rel=1e-4)
        validation = None if record["probe"] == "knn" else "the 2 videos of the split 'val'"
        assert record["selected_on"] == validation
        assert 0 <= record["interval"][0] <= record["value"] <= record["interval"][1]


def test_one_task_of_lvu_can_be_chosen(tmp_path: Path, backbone: str) -> None:
    more = ("--set=data.task=genre", "--set=data.test_split=val")
    records = run_recipe("lvu", write_lvu(tmp_path / "lvu"), tmp_path / "out", backbone, *more)
    assert {(record["split"], record["n"]) for record in records} == {("val", 2)}
    assert records[0]["task"] is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["data.format=ucf"], "format"),
        (["data.format=ucf101", "data.task=split-4"], "unknown task 'split-4'"),
        (["data.format=lvu", "data.task=genres"], "did you mean genre"),
        (["evaluate.label_fraction=0"], "label_fraction must be more than 0"),
        (["data.formats=lvu"], "did you mean format"),
    ],
)
def test_a_wrong_protocol_is_named(settings: list[str], message: str) -> None:
    with pytest.raises(ClipsetError, match=message):
        read_recipe(None, settings)


def test_lists_that_are_not_there_or_there_twice_are_said(ucf101: Path, tmp_path: Path) -> None:
    def read(folder: Path, **settings: Any) -> tuple[Task, ...]:
        return read_tasks(folder, DataConfig(**settings))

    with pytest.raises(ClipsetError, match="found: none; name it with"):
        read(tmp_path, format="ucf101")
    with pytest.raises(ClipsetError, match=r"the lists of lvu .* must be in one folder"):
        read(tmp_path, format="lvu")
    with pytest.raises(ClipsetError, match="is not a folder of hmdb51"):
        read(tmp_path / "nowhere", format="hmdb51")
    for copy in ("one", "two"):
        write_lines(tmp_path / copy / "trainlist01.txt", ["a 1"])
    with pytest.raises(ClipsetError, match=r"one, .*two; name it with data.lists"):
        read(tmp_path, format="ucf101")
    with pytest.raises(ClipsetError, match="no video of the split 'val' has a label"):
        read(ucf101, format="ucf101", test_split="val")
    with pytest.raises(ClipsetError, match="is not a file, but data"):
        read(ucf101, format="table")
    parts = read(ucf101, format="ucf101", task="all", lists="ucfTrainTestlist")
    whole = join_tasks(parts)
    assert [part.name for part in parts] == ["split-1", "split-2", "split-3"]
    assert (whole.name, len(whole), len(whole.classes)) == ("ucf101", 18, 3)
    assert whole.splits == ()  # a video is tested by one of the splits and learned from by others
