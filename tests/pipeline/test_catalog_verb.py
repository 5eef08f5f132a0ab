"""The verb `catalog`: from folders and official lists to one table, and what is wrong with it."""

import json
from pathlib import Path

import pytest
from tests.conftest import write_video

from clipset.cli import main
from clipset.data.catalog import read_catalog_table


def run(*words: object) -> int:
    try:
        main([str(word) for word in words])
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def test_official_lists_become_a_catalog(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    videos, lists = tmp_path / "UCF-101", tmp_path / "lists"
    lists.mkdir()
    for name in ("ApplyLipstick/v_ApplyLipstick_g08_c01", "Archery/v_Archery_g01_c01"):
        write_video(videos / f"{name}.mp4")
    (lists / "trainlist01.txt").write_text("ApplyLipstick/v_ApplyLipstick_g08_c01.avi 1\n")
    (lists / "testlist01.txt").write_text("Archery/v_Archery_g01_c01.avi\n")
    out = tmp_path / "ucf.csv"
    words = ("catalog", videos, "--dataset", "ucf101", "--lists", lists, "--out", out, "--json")
    assert run(*words) == 0
    assert json.loads(capfd.readouterr().out)["splits"] == {"test": 1, "train": 1}
    assert read_catalog_table(out).classes == ("ApplyLipstick", "Archery")


def test_a_dataset_without_its_lists_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run("catalog", tmp_path, "--dataset", "hmdb51") == 2
    assert "--lists" in capfd.readouterr().err


def test_check_says_what_is_wrong_before_hours_are_spent(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_video(tmp_path / "good.mp4")
    assert run("catalog", "check", tmp_path, "--quiet") == 0
    (tmp_path / "empty.mp4").touch()
    capfd.readouterr()
    assert run("catalog", "check", tmp_path, "--json", "--quiet") == 1
    assert list(json.loads(capfd.readouterr().out)["problems"]) == ["empty.mp4"]


def test_a_catalog_that_was_edited_is_replaced_only_with_force(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos" / "a.mp4").touch()
    out = tmp_path / "catalog.csv"
    words = ("catalog", tmp_path / "videos", "--out", out)
    assert run(*words) == 0
    written = out.read_text()
    assert run(*words) == 0  # it is the same
    out.write_text(written + "\n")
    assert run(*words) == 2
    assert f"{out} exists and differs; use another name, or --force" in capfd.readouterr().err
    assert out.read_text() == written + "\n"
    assert run(*words, "--force") == 0
    assert out.read_text() == written
