"""Timestamps may lie: durations, windows and memory are bounded by the frames in the file."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from fractions import Fraction
from itertools import islice
from pathlib import Path

import av
import numpy as np
import pytest
from tests.attacks.conftest import COMMAND, Clipset
from tests.conftest import write_video
from tests.decoding.makers import make_video, read_numbers
from tests.miniatures import TINY as TINTS
from tests.miniatures import run, write_backbone

from clipset.clips.sampling import MIN_WINDOW_LIMIT, WindowGrid
from clipset.data.catalog import Video
from clipset.decoding.reader import open_video
from clipset.inference.clips import VideoClips
from clipset.inference.run import count_windows

NO_B_FRAMES = {"x264-params": "bframes=0"}
Stamp = Callable[[int, int], int]


def restamp(source: Path, out: Path, stamp: Stamp, last_duration: int | None = None) -> Path:
    """The same packets with other timestamps: `stamp` gets the number of a packet and its pts."""
    with av.open(str(source)) as given, av.open(str(out), "w") as written:
        stream = written.add_stream_from_template(given.streams.video[0])
        packets = [packet for packet in given.demux(video=0) if packet.dts is not None]
        for number, packet in enumerate(packets):
            packet.stream = stream
            packet.pts = packet.dts = stamp(number, packet.pts)
            if last_duration is not None and number + 1 == len(packets):
                packet.duration = last_duration
            written.mux(packet)
    return out


def flv_with_long_times(path: Path, times: list[int]) -> Path:
    """Set the clock (milliseconds, 32 bits) of each frame of an FLV file."""
    content, place, number = bytearray(path.read_bytes()), 13, 0
    while place < len(content):
        size = int.from_bytes(content[place + 1 : place + 4], "big")
        if content[place] == 9 and number < len(times):
            stamp = times[number].to_bytes(4, "big")
            content[place + 4 : place + 8] = stamp[1:] + stamp[:1]
            number += 1
        place += 11 + size + 4
    path.write_bytes(content)
    return path


@pytest.fixture(scope="module")
def liars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Videos of two seconds or less whose timestamps claim hours or years."""
    folder = tmp_path_factory.mktemp("liars")
    two_seconds = make_video(folder / "good.mp4", count=48, options=NO_B_FRAMES)
    two_frames = make_video(folder / "two.mp4", count=2, size=(16, 16), options=NO_B_FRAMES)
    liars = folder / "videos"
    liars.mkdir()
    second = 12_800

    def last_late(seconds: int) -> Stamp:
        return lambda number, pts: pts + (seconds * second if number == 47 else 0)

    restamp(two_seconds, liars / "last frame.mp4", last_late(80_000))
    restamp(two_seconds, liars / "last frame.mkv", last_late(10**6))
    restamp(two_seconds, liars / "last duration.mp4", lambda _, pts: pts, 2**31 - 1)
    restamp(two_seconds, liars / "years apart.mkv", lambda number, _: number * 10**7 * second)
    restamp(two_frames, liars / "two.mkv", lambda number, _: number * 5 * 10**8 * second)
    middle = make_video(liars / "middle.flv", codec="flv", options={"g": "1"}, count=48)
    flv_with_long_times(middle, [40 * n + (n == 20) * 10**9 for n in range(48)])
    return liars


def test_a_duration_is_bounded_by_the_frames_in_the_file(liars: Path) -> None:
    for path in sorted(liars.iterdir()):
        with open_video(path) as video:
            times = video.info.frame_times
            assert video.info.duration < 4, path.name
            assert video.info.claimed_duration > 70_000, path.name
            assert (np.diff(times) > 0).all()
            assert read_numbers(video) == list(range(len(times)))


@pytest.mark.parametrize(
    "times",
    [
        [number * 10_000 for number in range(8)],  # a screen recording
        [number * 60_000 for number in range(8)],  # surveillance
        [0, 40, 80, 600_000, 600_040, 600_080],  # a pause of ten minutes
        [0, 1_000, 7_200_000],  # slides, one of them for two hours
        [0, 18_000_000],  # two pictures, five hours apart
    ],
)
def test_honest_videos_keep_their_times(times: list[int], tmp_path: Path) -> None:
    path = make_video(tmp_path / "honest.mkv", count=len(times), times=times, options=NO_B_FRAMES)
    with open_video(path) as video:
        assert video.info.claimed_duration is None
        assert video.info.frame_times == pytest.approx(np.array(times) / 1000)
        assert video.info.duration >= times[-1] / 1000


