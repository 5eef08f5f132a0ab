"""A number goes from `clipset run` to docs/results.md without hands."""

import importlib
import json
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from tests.conftest import write_video
from tests.miniatures import TINY, run, write_backbone

from clipset.config import build
from clipset.errors import ClipsetError
from clipset.recipe import Recipe, read_recipe

ROOT = Path(__file__).parents[1]
ROWS = ("knn", "scale_knn", "linear", "scale_linear", "transformer", "finetune", "ordered")
NAMED = "--set=data.name=Squares"
SHORT = "--set=pretrain.min_steps=1"
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
    """Four runs on one store, a run with two tasks, and a table of the paper."""
    folder = tmp_path_factory.mktemp("runs")
    backbone = f"--set=extract.backbone={write_backbone(folder)}"

    def walk(name: str, *words: str, links: tuple[str, ...] = ("store",)) -> None:
        (folder / name).mkdir()
        for link in links:
            (folder / name / link).symlink_to(folder / "full" / link)
        given = (*TINY, SHORT, backbone, NAMED, *words, "--quiet")
        assert run("run", labels, "--out", folder / name, *given) == 0

    walk("full", rows(*ROWS), links=())
    walk("few", rows(*ROWS), "--set=evaluate.label_fraction=0.5", links=("store", "model"))
    walk("paper", rows(*ROWS), "--set=pretrain.preset=paper")
    walk("tried", rows("scale_knn"), *HELD_OUT)
    tasks = 'data.tasks={order = {label = "order"}, count = {target = "count"}}'
    walk("tasks", rows("knn", "scale_knn"), f"--set={tasks}")
    words = ("--store", folder / "full" / "store", "--out", folder / "losses", NAMED, *HELD_OUT)
    quick = [word for word in TINY if "extract" not in word]
    assert run("reproduce", "ablation-losses", *words, *quick, "--quiet") == 0
    return folder


