"""Checking a catalog: every problem is named before extraction begins."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from tests.decoding.makers import make_video, read_numbers

from clipset.data.catalog import read_catalog
from clipset.decoding.reader import find_problem, open_video


def test_every_problem_is_named_and_good_videos_are_not(tmp_path: Path) -> None:
    make_video(tmp_path / "good.mp4")
    path = make_video(tmp_path / "half.avi", codec="mpeg4")
    content = bytearray(path.read_bytes())
    place = content.index(b"strh") + 40
    content[place : place + 4] = struct.pack("<I", 50)
    path.write_bytes(content)
    (tmp_path / "empty.mp4").touch()
    (tmp_path / "gone.mp4").symlink_to("nowhere")
    (tmp_path / "text.mov").write_text("text")
    assert {video.id: find_problem(video.path) for video in read_catalog(tmp_path)} == {
        "empty.mp4": "empty file",
        "gone.mp4": "no such file",
        "good.mp4": None,
        "half.avi": "holds 24 of 50 frames",
        "text.mov": "not a video file (invalid data)",
    }


def test_a_good_video_has_no_problem(tmp_path: Path) -> None:
    path = make_video(tmp_path / "good.mp4")
    assert find_problem(path, end=0.3) is None


def test_nothing_after_the_end_of_a_video_is_shown(tmp_path: Path) -> None:
    path = make_video(tmp_path / "a.mp4")
    with open_video(path, end=0.4) as video:
        assert read_numbers(video) == list(range(10))
        assert video.info.duration == pytest.approx(0.4)
        assert video.frames_in_file == 24
    with open_video(path, end=0.001) as video:
        assert read_numbers(video) == [0]
    with open_video(path, end=99.0) as video:
        assert read_numbers(video) == list(range(24))
        assert video.info.duration == pytest.approx(24 / 25)
