"""Files that are broken, strange or no files at all: exactly what is found, or exactly why not."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from tests.decoding.makers import (
    CUT_KINDS,
    GROUPS_OF_10,
    claim_frames,
    claim_size,
    cut_at,
    flv_with_times,
    make_many_frames,
    make_sound,
    make_video,
    packets_of,
    read_numbers,
    spoil_the_middle,
    without_keyframes,
)

from clipset.decoding import demux
from clipset.decoding.reader import open_video
from clipset.errors import VideoError


def reason(path: Path) -> str:
    """Why a file cannot be read as a video."""
    with pytest.raises(VideoError) as caught, open_video(path) as video:
        list(video.frames(range(len(video.info.frame_times))))
    return str(caught.value)


def test_an_empty_file_says_so(tmp_path: Path) -> None:
    (tmp_path / "empty.mp4").touch()
    assert reason(tmp_path / "empty.mp4") == "empty file"


def test_text_is_not_a_video(tmp_path: Path) -> None:
    (tmp_path / "text.mp4").write_text("not a film\n" * 1000)
    assert reason(tmp_path / "text.mp4") == "not a video file (invalid data)"


@pytest.mark.parametrize(
    "text",
    [
        "ffconcat version 1.0\nfile good.mp4\n",
        "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\ngood.ts\n#EXT-X-ENDLIST\n",
        "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 96\n",
    ],
)
def test_a_list_of_other_files_is_never_followed(text: str, tmp_path: Path) -> None:
    make_video(tmp_path / "good.mp4")
    make_video(tmp_path / "good.ts")
    (tmp_path / "list.mp4").write_text(text)
    assert reason(tmp_path / "list.mp4").startswith("not a video file")


@pytest.mark.parametrize("name", ["front.mp4", "a.avi", "a.mkv", "a.flv"])
@pytest.mark.parametrize("share", [0.5, 0.99])
def test_a_file_that_was_cut_off_gives_the_frames_it_still_holds(
    name: str, share: float, tmp_path: Path
) -> None:
    whole = make_video(tmp_path / name, size=(192, 144), noise=True, **CUT_KINDS[name])
    part, expected = cut_at(whole, share)
    assert len(expected) in (range(4, 20) if share == 0.5 else range(20, 25))
    with open_video(part) as video:
        assert read_numbers(video) == expected
        assert (len(video.needed_frames), len(video.missing_frames)) == (len(expected), 0)
        assert video.info.expected_frames in (24, None)


@pytest.mark.parametrize(
    ("name", "share"),
    [("front.mp4", 0.001), ("back.mp4", 0.01), ("back.mp4", 0.5), ("back.mp4", 0.99),
     ("a.avi", 0.01), ("a.mkv", 0.001)],
)  # fmt: skip
def test_a_file_that_was_cut_off_before_its_index_is_called_broken(
    name: str, share: float, tmp_path: Path
) -> None:
    path = make_video(tmp_path / name, size=(192, 144), noise=True, **CUT_KINDS[name])
    os.truncate(path, int(path.stat().st_size * share))
    assert reason(path).startswith("a broken video file (")


@pytest.mark.parametrize("name", ["front.mp4", "a.avi", "a.mkv"])
def test_a_file_that_was_cut_off_in_its_first_frame_is_empty(name: str, tmp_path: Path) -> None:
    path = make_video(tmp_path / name, size=(192, 144), noise=True, **CUT_KINDS[name])
    os.truncate(path, packets_of(path)[0].pos + 100)
    assert reason(path) == "the video stream is empty"


@pytest.mark.parametrize("name", ["front.mp4", "a.avi"])
def test_garbage_in_the_middle_costs_only_the_frames_around_it(name: str, tmp_path: Path) -> None:
    path = make_video(tmp_path / name, size=(192, 144), noise=True, **CUT_KINDS[name])
    first = spoil_the_middle(path)
    with open_video(path) as video:
        assert len(video.info.frame_times) == 24
        shown = read_numbers(video)
        assert shown[:first] == list(range(first))
        assert shown[first] < first  # a frame that is lost shows an earlier one
        assert len(video.missing_frames) >= 1
        assert len(video.needed_frames) == 24


def test_a_header_with_a_wrong_frame_count_is_not_believed(tmp_path: Path) -> None:
    path = claim_frames(make_video(tmp_path / "a.avi", codec="mpeg4"), 999)
    with open_video(path) as video:
        assert video.info.expected_frames == 999
        assert read_numbers(video) == list(range(24))
        assert video.info.duration == pytest.approx(24 / 25)


def test_sound_alone_is_no_video(tmp_path: Path) -> None:
    assert reason(make_sound(tmp_path / "sound.mp4")) == "no video stream"


@pytest.mark.parametrize("name", ["one.mp4", "one.mkv", "one.gif", "one.avi"])
def test_a_video_of_one_frame_lasts_one_frame(name: str, tmp_path: Path) -> None:
    how = {"one.gif": {"codec": "gif", "pix_fmt": "rgb8"}, "one.avi": {"codec": "mpeg4"}}
    with open_video(make_video(tmp_path / name, count=1, **how.get(name, {}))) as video:
        assert read_numbers(video) == [0]
        assert video.info.duration == pytest.approx(0.04, abs=0.001)


def test_a_video_without_a_size_is_refused(tmp_path: Path) -> None:
    path = make_video(tmp_path / "none.avi", codec="rawvideo", pix_fmt="bgr24")
    assert reason(claim_size(path, 0, 0)) == "no frame could be decoded"


@pytest.mark.parametrize("size", [(1, 1), (1, 33), (10_000, 16), (16, 10_000)])
def test_frames_of_any_shape_are_read(size: tuple[int, int], tmp_path: Path) -> None:
    path = make_video(tmp_path / "a.mov", codec="png", pix_fmt="rgb24", size=size, count=3)
    with open_video(path) as video:
        assert (video.info.width, video.info.height) == size
        assert [pixels.shape for _, pixels in video.frames([0, 2])] == [(*size[::-1], 3)] * 2
        [(_, small)] = video.frames([1], short_side=8)
        assert min(small.shape[:2]) == min(8, *size)


@pytest.mark.parametrize("size", [(17_000, 16), (9_000, 9_000)])
def test_frames_that_would_eat_the_memory_are_refused(
    size: tuple[int, int],
    tmp_path: Path,
) -> None:
    path = make_video(tmp_path / "large.avi", codec="rawvideo", pix_fmt="bgr24", count=1)
    assert reason(claim_size(path, *size)) == f"frames of {size[0]}×{size[1]} are too large"


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100,000 tiny frames, made of 256 that repeat."""
    return make_many_frames(tmp_path_factory.mktemp("many") / "many.mkv")


