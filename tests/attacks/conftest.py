"""Attacks are real processes: `clipset` runs the installed command, `finished_run` is its work."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import pytest
from tests.conftest import write_video

COMMAND = Path(sys.executable).with_name("clipset")
TINY = tuple(
    f"--set={setting}"
    for setting in (
        "extract.frames=2", "extract.size=32", "extract.engine=torch",
        "extract.sampling={num_clips = 4, num_times = 2, num_crops = 1}",
        "pretrain.epochs=2", "pretrain.clips_per_set=2",
        "pretrain.model={width = 32, num_layers = 1, projection_dim = 8}",
        "pretrain.model.projection_hidden=[16, 16]",
        "evaluate.num_seeds=1", "evaluate.mlp_hidden=16",
        "evaluate.probes=[\"knn\", \"scale_knn\", \"linear\", \"scale_linear\"]",
        "evaluate.training={epochs = 2, num_clips = 2, learning_rates = [0.003]}",
        "evaluate.training.head_learning_rates=[0.03]",
    )
)  # fmt: skip
"""Settings of `clipset run` under which eight videos take seconds."""


class Clipset(Protocol):
    """Runs the installed command in a folder of its own and returns how it ended."""

    def __call__(
        self,
        *words: object,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        command: Sequence[object] = (COMMAND,),
        timeout: float = 120.0,
    ) -> subprocess.CompletedProcess[str]: ...


@pytest.fixture
def clipset(tmp_path: Path) -> Clipset:
    def run(
        *words: object,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        command: Sequence[object] = (COMMAND,),
        timeout: float = 120.0,
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(word) for word in (*command, *words)],
            cwd=cwd or tmp_path,
            env=os.environ | {"OMP_NUM_THREADS": "1"} | dict(env or {}),
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=timeout,
        )

    return run


def write_videos(folder: Path, *, per_class: int = 4, seed: int = 0) -> Path:
    """Two classes of tiny videos, `red/0.mp4` and so on, in a folder of their own."""
    for number in range(2 * per_class):
        label = ("red", "green")[number % 2]
        path = folder / label / f"{number // 2}.mp4"
        write_video(path, seed=seed + number, seconds=0.7, colour=number % 2)
    return folder


@pytest.fixture(scope="session")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight tiny videos of two classes; not to be changed."""
    return write_videos(tmp_path_factory.mktemp("attacked") / "videos")


@pytest.fixture(scope="session")
def session_run(videos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run over `videos`, made once; not to be changed."""
    out = tmp_path_factory.mktemp("session_run") / "run"
    done = subprocess.run(
        [COMMAND, "run", videos, "--out", out, *TINY, "--quiet"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture
def finished_run(session_run: Path, tmp_path: Path) -> Path:
    """A copy of the finished run, to be attacked."""
    return Path(shutil.copytree(session_run, tmp_path / "run", symlinks=True))


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    """The one line on standard error with which a refused command ends; never a traceback."""
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("clipset: ")]
    assert len(lines) == 1, done.stderr
    return lines[0]


def scores(run: Path) -> dict[str, float]:
    """The value of each row of a run's table."""
    records = json.loads((run / "results.json").read_text())
    return {f"{record['features']} {record['probe']}": record["value"] for record in records}


def tree_digest(folder: Path) -> dict[str, bytes]:
    """Every file under a folder with its content, to see whether something was touched."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
