"""`clipset predict` and `clipset embed`."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import write_video

from clipset.cli import main
from clipset.representation import read_vectors


def run(*words: object) -> int:
    """The exit code of a verb."""
    try:
        main([str(word) for word in words])
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


@pytest.fixture(scope="module")
def new_video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_video(tmp_path_factory.mktemp("new") / "new.mp4", seed=50, colour=1)


def answer(capfd: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    assert run(*words, "--json", "--quiet", "--workers", 0) == 0
    found = json.loads(capfd.readouterr().out)
    assert isinstance(found, dict)
    return found


def test_predict_prints_a_table_and_one_line_for_a_bad_file(
    run_folder: Path, new_video: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.mp4").write_bytes(b"nothing")
    words = ["predict", new_video, tmp_path / "bad.mp4", "--run", run_folder, "--workers", 0]
    assert run(*words, "--quiet") == 0
    said = capfd.readouterr()
    assert "green" in said.out
    assert "%" in said.out
    assert "correct on 4 of 18 training videos" in said.out
    assert len(said.err.splitlines()) == 1
    assert said.err.startswith(f"clipset: {tmp_path / 'bad.mp4'}: ")


def test_predict_answers_in_json(
    run_folder: Path, new_video: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.mp4"
    found = answer(capfd, "predict", new_video, bad, "--run", run_folder, "--top", 2)
    [video] = found["videos"]
    assert video["video"] == str(new_video)
    assert video["classes"][0]["label"] == "green"
    assert len(video["classes"]) == 2
    assert list(found["failed"]) == [str(bad)]
    assert found["classifier"]["temperature"] > 0


def test_a_timeline_is_written_as_a_table(
    run_folder: Path, new_video: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rows.csv"
    words = ["--run", run_folder, "--window", 0.5, "--step", 0.25, "--csv", out]
    found = answer(capfd, "predict", new_video, *words)
    moments = found["videos"][0]["timeline"]
    assert [moment["start"] for moment in moments] == pytest.approx([0, 0.25, 0.5])
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert [row["start"] for row in rows] == ["", "", "", "0.000", "0.250", "0.500"]
    assert [row["label"] for row in rows[3:]] == [moment["label"] for moment in moments]


def test_the_exit_code_is_1_only_if_no_video_could_be_read(
    run_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.mp4"
    bad.write_bytes(b"nothing")
    for verb in (["predict"], ["embed", "--out", tmp_path / "vectors"]):
        assert run(*verb, bad, "--run", run_folder, "--workers", 0, "--quiet") == 1
        assert "bad.mp4" in capfd.readouterr().err
    assert not (tmp_path / "vectors").exists()


def test_embed_writes_vectors_by_a_run_or_by_a_backbone(
    run_folder: Path, new_video: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "vectors"
    words = ["--run", run_folder, "--out", out, "--parts", "set"]
    found = answer(capfd, "embed", new_video, *words)
    table = read_vectors(out)
    assert list(table.vectors.shape) == found["shape"] == [1, 4, 32]
    assert table.video_ids == (str(new_video),)
    np.testing.assert_allclose(found["videos"][str(new_video)], table.pooled[0], rtol=1e-6)
    words = ["--backbone", "efficientnet_lite0", "--out", tmp_path / "bare"]
    assert answer(capfd, "embed", new_video, *words)["shape"] == [1, 8, 1280]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["embed", "a.mp4"], "embed needs one feature store, or videos with --run or --backbone"),
        (["predict", "a.mp4", "--run", "nowhere"], "nowhere is not a clipset run"),
        (["predict", "a.mp4", "--run", "RUN", "--window", "-1"], "must be more than 0 s"),
        (["predict", "--run", "RUN"], "no video is given"),
        (["embed", "a.mp4", "--backbone", "efficientnet_lite9"], "did you mean"),
    ],
)
def test_a_wrong_command_is_one_line(
    words: list[str], said: str, run_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(*(run_folder if word == "RUN" else word for word in words)) == 2
    err = capfd.readouterr().err
    assert said in err
    assert len(err.splitlines()) == 1