def test_a_hundred_thousand_frames_are_all_within_reach(endless: Path) -> None:
    with open_video(endless) as video:
        assert len(video.info.frame_times) == 100_000
        assert video.info.duration == pytest.approx(100.0)
        indices = [0, 5, 50_000, 77_777, 99_999]
        shades = [int(pixels.mean().round()) for _, pixels in video.frames(indices)]
        assert shades == pytest.approx([number % 256 for number in indices], abs=3)


def test_a_video_with_too_many_frames_is_refused(
    endless: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demux, "MAX_PACKETS", 1000)
    assert reason(endless) == "more than 1,000 frames"


def test_a_video_without_keyframes_has_nothing_to_decode(tmp_path: Path) -> None:
    whole = make_video(tmp_path / "whole.mkv", options=GROUPS_OF_10)
    assert reason(without_keyframes(whole, tmp_path / "a.mkv")) == "no frame could be decoded"


def test_a_clock_that_is_set_back_goes_on_where_it_was(tmp_path: Path) -> None:
    path = make_video(tmp_path / "back.flv", codec="flv", options={"g": "1"}, count=100)
    times = [number % 50 * 40 for number in range(100)]
    with open_video(flv_with_times(path, times)) as video:
        assert video.info.frame_times == pytest.approx(np.arange(100) * 0.04)
        assert read_numbers(video) == list(range(100))