@pytest.fixture(scope="module")
def written(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of result files."""
    out, collect = tmp_path_factory.mktemp("results"), load("collect").collect
    collect([runs / "full", runs / "few", runs / "paper"], "squares", out)
    for name in ("tried", "tasks", "losses"):
        collect([runs / name], name, out)
    return out


def page(written: Path) -> str:
    return str(load("write").render(load("records").read_result_files(written), ["## A note\n"]))


def test_the_page_of_results_is_what_the_script_writes() -> None:
    records, write = load("records"), load("write")
    text = write.render(records.read_result_files(), write.read_notes(), records.read_studies())
    assert (ROOT / "docs" / "results.md").read_text("utf-8") == text


def test_result_files_name_no_place_on_one_machine(written: Path) -> None:
    for path in (*written.glob("*.json"), *(ROOT / "results").glob("*.json")):
        text = path.read_text("utf-8")
        assert not re.findall(r"(?<![\w~.:])/(?:home|Users|root|tmp|opt|work)/", text)
        assert str(written.parent) not in text


def test_a_result_says_all_that_a_number_depends_on(written: Path) -> None:
    file = json.loads((written / "squares.json").read_text())
    full, few, paper = file["results"]
    assert (full["dataset"], full["backbone"]) == ("Squares", "tints.py:make")
    assert (full["preset"], paper["preset"]) == ("recommended", "paper")
    assert (full["label_fraction"], few["label_fraction"]) == (None, 0.5)
    [part] = full["tasks"]
    assert part["counts"] == {"videos": 12, "classes": 2, "train": 9, "test": 3, "failed": 0}
    assert part["training_seconds"] > 0
    assert full["source"].endswith("/labels.csv")
    assert full["recipe_text"] == (ROOT / full["recipe_file"]).read_text("utf-8")
    for record in part["rows"]:
        assert {"value", "interval", "seeds", "selected_on", "split"} <= set(record)
    assert {"processor", "cores", "torch"} <= set(full["machine"])
    assert {(each["run"], each["baseline"]) for each in file["differences"]} == {(0, 2)}


def test_the_command_of_a_result_gives_the_recipe_of_its_run(written: Path) -> None:
    for path in written.glob("*.json"):
        for result in json.loads(path.read_text())["results"]:
            if result["kind"] == "run":
                told = read_recipe(ROOT / result["recipe_file"], result["changes"])
                assert told == build(Recipe, result["recipe"], path.name)
                for change in result["changes"]:
                    assert change.split("=")[0] in result["command"]


def test_one_row_alone_has_the_number_of_the_whole_table(
    labels: Path, runs: Path, tmp_path: Path
) -> None:
    for name in ("store", "model"):
        (tmp_path / name).symlink_to(runs / "full" / name)
    backbone = f"--set=extract.backbone={runs / 'tints.py'}:make"
    given = (*TINY, SHORT, backbone, NAMED, rows("finetune"), "--quiet")
    assert run("run", labels, "--out", tmp_path, *given) == 0
    [alone] = json.loads((tmp_path / "results.json").read_text())
    table = json.loads((runs / "full" / "results.json").read_text())
    [within] = [each for each in table if each["probe"] == "finetune"]
    assert (alone["value"], alone["interval"]) == (within["value"], within["interval"])


def test_tasks_on_the_same_videos_share_one_model(runs: Path) -> None:
    order, count = (runs / "tasks" / name / "model" for name in ("order", "count"))
    assert (order / "metrics.jsonl").read_bytes() == (count / "metrics.jsonl").read_bytes()


def test_the_page_has_every_table_and_where_it_comes_from(written: Path) -> None:
    text = page(written)
    assert "## Squares, tints.py:make" in text
    assert "|  | all labels | 50 % of the labels |" in text
    for words in (
        "| SCALE fine-tuned − Transformer |",
        "| SCALE linear − Linear |",
        "| SCALE k-NN − k-NN |",
        "| SCALE fine-tuned − Clips in order |",
        "### Trainings side by side",
        "| training, seconds |",
        "| order | count (squared error) |",
        "### Loss functions: Squares",
        "## Validation results",
        "## A note",
    ):
        assert words in text, words
    assert len(re.findall(r"^\| recommended.* − paper", text, re.M)) == 1
    commands = re.findall(r"seeds [\d, ]+\s+cores[^`]*?```sh\nclipset (run|reproduce) ", text)
    assert commands.count("reproduce") == 1
    assert commands.count("run") >= 5


def test_validation_runs_never_stand_in_a_table_of_test_scores(written: Path) -> None:
    before, after = page(written).split("## Validation results")
    assert "runs/tried" not in before
    assert "runs/tried" in after
    assert "Scored on val." in before.split("### Loss functions")[1]


def test_a_run_without_an_end_is_refused(tmp_path: Path, runs: Path) -> None:
    (tmp_path / "run.json").write_text((runs / "full" / "run.json").read_text())
    with pytest.raises(ClipsetError, match=r"no results\.json"):
        load("collect").collect([tmp_path], "none", tmp_path)


ABLATIONS = """
[masked-only]
description = "hidden clips alone"
changes = ["pretrain.model.losses=masked"]

[gentle]
description = "a tenth of the rate"
changes = ["evaluate.training.encoder_lr_scales=[0.1]"]

[layers]
description = "more layers"
changes = []
store = "layers"
"""


def run_study(runs: Path, folder: Path, *more: str) -> None:
    changes = [word for word in (*TINY, SHORT, NAMED) if not word.startswith("--set=extract")]
    words = [
        *("--store", runs / "full" / "store", "--recipe", ROOT / "recipes" / "quick.toml"),
        *(
            "--ablations",
            folder / "ablations.toml",
            "--out",
            folder,
            "--folds",
            3,
            "--results",
            folder,
        ),
        *(
            *changes,
            rows("scale_knn", "finetune"),
            "--set=evaluate.num_seeds=1",
            "--name",
            "squares",
        ),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["study.py", *map(str, words), *more])
        load("study").main()


@pytest.fixture(scope="module")
def study(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ablations in three folds, the recipe with two seeds; a third has no features."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "ablations.toml").write_text(ABLATIONS)
    run_study(runs, folder)
    run_study(runs, folder, "--only", "recipe", "--seed", "1")
    times = {path: path.stat().st_mtime_ns for path in folder.glob("*/fold-*/seed-*/*")}
    run_study(runs, folder)
    assert {path: path.stat().st_mtime_ns for path in folder.glob("*/fold-*/seed-*/*")} == times
    return folder


def test_ablations_are_evaluated_once_on_each_training_video_and_on_no_other(study: Path) -> None:
    read = load("collect").read_predictions
    for ablation in ("recipe", "masked-only", "gentle"):
        where = [study / ablation / f"fold-{fold}" / "seed-0" for fold in (1, 2, 3)]
        folds = [read(folder / "predictions.safetensors").ids for folder in where]
        assert sorted(id for ids in folds for id in ids) == [f"{number}.mp4" for number in range(9)]
        assert folds[1] == ("3.mp4", "4.mp4", "5.mp4")  # whole persons


def test_ablations_that_change_only_probes_share_a_model(study: Path) -> None:
    assert (
        len(list((study / "models").iterdir())) == 3 * 3
    )  # recipe and gentle; masked-only; the second seed


def test_a_cell_is_trained_with_its_seed(study: Path) -> None:
    cards = [
        json.loads(path.read_text("utf-8")) for path in (study / "models").glob("*/model.json")
    ]
    assert sorted(card["seed"] for card in cards) == [0] * 6 + [1] * 3
    [found] = load("records").read_studies(study)
    assert [(ablation.name, ablation.num_trainings) for ablation in found.ablations] == [
        ("recipe", 2),
        ("masked-only", 1),
        ("gentle", 1),
    ]
    assert set(found.seed_std) == {"scale knn", "scale finetune"}


def test_models_that_ablations_share_count_once_in_the_seed_variance(
    runs: Path, study: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "study"
    shutil.copytree(study, folder)
    [before] = load("records").read_studies(folder)
    run_study(runs, folder, "--only", "gentle", "--seed", "1")
    [after] = load("records").read_studies(folder)
    assert [ablation.num_trainings for ablation in after.ablations] == [2, 1, 2]
    assert after.seed_std == before.seed_std


def test_an_ablation_is_compared_with_the_recipe_on_the_same_videos(study: Path) -> None:
    [found] = load("records").read_studies(study)
    assert [ablation.name for ablation in found.ablations] == ["recipe", "masked-only", "gentle"]
    base, masked, gentle = (
        {(row.features, row.probe): row for row in i.rows} for i in found.ablations
    )
    assert gentle["scale", "knn"].difference == 0.0  # the same model, with the seed that both have
    tuned = ("scale", "finetune")
    assert masked[tuned].difference == pytest.approx(masked[tuned].value - base[tuned].value)
    text = load("write").render([], (), [found])
    assert "| hidden clips alone | `pretrain.model.losses=masked` |" in text
    assert "9 training videos, each scored in one of 3 folds. Another seed" in text
    assert f"--store {Path(found.stores[0]).name} --recipe recipes/quick.toml" in text


def test_an_ablation_that_was_run_with_other_settings_is_not_collected(
    runs: Path, study: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "study"
    shutil.copytree(study, folder)
    run_study(runs, folder, "--set=pretrain.mask_ratio=0.5", "--only", "recipe")
    [found] = load("records").read_studies(folder)
    assert [ablation.name for ablation in found.ablations] == ["recipe"]
    assert found.ablations[0].rows[0].interval is None  # one seed does not show the variance
    assert "its effect is not known" in load("write").render([], (), [found])


def test_final_results_are_of_test_videos_and_several_trainings(runs: Path, tmp_path: Path) -> None:
    folder = tmp_path
    (folder / "ablations.toml").write_text(ABLATIONS)
    more = ("--test", "--only", "recipe", "masked-only", "--seed", "0", "--seed", "1")
    run_study(runs, folder, *more, rows("knn", "scale_knn", "scale_linear"))
    [found] = load("records").read_studies(folder)
    assert (found.folds, found.videos, len(found.ablations)) == (0, 3, 2)
    ids = (
        load("collect")
        .read_predictions(folder / "recipe" / "test" / "seed-1" / "predictions.safetensors")
        .ids
    )
    assert ids == ("9.mp4", "10.mp4", "11.mp4")
    assert {row.features for row in found.ablations[1].rows} == {
        "scale"
    }  # others do not depend on it
    [difference] = found.differences  # the only probe whose baseline was run
    values = {(row.features, row.probe): row.value for row in found.ablations[0].rows}
    assert difference.value == pytest.approx(values["scale", "knn"] - values["backbone", "knn"])
    text = load("write").render([], (), [found])
    assert "3 test videos. Another seed of training moves the score" in text
    assert "| SCALE k-NN − k-NN |" in text
    assert "--test --seed 0 --seed 1 --only recipe masked-only" in text
    assert ", all labels" in text
    assert "Ablations: one change at a time" not in text


def draw_trials(
    generator: np.random.Generator, gain: float, seeds: tuple[int, ...]
) -> list[list[np.ndarray]]:
    """Trials of the given numbers of seeds in two folds; the last is better by `gain`."""
    easy = generator.normal(0.6, 0.25, (2, 60))
    trials = []
    for place, count in enumerate(seeds):
        luck = generator.normal(0.0, 0.08, (2, count, 1))
        probability = easy[:, None] + luck + gain * (place == len(seeds) - 1)
        trials.append(list((generator.random((2, count, 60)) < probability).astype(np.float64)))
    return trials


@pytest.mark.parametrize("gain", [0.0, 0.1])
def test_intervals_hold_the_truth_although_a_trial_has_one_seed(gain: float) -> None:
    significance, generator = load("significance"), np.random.default_rng(0)
    held = []
    for _ in range(400):
        base, *_, last = trials = draw_trials(generator, gain, (3, 2, 2, 1))
        gap = significance.compare_scores(last, base, significance.estimate_seed_variance(trials))
        held.append(gap.interval[0] <= gain <= gap.interval[1])
    assert 0.93 <= np.mean(held) <= 0.995


def test_intervals_hold_the_truth_where_only_one_of_two_rows_depends_on_a_seed() -> None:
    significance, generator = load("significance"), np.random.default_rng(3)
    held = []
    for _ in range(400):
        trials = draw_trials(generator, 0.0, (3, 3))
        solved = (generator.random((2, 1, 60)) < 0.6).astype(np.float64)
        fixed = list(solved.repeat(3, axis=1))  # the same whatever the seed
        gap = significance.compare_scores(
            trials[0],
            fixed,
            significance.estimate_seed_variance(trials),
            significance.estimate_seed_variance([fixed]),
        )
        held.append(gap.interval[0] <= 0.0 <= gap.interval[1])
    assert 0.93 <= np.mean(held) <= 0.995


def test_the_spread_is_that_of_the_seeds_by_a_plain_loop() -> None:
    trials = draw_trials(np.random.default_rng(1), 0.0, (3, 2, 1))
    squares, freedom = 0.0, 0
    for trial in trials:
        for fold in trial:
            scores = [sum(seed) / len(seed) for seed in fold.tolist()]
            middle = sum(scores) / len(scores)
            squares += sum((score - middle) ** 2 for score in scores)
            freedom += len(scores) - 1
    found = load("significance").estimate_seed_variance(trials)
    assert found.dof == freedom == 6
    assert found.std == pytest.approx((squares / freedom) ** 0.5)


def test_a_trial_that_wins_on_every_video_is_apart_for_certain() -> None:
    significance = load("significance")
    better, worse = [np.ones((2, 3))], [np.zeros((2, 3))]
    gap = significance.compare_scores(
        better, worse, significance.estimate_seed_variance([better, worse])
    )
    assert (gap.value, gap.interval, gap.p) == (1.0, (1.0, 1.0), 0.0)


def test_a_trial_is_not_apart_from_itself() -> None:
    significance = load("significance")
    [trial] = draw_trials(np.random.default_rng(2), 0.0, (2,))
    gap = significance.compare_scores(trial, trial, significance.estimate_seed_variance([trial]))
    assert (gap.value, gap.interval, gap.p) == (0.0, (0.0, 0.0), 1.0)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--only", "gentel"), "unknown ablation 'gentel'.*gentle"),
        (("--only", "layers"), "unknown ablation 'layers'"),
        (("--fold", "4"), "fold-1, fold-2, fold-3"),
        (("--fold", "0"), "fold-1, fold-2, fold-3"),
        (("--test", "--fold", "1"), "known: test"),
    ],
)
def test_a_study_refuses_what_it_does_not_have(
    runs: Path, study: Path, words: tuple[str, ...], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run_study(runs, study, *words)
    assert re.search(reason, capsys.readouterr().err)
