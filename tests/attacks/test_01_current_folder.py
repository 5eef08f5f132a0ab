"""A module in the current folder, or in the script's, is never imported in place of a real one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests.attacks.conftest import COMMAND, TINY, Clipset
from tests.attacks.hostile import THIRD, hostile_folder, imported
from tests.conftest import write_video

SMALL = (
    "--frames", "2", "--size", "32", "--set=extract.engine=torch",
    "--set=extract.sampling.num_clips=4",
    "--set=extract.sampling.num_times=2", "--set=extract.sampling.num_crops=1", "--quiet",
)  # fmt: skip
STANDARD = ("json", "random", "logging", "runpy", "typing", "subprocess", "sqlite3", "csv")
OURS = ("clipset", "sitecustomize", "usercustomize")
VERBS = """
import sys
from clipset.cli import main

for line in json_lines:
    try:
        main(line)
    except SystemExit as end:
        if end.code:
            sys.exit(f"{line}: {end.code}")
"""


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "imported"


@pytest.fixture
def hostile(tmp_path: Path, marker: Path) -> Path:
    """The current folder of an attack: it holds everything that clipset imports."""
    return hostile_folder(tmp_path / "cwd", THIRD + STANDARD + OURS, marker)


def test_the_workers_of_an_extraction_import_nothing_from_the_current_folder(
    clipset: Clipset, hostile: Path, marker: Path
) -> None:
    write_video(hostile / "videos" / "a.mp4", seconds=0.7)
    words = ("videos", "--out", "store", "--workers", "1", *SMALL)
    done = clipset("extract", *words, cwd=hostile)
    assert imported(marker) == ""
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 video, ")
    assert ", 0 failed" in done.stdout


@pytest.mark.parametrize("way", ["python -m", "an empty entry of PYTHONPATH", "PYTHONPATH=."])
def test_the_command_imports_nothing_from_the_current_folder(
    way: str, clipset: Clipset, tmp_path: Path, marker: Path
) -> None:
    """What Python itself imports before clipset starts is out of reach of any program."""
    cwd = hostile_folder(tmp_path / "cwd", THIRD, marker)
    command = (sys.executable, "-m", "clipset.cli") if way == "python -m" else (COMMAND,)
    folders = {"python -m": "", "PYTHONPATH=.": "."}.get(way, f"{tmp_path}{os.pathsep}")
    env = {"PYTHONPATH": folders}
    done = clipset("reproduce", "--list", cwd=cwd, command=command, env=env)
    assert imported(marker) == ""
    assert done.returncode == 0, done.stderr
    assert "ucf101" in done.stdout


def test_children_see_the_modules_of_their_parent_and_the_same_clipset(tmp_path: Path) -> None:
    """An absolute folder of PYTHONPATH counts; relative ones and the script's folder do not."""
    for name in ("named", "script", "cwd"):
        (tmp_path / name).mkdir()
    script = tmp_path / "script" / "program.py"
    script.write_text(
        "import json, sys\n"
        "import clipset\n"
        "from clipset.process.isolation import python_command\n"
        "sys.path.insert(0, '')\n"
        "path = json.loads(python_command('clipset.features.worker')[3])\n"
        "print(json.dumps([sys.path, path]))\n"
    )
    folders = [str(tmp_path / "named"), ".", str(Path(__file__).parents[2] / "src")]
    done = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path / "cwd",
        env=os.environ | {"PYTHONPATH": os.pathsep.join(folders)},
        capture_output=True,
        text=True,
        check=True,
    )
    here, child = json.loads(done.stdout)
    dropped = {"", str(tmp_path / "script"), str(tmp_path / "cwd")}
    assert dropped <= set(here)
    assert child == [entry for entry in here if entry not in dropped]


def test_a_module_beside_a_named_backbone_does_not_shadow_an_installed_one(
    clipset: Clipset, tmp_path: Path, marker: Path
) -> None:
    cwd = hostile_folder(tmp_path / "cwd", ("transformers", "h5py", "psutil"), marker)
    (cwd / "helper.py").write_text("WIDTH = 3\n")
    (cwd / "mine.py").write_text(
        "import h5py, helper\n"
        "from torch import nn\n"
        "class Mean(nn.Module):\n"
        "    def forward(self, clips):\n"
        "        return clips.mean((1, 3, 4))[:, : helper.WIDTH]\n"
        "def make():\n"
        "    return Mean()\n"
    )
    done = clipset("backbones", "check", "mine.py:make", "--size", "8", "--json", cwd=cwd)
    assert imported(marker) == ""
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["spec"]["dim"] == 3