def test_two_recordings_in_one_stream_follow_one_another(tmp_path: Path) -> None:
    once = make_video(tmp_path / "once.ts", options=GROUPS_OF_10, count=50)
    (tmp_path / "twice.ts").write_bytes(once.read_bytes() * 2)
    with open_video(tmp_path / "twice.ts") as video:
        shown = read_numbers(video)
        assert len(shown) in (99, 100)  # the packet at the seam is damaged
        assert shown[-50:] == list(range(50))
        assert shown[: len(shown) - 50] == [n for n in range(50) if n in shown[:-50]]
        assert np.diff(video.info.frame_times).min() > 0


def test_timestamps_that_go_back_a_little_are_put_in_order(tmp_path: Path) -> None:
    path = make_video(tmp_path / "jitter.flv", codec="flv", options={"g": "1"}, count=6)
    with open_video(flv_with_times(path, [0, 40, 120, 80, 160, 160])) as video:
        assert video.info.frame_times == pytest.approx([0, 0.04, 0.08, 0.12, 0.16, 0.16], abs=1e-4)
        assert np.diff(video.info.frame_times).min() > 0
        assert read_numbers(video) == [0, 1, 3, 2, 4, 5]
        assert read_numbers(video, [2, 3]) == [3, 2]
        assert video.missing_frames == set()


def test_a_stream_without_any_timestamps_runs_at_its_rate(tmp_path: Path) -> None:
    path = make_video(tmp_path / "raw.h264", options=GROUPS_OF_10, format="h264")
    with open_video(path) as video:
        assert video.info.frame_times == pytest.approx(np.arange(24) * 0.04)
        assert read_numbers(video) == list(range(24))


def test_a_directory_named_like_a_video_says_so(tmp_path: Path) -> None:
    (tmp_path / "x.mp4").mkdir()
    assert reason(tmp_path / "x.mp4") == "is a directory"


def test_a_dangling_link_says_so(tmp_path: Path) -> None:
    (tmp_path / "x.mp4").symlink_to("nowhere.mp4")
    assert reason(tmp_path / "x.mp4") == "no such file"


def test_a_link_to_itself_says_so(tmp_path: Path) -> None:
    (tmp_path / "x.mp4").symlink_to("x.mp4")
    assert reason(tmp_path / "x.mp4") == "too many levels of symbolic links"


def test_a_file_that_may_not_be_read_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_video(tmp_path / "x.mp4")
    path.chmod(0)
    if os.access(path, os.R_OK):  # the superuser may read everything
        monkeypatch.setattr(demux.os, "access", lambda *_: False)
    assert reason(path) == "permission denied"


def test_a_named_pipe_is_never_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.mp4")
    assert reason(tmp_path / "x.mp4") == "is not a regular file"


def test_a_device_is_never_opened() -> None:
    assert reason(Path(os.devnull)) == "is not a regular file"


def test_a_small_file_that_changes_while_it_is_read_does_no_harm(tmp_path: Path) -> None:
    path = make_video(tmp_path / "x.mp4")
    with open_video(path) as video:
        path.write_bytes(b"something else")
        assert read_numbers(video) == list(range(24))


@pytest.mark.parametrize("change", ["other", "shorter", "longer", "gone"])
def test_a_large_file_that_changes_while_it_is_read_is_refused(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demux, "MAX_CACHED_BYTES", 0)
    path = make_video(tmp_path / "x.mkv", codec="mpeg4")
    with open_video(path) as video:
        path.unlink()
        if change == "other":
            make_video(path, codec="mpeg4", times=[number * 33 for number in range(24)])
        elif change != "gone":
            make_video(path, codec="mpeg4", count=20 if change == "shorter" else 30)
        expected = "no such file" if change == "gone" else "the file changed while it was read"
        with pytest.raises(VideoError, match=expected):
            list(video.frames(range(24)))
