"""A video of which much is missing is named, and one of which most is missing has failed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.attacks.conftest import write_videos
from tests.decoding.makers import claim_frames, make_video, packets_of
from tests.miniatures import TINY, run, write_backbone

from clipset.decoding.damage import describe_damage
from clipset.features.store import FeatureStore

INTRA = {"x264-params": "keyint=1"}
FAST = ('--set=evaluate.probes=["knn"]',)
EXTRACT = ("--frames", 2, "--size", 16, "--set=extract.engine=torch", "--workers", 0)


def lose_frames(path: Path, first: int, last: int) -> Path:
    """A video of which some frames do not decode."""
    make_video(path, options=INTRA, noise=True)
    content = bytearray(path.read_bytes())
    for packet in packets_of(path)[first:last]:
        content[packet.pos : packet.pos + packet.size] = bytes(packet.size)
    path.write_bytes(content)
    return path


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight good videos, and some of which a part is missing."""
    folder = write_videos(tmp_path_factory.mktemp("damaged") / "videos")
    lose_frames(folder / "red" / "third.mp4", 8, 16)
    lose_frames(folder / "red" / "most.mp4", 2, 22)
    claim_frames(make_video(folder / "red" / "short.avi", codec="mpeg4"), 40)
    (folder / "red" / "empty.mp4").touch()
    return folder


def test_extract_names_damaged_videos_and_most_of_the_frames_missing_is_a_failure(
    damaged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, backbone = tmp_path / "store", write_backbone(tmp_path)
    words = ("extract", damaged, "--out", out, "--backbone", backbone, *EXTRACT, "--json")
    assert run(*words) == 0
    found = capsys.readouterr()
    result = json.loads(found.out)
    reason = result["failed"]["red/most.mp4"]
    assert set(result["failed"]) == {"red/most.mp4", "red/empty.mp4"}
    assert reason.endswith("needed frames did not decode and were replaced")
    assert f"skipped red/most.mp4: {reason}" in found.err
    assert result["damaged"]["red/short.avi"] == "holds 24 of 40 frames"
    assert set(result["damaged"]) == {"red/third.mp4", "red/short.avi"}
    for name, damage in result["damaged"].items():
        assert found.err.count(f"damaged {name}: {damage}") == 1
    [third] = [entry for entry in FeatureStore(out).entries if entry.id == "red/third.mp4"]
    assert third.frames_missing
    assert third.frames_needed
    assert 0 < third.frames_missing <= third.frames_needed / 2
    assert run(*words) == 0
    assert json.loads(capsys.readouterr().out)["damaged"] == result["damaged"]


def test_check_and_extract_agree_on_what_is_worth_a_word() -> None:
    assert describe_damage(frames_needed=100, frames_missing=5) is None
    assert describe_damage(frames_needed=100, frames_missing=6) is not None
    assert describe_damage(frames_found=95, frames_expected=100) is None
    assert describe_damage(frames_found=94, frames_expected=100) == "holds 94 of 100 frames"


def test_the_report_and_the_summary_list_damaged_videos(
    damaged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, backbone = tmp_path / "run", f"--set=extract.backbone={write_backbone(tmp_path)}"
    assert run("run", damaged, "--out", out, *TINY, *FAST, backbone) == 0
    assert "2 damaged videos were used" in capsys.readouterr().out
    page = (out / "report.html").read_text()
    section = page[page.index('<section id="damaged">') : page.index('<section id="facts">')]
    assert '<th scope="row">red/short.avi</th>' in section
    assert "<td>24 of 40</td>" in section
    assert '<th scope="row">red/third.mp4</th>' in section
    assert "red/most.mp4" not in section
    assert '<a href="#damaged">Damaged <span class="badge">2</span></a>' in page


@pytest.mark.parametrize("verb", ["extract", "run"])
def test_a_verb_whose_videos_all_failed_exits_with_1_and_says_the_first_reason(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "videos").mkdir()
    lose_frames(tmp_path / "videos" / "a.mp4", 2, 22)
    (tmp_path / "videos" / "b.mp4").touch()
    backbone = write_backbone(tmp_path)
    settings = ("--backbone", backbone, *EXTRACT)
    if verb == "run":
        settings = (f"--set=extract.backbone={backbone}", *TINY)
    for _ in range(2):  # also when all of them failed before
        assert run(verb, tmp_path / "videos", "--out", tmp_path / "out", *settings) == 1
        lines = capsys.readouterr().err.splitlines()
        [line] = [line for line in lines if line.startswith("clipset: ")]
        assert line.startswith("clipset: all 2 videos failed; a.mp4: ")
        assert line.endswith("needed frames did not decode and were replaced")
