"""The guide to using a run is followed to the letter, and it works."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from tests.conftest import write_video

from clipset.cli import main

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "inference.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", GUIDE, re.M | re.S)


@pytest.fixture
def place(
    run_folder: Path, small_videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A folder with everything that the guide names."""
    shutil.copytree(run_folder, tmp_path / "DIR")
    shutil.copytree(small_videos / "red", tmp_path / "folder")
    write_video(tmp_path / "new.mp4", seed=7, colour=1)
    write_video(tmp_path / "film.mp4", seed=8, colour=2, seconds=5.0)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_the_commands_of_the_guide_run(place: Path) -> None:
    commands = [line for block in blocks("sh") for line in block.splitlines() if line]
    assert len(commands) == 7
    for line in commands:
        words = shlex.split(line, comments=True)
        assert words[0] == "clipset"
        with pytest.raises(SystemExit) as stop:
            main([*words[1:], "--quiet", "--workers", "0"])
        assert not stop.value.code, line
    assert (place / "timeline.csv").read_text().startswith("video,start,end,label,probability\n")
    assert (place / "sets" / "vectors.safetensors").is_file()


def test_the_python_of_the_guide_runs(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (place / "DIR").is_dir()
    monkeypatch.setattr("clipset.features.config.ExtractConfig.num_workers", 0)
    for block in blocks("python"):
        exec(compile(block, "inference.md", "exec"), {})
    said = capsys.readouterr().out
    assert "new.mp4 green 0." in said
    assert "film.mp4 blue 0." in said
