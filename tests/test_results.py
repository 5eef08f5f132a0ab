"""A number goes from `clipset run` to docs/results.md without hands."""

import importlib
import io
import json
import re
import shutil
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from tests.conftest import write_video
from tests.miniatures import TINY, run, write_backbone

from clipset.data.catalog import Catalog, Video
from clipset.evaluation.results import read_predictions
from clipset.probes.config import ProbeKey

ROOT = Path(__file__).parents[1]
ROWS = ("knn", "scale_knn", "linear", "scale_linear", "transformer", "finetune", "ordered")
NAMED = "--set=data.name=Squares"
HELD_OUT = ('--set=data.validation_groups=["p2"]', "--set=data.test_split=val")


def rows(*names: str) -> str:
    return f"--set=evaluate.probes={json.dumps(names)}"


def load(name: str) -> ModuleType:
    """One of the scripts in results/."""
    sys.path.insert(0, str(ROOT / "results"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(ROOT / "results"))


@pytest.fixture(scope="module")
def labels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve videos of four persons with a label, another one and a number; one is tested."""
    folder = tmp_path_factory.mktemp("squares")
    lines = ["path,label,split,group,order,count"]
    for number in range(12):
        colour, person = number % 2, number // 3
        write_video(folder / f"{number}.mp4", seed=number, seconds=0.5, colour=colour)
        split = "test" if person == 3 else "train"
        lines.append(f"{number}.mp4,c{colour},{split},p{person},{number // 3 % 2},{number}")
    for number in (3, 9):  # both orders are learned and tested
        lines[number + 1] = lines[number + 1].rsplit(",", 2)[0] + f",0,{number}"
    path = folder / "labels.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def runs(labels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, and a run with two tasks on its store."""
    folder = tmp_path_factory.mktemp("runs")
    backbone = f"--set=extract.backbone={write_backbone(folder)}"

    def walk(name: str, *words: str, links: tuple[str, ...] = ("store",)) -> None:
        (folder / name).mkdir()
        for link in links:
            (folder / name / link).symlink_to(folder / "full" / link)
        given = (*TINY, backbone, NAMED, *words, "--quiet")
        assert run("run", labels, "--out", folder / name, *given) == 0

    walk("full", rows(*ROWS), links=())
    tasks = 'data.tasks={order = {label = "order"}, count = {target = "count"}}'
    walk("tasks", rows("knn", "scale_knn"), f"--set={tasks}")
    return folder


def test_the_page_of_results_is_what_the_script_writes() -> None:
    assert (ROOT / "docs" / "results.md").read_text("utf-8") == load("write").render()


def test_recorded_results_name_no_place_on_one_machine() -> None:
    for path in (ROOT / "results").glob("summaries/*"):
        text = path.read_text("utf-8")
        assert not re.findall(r"(?<![\w~.:])/(?:home|Users|root|tmp|opt|work)/", text)


@pytest.mark.slow
def test_the_page_has_the_tables_of_a_study_under_its_note(study: Path, tmp_path: Path) -> None:
    for folder in ("summaries", "notes"):
        (tmp_path / folder).mkdir()
    shutil.copy(study / "summary.md", tmp_path / "summaries" / "squares.md")
    (tmp_path / "notes" / "squares.md").write_text("## Colours of squares\n\nNothing gained.\n")
    (tmp_path / "notes" / "z.md").write_text("## Last\n")
    (tmp_path / "head.md").write_text("# Results\n")
    text = load("write").render(tmp_path)
    order = (
        "# Results", "## Colours of squares", "Nothing gained.", "8 of 8 trainings finished",
        "### squares", "| probe | slow | group |", "| k-NN |", "| SCALE fine-tuned − Transformer |",
        "### squares, 50 % of the labels", "results/studies/squares.toml", "## Last",
    )  # fmt: skip
    assert sorted(order, key=text.index) == list(order)


def test_one_row_alone_has_the_number_of_the_whole_table(
    labels: Path, runs: Path, tmp_path: Path
) -> None:
    for name in ("store", "model"):
        (tmp_path / name).symlink_to(runs / "full" / name)
    backbone = f"--set=extract.backbone={runs / 'tints.py'}:make"
    given = (*TINY, backbone, NAMED, rows("finetune"), "--quiet")
    assert run("run", labels, "--out", tmp_path, *given) == 0
    [alone] = json.loads((tmp_path / "results.json").read_text())
    table = json.loads((runs / "full" / "results.json").read_text())
    [within] = [each for each in table if each["probe"] == "finetune"]
    assert (alone["value"], alone["interval"]) == (within["value"], within["interval"])


def test_tasks_on_the_same_videos_share_one_model(runs: Path) -> None:
    order, count = (runs / "tasks" / name / "model" for name in ("order", "count"))
    assert (order / "metrics.jsonl").read_bytes() == (count / "metrics.jsonl").read_bytes()


def run_study(labels: Path, file: Path, out: Path, *more: str) -> str:
    """The output of the command."""
    words = [file, "--out", out, "--data", labels.parent, "--device", "cpu", *more]
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as output:
        patch.setattr("sys.argv", ["study.py", *map(str, words)])
        load("study").main()
    return output.getvalue()


def write_study(folder: Path, backbone: str, changes: Mapping[str, str] | None = None) -> Path:
    """A study of two variants in two folds, with all labels and half of them."""
    text = f"""
num_trainings = 2
label_fractions = [1.0, 0.5]
budget = {{ steps = 4 }}
[settings.extract]
backbone = "{backbone}"
frames = 2
size = 16
engine = "torch"
workers = 0
sampling.num_clips = 4
[settings.pretrain]
clips_per_set = 2
batch_size = 4
model = {{ width = 32, num_layers = 1, projection_dim = 8, projection_hidden = [16, 16] }}
[settings.evaluate]
num_seeds = 1
probes = ["knn", "scale_knn", "transformer", "finetune"]
training = {{ epochs = 2, num_clips = 2, learning_rates = [0.003] }}
[datasets.squares]
catalog = "labels.csv"
folds = 2
[variants]
slow = {{ pretrain = {{ learning_rate = 1e-4 }} }}
group = {{ pretrain = {{ batch_from = "group" }} }}
"""
    for old, new in (changes or {}).items():
        assert old in text
        text = text.replace(old, new)
    path = folder / "squares.toml"
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def study(labels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study; a second start changes nothing but the summary."""
    folder = tmp_path_factory.mktemp("study")
    file = write_study(folder, write_backbone(folder))
    assert "total: 0 of 8 units finished, time unknown" in run_study(labels, file, folder, "--list")
    assert "8 of 8 trainings" in run_study(labels, file, folder)
    times = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    assert re.search("total: 8 of 8 units finished$", run_study(labels, file, folder, "--list"))
    run_study(labels, file, folder)
    after = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    assert {path.name for path in after if after[path] != times.get(path)} == {
        "summary.json",
        "summary.md",
    }
    return folder


def unit(study: Path, variant: str, fold: int, seed: int) -> Path:
    return study / "units" / "squares" / "default" / variant / f"fold-{fold}" / f"seed-{seed}"


def test_every_group_is_evaluated_in_one_fold(study: Path) -> None:
    for variant in ("slow", "group"):
        folds = [
            read_predictions(
                unit(study, variant, fold, 0) / "labels-100" / "predictions.safetensors"
            ).ids
            for fold in (1, 2)
        ]
        assert sorted(id for ids in folds for id in ids) == sorted(f"{n}.mp4" for n in range(12))
        assert set(folds[0]) == {f"{n}.mp4" for n in range(6)}  # persons 0 and 1


def test_hyper_parameters_are_selected_on_training_groups(study: Path) -> None:
    for path in study.glob("units/**/labels-100/results.json"):
        for result in json.loads(path.read_text()):
            assert result["split"] == "test"
            selected_on = result["selected_on"]
            assert selected_on is None or selected_on.endswith("training videos (whole groups)")


def test_a_budget_of_steps_is_the_same_for_all_variants(study: Path) -> None:
    for variant, epochs in (("slow", 2), ("group", 2)):  # two batches of 4 and 2; two groups
        record = json.loads((unit(study, variant, 1, 1) / "unit.json").read_text())
        assert (record["steps"], record["recipe"]["pretrain"]["epochs"]) == (4, epochs)
        lines = (unit(study, variant, 1, 1) / "model" / "metrics.jsonl").read_text().splitlines()
        assert len(lines) == epochs
        assert {"pretrain", "evaluate labels-100", "evaluate labels-50"} == set(record["seconds"])
        assert {"processor", "cores", "threads"} <= set(record["environment"])


def test_features_are_extracted_once(study: Path) -> None:
    assert len(list(study.glob("**/manifest.json"))) == 1


def test_variants_share_the_probes_without_a_model(study: Path) -> None:
    assert len(list(study.glob("baselines/*"))) == 2 * 2 * 2  # folds, trainings, label fractions
    transformer = ProbeKey("backbone", "transformer")
    for fold in (1, 2):
        slow, group = (
            read_predictions(
                unit(study, variant, fold, 0) / "labels-100" / "predictions.safetensors"
            )
            for variant in ("slow", "group")
        )
        np.testing.assert_array_equal(slow.outputs[transformer], group.outputs[transformer])


def test_shared_probes_are_those_of_the_unit_alone(
    labels: Path, study: Path, tmp_path: Path
) -> None:
    changes = {
        "num_trainings = 2": "num_trainings = 1",
        "[1.0, 0.5]": "[1.0]",
        "slow =": "# slow =",
    }
    file = write_study(tmp_path, f"{study / 'tints.py'}:make", changes)
    run_study(labels, file, tmp_path, "--features", str(study / "features"))
    assert not (tmp_path / "features").exists()
    alone, within = (
        read_predictions(unit(folder, "group", 2, 0) / "labels-100" / "predictions.safetensors")
        for folder in (tmp_path, study)
    )
    assert len(alone.outputs) == 4
    for key, outputs in alone.outputs.items():
        np.testing.assert_array_equal(outputs, within.outputs[key])


def test_a_killed_unit_is_run_again_and_the_others_are_not(
    labels: Path, study: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "study"
    shutil.copytree(study, folder)
    lost = unit(folder, "slow", 2, 1)
    before = (lost / "labels-50" / "predictions.safetensors").read_bytes()
    shutil.rmtree(lost / "labels-50")
    file = folder / "squares.toml"
    listed = run_study(labels, file, folder, "--list")
    assert "squares default slow: 3 of 4 units finished, about" in listed
    assert "squares default group: 4 of 4 units finished\n" in listed
    text = run_study(labels, file, folder, "--summarise")
    assert "7 of 8 trainings" in text
    assert "| trainings | 1 × 2 folds | 2 × 2 folds |" in text  # the second training lacks a fold
    times = {path: path.stat().st_mtime_ns for path in folder.glob("units/**/results.json")}
    run_study(labels, file, folder)
    assert (lost / "labels-50" / "predictions.safetensors").read_bytes() == before
    assert all(path.stat().st_mtime_ns == time for path, time in times.items())


def test_the_summary_is_the_mean_over_all_videos_and_trainings(study: Path) -> None:
    content = json.loads((study / "summary.json").read_text())
    assert [column["label_fraction"] for column in content["columns"]] == [1.0, 0.5]
    column = content["columns"][0]
    assert (column["num_videos"], column["num_groups"]) == (12, 4)
    correct = []
    for fold, seed in ((1, 0), (1, 1), (2, 0), (2, 1)):
        path = unit(study, "slow", fold, seed) / "labels-100" / "predictions.safetensors"
        predictions = read_predictions(path)
        outputs = predictions.outputs[ProbeKey("scale", "finetune")]
        correct += (outputs[0].argmax(axis=1) == predictions.truth).tolist()
    scores = {(s["variant"], s["features"], s["probe"]): s for s in column["scores"]}
    assert len(scores) == 2 * 4
    score = scores["slow", "scale", "finetune"]
    assert score["value"] == pytest.approx(np.mean(correct))
    assert score["interval"][0] <= score["value"] <= score["interval"][1]
    names = ("variant", "features", "probe")
    differences = {
        tuple(d[f"{side}{name}"] for side in ("", "baseline_") for name in names): d["difference"]
        for d in column["differences"]
    }
    rival = scores["slow", "backbone", "transformer"]["value"]
    pair = ("slow", "scale", "finetune", "slow", "backbone", "transformer")
    assert differences[pair] == pytest.approx(score["value"] - rival)
    other = scores["group", "scale", "finetune"]["value"]
    pair = ("group", "scale", "finetune", "slow", "scale", "finetune")
    assert differences[pair] == pytest.approx(other - score["value"])
    text = (study / "summary.md").read_text()
    assert "## squares, 50 % of the labels" in text
    assert "| SCALE fine-tuned − Transformer |" in text
    assert "| group − slow |" in text


def test_a_budget_of_seconds_gives_steps_by_the_measured_speed(
    labels: Path, study: Path, tmp_path: Path
) -> None:
    changes = {
        "num_trainings = 2": "num_trainings = 1",
        "[1.0, 0.5]": "[1.0]",
        '["knn", "scale_knn", "transformer", "finetune"]': '["scale_knn"]',
        "steps = 4": "seconds = 0.5",
    }
    file = write_study(tmp_path, f"{study / 'tints.py'}:make", changes)
    run_study(labels, file, tmp_path, "--features", str(study / "features"))
    for variant in ("slow", "group"):
        speed = json.loads((tmp_path / "speed" / f"squares-default-{variant}.json").read_text())
        record = json.loads((unit(tmp_path, variant, 1, 0) / "unit.json").read_text())
        assert speed["seconds_per_step"] > 0
        assert (
            abs(record["steps"] * speed["seconds_per_step"] - 0.5) <= 2 * speed["seconds_per_step"]
        )
        assert record["budget"] == {"seconds": 0.5, "steps": None}


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("folds = 2", "folds = 5", "labels has 4 groups: from 2 to 4 folds are possible, got 5"),
        ("folds = 2", "folds = 1", "from 2 to 4 folds are possible, got 1"),
        ("folds = 2", "fold = 2", "unknown key 'fold'; did you mean folds"),
        ("batch_from", "batchfrom", "variant group.*unknown key 'batchfrom'.*batch_from"),
        ("batch_from", "preset = 'papr', batch_from", "papr"),
        ("steps = 4", "steps = 4, seconds = 1.0", "a budget is"),
        ("labels.csv", "label.csv", "label.csv not found"),
        ("folds = 2", "folds = 2\nnum_classes = 1", "the same label"),
        ("1e-4", "2e-4", "slow.*has other settings; use another --out"),
    ],
)
def test_a_study_that_cannot_be_run_is_refused_in_one_line(
    labels: Path, study: Path, tmp_path: Path, old: str, new: str, reason: str
) -> None:
    file = write_study(tmp_path, f"{study / 'tints.py'}:make", {old: new})
    out = study if old == "1e-4" else tmp_path
    with pytest.raises(SystemExit) as stop:
        run_study(labels, file, out, "--features", str(study / "features"))
    assert re.search(reason, str(stop.value))
    assert str(stop.value).startswith("study.py: ")
    assert "\n" not in str(stop.value)


def test_an_unknown_dataset_is_refused(labels: Path, study: Path) -> None:
    with pytest.raises(SystemExit, match="unknown dataset 'square'; did you mean squares"):
        run_study(labels, study / "squares.toml", study, "--dataset", "square", "--list")
    listed = run_study(labels, study / "squares.toml", study, "--dataset", "squares", "--list")
    assert "total: 8 of 8" in listed


def test_folds_need_groups(study: Path, tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("path,label\na.mp4,x\nb.mp4,y\n")
    for name in ("a.mp4", "b.mp4"):
        (tmp_path / name).write_bytes(name.encode())
    file = write_study(tmp_path, f"{study / 'tints.py'}:make")
    with pytest.raises(SystemExit, match="folds need the group of every video; 2 of 2 videos"):
        run_study(tmp_path / "labels.csv", file, tmp_path / "out")


@pytest.mark.parametrize("path", sorted((ROOT / "results" / "studies").glob("*.toml")))
def test_the_settings_of_a_study_file_are_valid(path: Path) -> None:
    study = load("units").read_study(path)
    for dataset in study.datasets.values():
        for backbone in study.backbones.values():
            for name, settings in study.variants.items():
                assert study.resolve(dataset.settings, backbone, settings, where=name)


def test_folds_divide_all_groups() -> None:
    module, generator = load("units"), np.random.default_rng(0)
    for num_groups, folds in ((10, 5), (10, 3), (7, 7), (2, 2)):
        videos = tuple(
            Video(
                id=str(n), path=Path(str(n)), label="x", group=f"g{generator.integers(num_groups)}"
            )
            for n in range(100)
        )
        catalog = Catalog(name="many", videos=videos)
        parts = module.list_folds(catalog, module.Dataset(catalog="", folds=folds)).values()
        tested = [[video for video in part if video.split == "test"] for part in parts]
        assert len(tested) == folds
        assert sorted(video.id for part in tested for video in part) == sorted(map(str, range(100)))
        groups = [{video.group for video in part} for part in tested]
        assert sum(map(len, groups)) == len(set.union(*groups))
        assert max(map(len, groups)) - min(map(len, groups)) <= 1
