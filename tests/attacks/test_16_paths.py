"""Paths that cannot be: folders that may not be read, NUL characters, names over 255 bytes."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.attacks.conftest import COMMAND
from tests.conftest import write_video
from tests.miniatures import run, write_backbone

from clipset.data.catalog import read_catalog_table
from clipset.errors import ConfigError
from clipset.inference.clips import list_new_videos
from clipset.recipe import read_recipe

LONG = "x" * 300
SMALL = ("--frames", 2, "--size", 16, "--workers", 0, "--set=extract.sampling.num_clips=4")
OVERRIDE, READ_SEARCH = 1, 2  # the capabilities by which root reads anything
PR_CAPBSET_DROP = 24


def drop_capabilities() -> None:
    """Let permission bits hold for root, too, in the process that is about to start."""
    libc = ctypes.CDLL(None)
    for capability in (OVERRIDE, READ_SEARCH):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="drops capabilities of Linux")
def test_a_folder_that_may_not_be_read_is_skipped_and_named(tmp_path: Path) -> None:
    write_video(tmp_path / "videos" / "a" / "1.mp4", seconds=0.3)
    np.save(tmp_path / "videos" / "a" / "1.npy", np.zeros((2, 3), np.float32))
    closed = tmp_path / "videos" / "b"
    closed.mkdir()
    closed.chmod(0)
    if not subprocess.run(
        ["ls", closed], capture_output=True, preexec_fn=drop_capabilities
    ).returncode:
        pytest.skip("this process cannot drop capabilities")
    for words in (("catalog", "videos"), ("import", "videos", "--out", "store")):
        done = subprocess.run(
            [COMMAND, *words], cwd=tmp_path, capture_output=True, text=True,
            preexec_fn=drop_capabilities,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        said = [line for line in done.stderr.splitlines() if "skipped" in line]
        assert len(said) == 1
        assert said[0].startswith("skipped: cannot read the folder ")
        assert said[0].endswith("videos/b: permission denied")
    closed.chmod(0o700)


def test_a_path_in_a_table_that_cannot_be_fails_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_video(tmp_path / "good.mp4", seconds=0.3)
    (tmp_path / "t.csv").write_text(f"path,label\n{LONG}.mp4,a\nb\0d.mp4,b\ngood.mp4,b\n")
    assert run("catalog", "check", tmp_path / "t.csv", "--quiet") == 1
    out = capfd.readouterr().out
    assert f"{LONG}.mp4: file name too long" in out
    assert "b\\x00d.mp4: its path holds a NUL character" in out
    assert "no split: 1 of 3 videos found" in out
    store = ("--out", tmp_path / "store", "--backbone", write_backbone(tmp_path))
    assert run("extract", tmp_path / "t.csv", *store, *SMALL) == 0
    out, err = capfd.readouterr()
    assert "1 video, " in out
    assert "2 failed" in out
    assert "skipped b\\x00d.mp4: its path holds a NUL character" in err.splitlines()
    assert run("verify", tmp_path / "store") == 0


def test_a_video_argument_that_is_too_long_fails_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    good = write_video(tmp_path / "good.mp4", seconds=0.3)
    [first, second] = list_new_videos([f"{LONG}.mp4", good])
    assert (first.id, second.path) == (f"{LONG}.mp4", good)
    words = ("--backbone", write_backbone(tmp_path), "--workers", 0, "--out", tmp_path / "v")
    assert run("embed", f"{LONG}.mp4", good, *words) == 0
    assert f"clipset: {LONG}.mp4: file name too long" in capfd.readouterr().err


def test_a_nul_character_elsewhere_in_a_table_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.csv").write_text("path,label\na.mp4,a\nb.mp4,b\0\n")
    (tmp_path / "u.csv").write_bytes("path,label\na.mp4,a\n".encode("utf-16-le"))
    (tmp_path / "v.csv").write_text("path,unused\na.mp4,\0\n")
    out = ("--out", tmp_path / "out.csv")
    assert run("catalog", tmp_path / "t.csv", *out) == 2
    assert "row 3 of" in (said := capfd.readouterr().err)
    assert "has a NUL character in its label" in said
    assert run("catalog", tmp_path / "u.csv", *out) == 2
    assert "has NUL characters; save the table as UTF-8 text" in capfd.readouterr().err
    assert len(read_catalog_table(tmp_path / "v.csv")) == 1


def test_a_nul_character_in_an_option_or_a_setting_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run("catalog", f"{tmp_path}/a\0b") == 2
    assert "an argument contains a NUL character" in capfd.readouterr().err
    with pytest.raises(ConfigError, match=r"data: lists contains a NUL character, got 'a\\x00'"):
        read_recipe(None, [r'data.lists="a\u0000"'])
    (tmp_path / "r.toml").write_text('[data]\nvalidation_groups = ["a\\u0000"]\n')
    with pytest.raises(ConfigError, match="validation_groups contains a NUL character"):
        read_recipe(tmp_path / "r.toml")


@pytest.mark.parametrize(
    "words",
    [
        ("catalog", LONG),
        ("catalog", ".", "--out", LONG),
        ("run", LONG, "--out", "run"),
        ("run", ".", "--out", "run", "--recipe", LONG),
        ("verify", LONG),
        ("merge", LONG, "--out", "m"),
        ("import", LONG, "--out", "m"),
        ("pretrain", LONG, "--out", "m"),
        ("embed", LONG, "--out", "m"),
        ("evaluate", LONG),
        ("predict", "a.mp4", "--run", LONG),
        ("report", LONG),
    ],
    ids=" ".join,
)
def test_a_name_that_is_too_long_is_one_line(
    words: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write_video(tmp_path / "a.mp4", seconds=0.3)
    assert run(*words) == 2
    said = capfd.readouterr().err
    assert said.startswith("clipset: ")
    assert said.count("\n") == 1


def test_a_name_of_254_bytes_is_written(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_video(tmp_path / "videos" / "a.mp4", seconds=0.3)
    out = tmp_path / f"{'ж' * 125}.csv"
    assert run("catalog", tmp_path / "videos", "--out", out) == 0, capfd.readouterr().err
    assert len(read_catalog_table(out)) == 1