@pytest.mark.slow
def test_no_verb_imports_anything_from_the_current_folder(
    videos: Path, hostile: Path, tmp_path: Path, marker: Path
) -> None:
    """One process that does all verbs, as the script `clipset` does; its folder is hostile, too."""
    for number in range(4):
        features = np.random.default_rng(number).normal(size=(4, 8)).astype(np.float32)
        (tmp_path / "features" / str(number % 2)).mkdir(parents=True, exist_ok=True)
        np.save(tmp_path / "features" / str(number % 2) / f"{number}.npy", features)
    video = videos / "red" / "0.mp4"
    tiny = [*TINY, "--quiet"]
    lines: list[list[object]] = [
        ["run", videos, "--out", "run", *tiny],
        ["catalog", videos, "--out", "catalog.csv"],
        ["backbones"],
        ["backbones", "check", "efficientnet_lite0", "--size", "32", "--frames", "2"],
        ["estimate", "catalog.csv", "--set=extract.size=32", *SMALL[4:]],
        ["extract", "catalog.csv", "--out", "store", *SMALL],
        ["verify", "store"],
        ["repair", "store", "--quiet"],
        ["merge", "store", "--out", "merged"],
        ["import", tmp_path / "features", "--out", "imported"],
        ["pretrain", "store", "--out", "model", "--recipe", "recipe.toml", "--quiet"],
        ["embed", "store", "--model", "model", "--out", "vectors"],
        ["evaluate", "store", "--model", "model", "--recipe", "recipe.toml", "--out", "r.json"],
        ["predict", video, "--run", "run", "--quiet"],
        ["embed", video, "--run", "run", "--out", "embedded", "--quiet"],
        ["report", "run"],
        ["reproduce", "--list"],
    ]
    (hostile / "recipe.toml").write_text(
        "[pretrain]\nepochs = 1\nclips_per_set = 2\n"
        "model = {width = 32, num_layers = 1, projection_hidden = [16, 16], projection_dim = 8}\n"
        "[evaluate]\nprobes = ['knn']\nnum_seeds = 1\n"
    )
    script = hostile_folder(tmp_path / "bin", THIRD, marker) / "clipset"
    words = [[str(word) for word in line] for line in lines]
    script.write_text(VERBS.replace("json_lines", repr(words)))
    done = subprocess.run(
        [sys.executable, script],
        cwd=hostile,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert imported(marker) == ""
    assert done.returncode == 0, done.stderr
    manifest = json.loads((hostile / "store" / "manifest.json").read_text())
    assert manifest["backbone"]["name"] == "efficientnet_lite0"


def listen_to_ctrl_c() -> None:
    """Also if the tests run in the background, where a shell lets processes ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.slow
def test_the_processes_that_render_the_demo_import_nothing_from_the_current_folder(
    hostile: Path, tmp_path: Path, marker: Path
) -> None:
    process = subprocess.Popen(
        [COMMAND, "demo", "--videos", "16", "--out", tmp_path / "demo", "--quiet"],
        cwd=hostile,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=listen_to_ctrl_c,
    )
    while process.poll() is None and not (tmp_path / "demo" / "run" / "run.json").exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)  # the rest of the demo is that of `run`
    _, said = process.communicate(timeout=60)
    assert imported(marker) == ""
    assert process.returncode == 130, said
    assert len(list((tmp_path / "demo" / "videos").rglob("*.mp4"))) == 16


@pytest.mark.slow
@pytest.mark.parametrize("way", [["--no-python", str(COMMAND)], ["-m", "clipset.cli"]])
def test_the_ranks_of_torchrun_import_nothing_from_the_current_folder(
    way: list[str], clipset: Clipset, session_run: Path, tmp_path: Path, marker: Path
) -> None:
    names = THIRD + STANDARD + OURS if way[0] == "--no-python" else THIRD
    cwd = hostile_folder(tmp_path / "cwd", names, marker)
    launcher = "from torch.distributed.run import main; main()"
    start = (
        sys.executable,
        "-P",
        "-c",
        launcher,
        "--standalone",
        "--nproc-per-node",
        "2",
        *way,
    )
    tiny = (
        "--epochs", "1", "--set=pretrain.clips_per_set=2",
        "--set=pretrain.model.width=32",
        "--set=pretrain.model.num_layers=1", "--device", "cpu", "--quiet",
    )  # fmt: skip
    words = ("pretrain", session_run / "store", "--out", tmp_path / "model", *tiny)
    done = clipset(*words, cwd=cwd, command=start)
    assert imported(marker) == ""
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "model" / "model.safetensors").is_file()
