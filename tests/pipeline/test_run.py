"""The main job, end to end, on small real videos and on bad input."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import write_video

from clipset.cli import main

QUICK = [
    f"--set={setting}"
    for setting in (
        "extract.frames=2", "extract.stride=4", "extract.size=32", "extract.engine=torch",
        "extract.workers=0", "extract.sampling={num_clips = 8, num_times = 2, num_crops = 2}",
        "pretrain.epochs=4", "pretrain.clips_per_set=4",
        "pretrain.model={width = 32, num_layers = 1, projection_dim = 8}",
        "pretrain.model.projection_hidden=[16, 16]",
        "evaluate.num_seeds=2", "evaluate.mlp_hidden=16",
        "evaluate.training={epochs = 4, num_clips = 4, learning_rates = [0.003]}",
        "evaluate.training.head_learning_rates=[0.03]",
    )
]  # fmt: skip


def run(*words: object) -> int:
    """The exit code of a verb."""
    try:
        main([str(word) for word in words])
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


@pytest.fixture(scope="module")
def finished(small_videos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "first"
    assert run("run", small_videos, "--out", out, *QUICK, "--quiet") == 0
    return out


def test_a_folder_of_videos_becomes_a_report(finished: Path) -> None:
    names = {path.name for path in finished.iterdir()}
    assert {
        "catalog.csv", "store", "model", "vectors", "results.json", "report.html",
        "run.json", "comparisons.json", "predictions.safetensors", "retrieval.json",
    } <= names  # fmt: skip
    page = (finished / "report.html").read_text()
    for word in ("SCALE fine-tuned", "efficientnet_lite0", "video 3.mp4", "SCALE mean feature"):
        assert word in page


def test_results_hold_every_row_of_the_table_with_what_is_needed_to_trust_it(
    finished: Path,
) -> None:
    records = json.loads((finished / "results.json").read_text())
    rows = [(record["features"], record["probe"]) for record in records]
    assert rows == [
        ("backbone", "knn"), ("scale", "knn"), ("backbone", "linear"), ("scale", "linear"),
        ("backbone", "mlp"), ("backbone", "transformer"), ("scale", "finetune"),
        ("backbone", "course_knn"), ("scale", "course_knn"),
        ("backbone", "ordered"), ("scale", "ordered"),
    ]  # fmt: skip
    for record in records:
        assert record["metric"] == "top1"
        assert record["split"] == "test"
        assert record["n"] == 6
        assert record["interval"][0] <= record["value"] <= record["interval"][1]
        assert "test" not in (record["selected_on"] or "")
        assert record["seeds"]


def test_run_again_it_skips_what_is_done(
    finished: Path, small_videos: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    stamps = {
        name: (finished / name).stat().st_mtime_ns
        for name in ("store/random/features.npy", "model/model.safetensors", "results.json")
    }
    assert run("run", small_videos, "--out", finished, *QUICK) == 0
    said = capfd.readouterr().err
    assert "extracting" not in said
    assert "probing" not in said
    for name, stamp in stamps.items():
        if name != "store/random/features.npy":
            assert (finished / name).stat().st_mtime_ns == stamp
    steps = {
        step["name"]: step for step in json.loads((finished / "run.json").read_text())["steps"]
    }
    assert steps["extract"]["skipped"]
    assert steps["evaluate"]["skipped"]


def test_each_step_is_a_verb_and_answers_in_json(
    small_videos: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def answer(*words: object) -> dict[str, object]:
        assert run(*words, "--json", "--quiet") == 0
        found = json.loads(capfd.readouterr().out)
        assert isinstance(found, dict)
        return found

    catalog, store, model = tmp_path / "catalog.csv", tmp_path / "store", tmp_path / "model"
    assert answer("catalog", small_videos, "--out", catalog)["videos"] == 24
    extraction = answer(
        "extract", catalog, "--out", store, "--frames", 2, "--set=extract.stride=4", "--size", 32,
        "--set=extract.engine=torch", "--workers", 0, "--set=extract.sampling.num_clips=8",
        "--set=extract.sampling.num_times=2",
    )  # fmt: skip
    assert extraction["videos"] == 24
    assert answer("verify", store)["problems"] == {}
    training = answer(
        "pretrain", store, "--out", model, "--epochs", 2,
        "--set=pretrain.clips_per_set=4",
        "--set=pretrain.model.width=32", "--set=pretrain.model.projection_hidden=[16, 16]",
    )  # fmt: skip
    assert training["ssl_split"] == "train"
    shape = answer("embed", store, "--model", model, "--out", tmp_path / "vectors")["shape"]
    assert shape == [24, 2, 1280 + 32]
    records = answer(
        "evaluate", store, "--model", model, "--seeds", 1, "--set=evaluate.training.epochs=2",
        "--set=evaluate.training.num_clips=4",
        "--set=evaluate.mlp_hidden=16", "--set=evaluate.training.learning_rates=[0.003]",
        "--set=evaluate.training.head_learning_rates=[0.03]",
        "--out", tmp_path / "results.json",
    )["scores"]  # fmt: skip
    assert records == json.loads((tmp_path / "results.json").read_text())
    names = [row["name"] for row in answer("backbones")["backbones"]]  # type: ignore[attr-defined]
    assert "efficientnet_lite0" in names


def test_videos_without_labels_are_walked_without_probes(tmp_path: Path) -> None:
    for number in range(3):
        write_video(tmp_path / "videos" / f"{number}.mp4", seed=number)
    assert run("run", tmp_path / "videos", "--out", tmp_path / "out", *QUICK, "--quiet") == 0
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == []
    assert (tmp_path / "out" / "report.html").is_file()


NAMES = ["sp ace.mp4", 'quo"te.mp4', "apo'strophe.mp4", "наука.mp4", "日本 <b>.mp4", "a,b;c.mp4"]


def test_strange_names_and_bad_files_among_good_ones_are_fine(tmp_path: Path) -> None:
    folder = tmp_path / "my videos"
    for number, name in enumerate(NAMES):
        write_video(folder / ("odd " if number % 2 else "même") / name, seed=number, colour=number)
    write_video(folder / "odd " / "one frame.mp4", seconds=1 / 12)
    write_video(folder / "lonely class" / "only.mp4", seed=9)
    (folder / "odd " / "empty.mp4").touch()
    (folder / "odd " / "letter.mp4").write_text("not a video")
    out = tmp_path / "out put"
    assert run("run", folder, "--out", out, *QUICK, "--quiet") == 0
    page = (out / "report.html").read_text()
    assert "empty.mp4" in page
    assert "letter.mp4" in page
    assert "日本 <b>" not in page
    assert len(json.loads((out / "results.json").read_text())) == 11


@pytest.mark.parametrize("labels", [("one", "one"), ("one", "two")])
def test_two_videos_are_enough_for_a_report(tmp_path: Path, labels: tuple[str, str]) -> None:
    for number, label in enumerate(labels):
        write_video(tmp_path / "videos" / label / f"{number}.mp4", seed=number)
    assert run("run", tmp_path / "videos", "--out", tmp_path / "out", *QUICK, "--quiet") == 0
    assert (tmp_path / "out" / "report.html").is_file()


def refused(capfd: pytest.CaptureFixture[str], *words: object) -> str:
    """The one line that a bad call is answered with."""
    assert run(*words) == 2
    lines = capfd.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("clipset: ")
    return lines[0]


def test_bad_input_is_one_clear_line_and_exit_code_2(
    tmp_path: Path, small_videos: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    empty = tmp_path / "empty"
    empty.mkdir()
    table = tmp_path / "table.csv"
    table.write_text("name,kind\na.mp4,x\n")
    busy = tmp_path / "busy"
    busy.mkdir()
    (busy / "thesis.txt").write_text("years of work")
    blocked = tmp_path / "file"
    blocked.touch()
    recipe = tmp_path / "recipe.toml"
    recipe.write_text("[pretrain]\nepoch = 3\n")
    say = lambda *words: refused(capfd, *words)  # noqa: E731
    assert "nowhere" in say("run", tmp_path / "nowhere", "--out", out)
    assert "no videos" in say("run", empty, "--out", tmp_path / "out2")
    assert "path" in say("run", table, "--out", tmp_path / "out3")
    assert "is not empty" in say("run", small_videos, "--out", busy)
    assert "cannot write" in say("run", small_videos, "--out", blocked / "sub")
    assert "did you mean epochs" in say("run", small_videos, "--out", out, "--recipe", recipe)
    assert "pretrain.epochs" in say("run", small_videos, "--out", out, "--set", "nonsense")
    assert "epochs" in say("run", small_videos, "--out", out, "--set", "pretrain.epochs=many")
    assert "not a feature store" in say("pretrain", empty, "--out", out)
    assert "not a feature store" in say("verify", empty)
    assert "not a clipset run" in say("report", empty)
    assert "efficientnet_lite0" in say(
        "extract", small_videos, "--out", out, "--backbone", "efficientnet_lite"
    )
    assert "device" in say("run", small_videos, "--out", out, "--device", "tpu9")
    assert (busy / "thesis.txt").read_text() == "years of work"


def test_a_folder_where_every_file_is_bad_says_so_and_exits_with_1(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos" / "a.mp4").touch()
    words = ("run", tmp_path / "videos", "--out", tmp_path / "out", *QUICK, "--quiet")
    assert run(*words) == 1
    assert capfd.readouterr().err == "clipset: the only video failed; a.mp4: empty file\n"


VERBS = (
    "run", "demo", "catalog", "backbones", "import", "extract", "verify", "repair", "merge",
    "pretrain", "evaluate", "report", "reproduce", "settings",
)  # fmt: skip


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_an_example(verb: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(verb, "--help") == 0
    text = capfd.readouterr().out
    assert f"Example: clipset {verb}" in text
    assert "--json" in text


def test_help_does_not_import_torch() -> None:
    code = "import sys; from clipset.cli import main\n"
    code += "try: main(['pretrain', '--help'])\nexcept SystemExit: pass\n"
    code += "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL).returncode == 0


def test_without_a_terminal_progress_comes_in_lines(small_videos: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "clipset.cli", "extract", str(small_videos), "--out",
         str(tmp_path / "store"), "--frames", "1", "--size", "32",
         "--set=extract.sampling.num_clips=2",
         "--set=extract.engine=torch", "--workers", "0"],
        capture_output=True, text=True, env=os.environ, check=True,
    )  # fmt: skip
    assert "24/24 videos" in done.stderr
    assert "\x1b" not in done.stderr
    assert done.stdout.strip().endswith("store")


def test_a_run_killed_while_it_writes_is_not_taken_for_whole(
    finished: Path, small_videos: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    (copy / "model" / "model.json").unlink()
    (copy / "results.json").unlink()
    assert run("run", small_videos, "--out", copy, *QUICK, "--quiet") == 0
    assert (copy / "model" / "model.json").is_file()
    old, new = (json.loads((each / "results.json").read_text()) for each in (finished, copy))
    assert [record["value"] for record in old] == [record["value"] for record in new]