def test_a_still_picture_may_last_for_hours(tmp_path: Path) -> None:
    path = tmp_path / "still.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        picture = np.full((48, 64, 3), 90, dtype=np.uint8)
        packets = list(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        for packet in packets + list(stream.encode()):
            packet.duration = int(7200 / (packet.time_base or Fraction(1, 25)))
            container.mux(packet)
    with open_video(path) as video:
        assert video.info.claimed_duration is None
        assert video.info.duration == pytest.approx(7200)


def test_windows_never_outnumber_frames_and_come_one_at_a_time() -> None:
    grid = WindowGrid(1.0, 0.5)
    assert grid.bounded(100.0, 2500) is grid
    assert grid.bounded(1e9, 2).count(1e9) == MIN_WINDOW_LIMIT
    assert grid.bounded(3600.0, 90_000) is grid
    assert WindowGrid(1.0, 1e-12).bounded(3600.0, 90_000).count(3600.0) <= 90_000
    starts = [window.start for window in islice(grid.windows(1e15), 3)]
    assert starts == [0.0, 0.5, 1.0]
    coarse = list(grid.bounded(1e9, 2).windows(1e9))
    assert (len(coarse), coarse[-1].end) == (MIN_WINDOW_LIMIT, 1e9)


def test_a_timeline_with_fewer_windows_than_requested_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    video = VideoClips(video=Video(id="a.mp4", path=Path("a.mp4")), duration=3600.0, frames=60)
    assert count_windows(video, WindowGrid(1.0, 0.01)) == MIN_WINDOW_LIMIT
    assert "a.mp4: 1,000 windows instead of 359,901: it has 60 frames" in capsys.readouterr().err


def test_check_and_extract_name_a_duration_that_cannot_be_true(
    liars: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("catalog", "check", liars, "--quiet") == 1
    checked = capsys.readouterr().out
    store, backbone = tmp_path / "store", write_backbone(tmp_path)
    settings = ("--frames", 2, "--size", 16, "--set=extract.engine=torch", "--workers", 0)
    assert run("extract", liars, "--out", store, "--backbone", backbone, *settings) == 0
    extracted = capsys.readouterr().err
    for path in liars.iterdir():
        assert f"{path.name}: its timestamps claim " in checked
        assert extracted.count(f"damaged {path.name}: its timestamps claim ") == 1
    claim = "last frame.mp4: its timestamps claim 80,001.9 s, which cannot be true; its frames last"
    assert f"{claim} 1.9 s" in checked


BACKBONE = """
import torch
from torch import nn

class Tints(nn.Module):
    def forward(self, clips):
        tints = clips.mean(dim=(1, 3, 4))
        return torch.where(tints.min() > 2.0, torch.nan, tints)  # white breaks it

def make():
    return Tints()
"""


def write_white(path: Path) -> Path:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=12)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for _ in range(6):
            picture = np.full((48, 64, 3), 255, dtype=np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    return path


def test_one_bad_file_never_loses_the_predictions_of_others(
    liars: Path, videos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.py").write_text(BACKBONE)
    own = f"--set=extract.backbone={tmp_path / 'own.py'}:make"
    folder, rows = tmp_path / "run", ('--set=evaluate.probes=["knn"]',)
    assert run("run", videos, "--out", folder, *TINTS, own, *rows, "--quiet") == 0
    capsys.readouterr()
    white = write_white(tmp_path / "white.mp4")
    good = write_video(tmp_path / "good.mp4", seconds=2.0)
    files = (white, liars / "two.mkv", liars / "last frame.mp4", good)
    named = ("--run", folder, "--backbone", f"{tmp_path / 'own.py'}:make")
    assert run("predict", *files, *named, "--timeline", "--workers", 0, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert list(result["failed"]) == [str(white)]
    assert "not finite" in result["failed"][str(white)]
    assert [video["video"] for video in result["videos"]] == [str(file) for file in files[1:]]
    timelines = [video["timeline"] for video in result["videos"]]
    assert [len(timeline) for timeline in timelines] == [1, 5, 5]
    assert timelines[2][-1]["end"] == pytest.approx(2.0, abs=0.01)


@pytest.mark.slow
def test_predict_stays_small_on_a_tiny_file_that_claims_years(
    clipset: Clipset, finished_run: Path, liars: Path, videos: Path
) -> None:
    files = (liars / "two.mkv", liars / "last duration.mp4", videos / "red" / "0.mp4")
    measure = (
        "import resource, subprocess, sys; done = subprocess.run(sys.argv[1:]); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr); "
        "sys.exit(done.returncode)"
    )
    done = clipset(
        "predict", *files, "--run", finished_run, "--timeline", "--json", "--quiet",
        command=(sys.executable, "-c", measure, COMMAND),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["videos"]) == 3
    assert int(done.stderr.split()[-1]) < 2**21  # kilobytes
