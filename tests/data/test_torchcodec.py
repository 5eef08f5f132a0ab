"""The second decoder: the same frames as PyAV's, or else PyAV's own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.data.makers import CUT_KINDS, cut_at, spoil_the_middle
from tests.data.test_decode import KINDS

from clipset.decoding import scan, torchcodec
from clipset.decoding.reader import open_video
from clipset.decoding.torchcodec import find_decoder, import_torchcodec
from clipset.errors import ConfigError, VideoError

Make = Callable[..., Path]
Seen = Callable[..., list[int]]

WITH_TORCHCODEC = pytest.mark.skipif(
    import_torchcodec() is None, reason="torchcodec does not import (it needs FFmpeg's libraries)"
)
RIGHT = (
    "h264.mp4", "open_gop.mp4", "h264.mkv", "hevc.mp4", "mpeg4.mov", "vp8.webm", "vp9.webm",
    "gif.gif", "ten_bits.mkv", "alpha.mov", "grey.mkv", "odd.mkv", "yuv444.mp4", "h263.3gp",
)  # fmt: skip
WRONG = ("h264.avi", "h264.ts", "mpeg2.mpg", "interlaced.mts")  # without times, or others than ours


@WITH_TORCHCODEC
@pytest.mark.parametrize("kind", RIGHT)
@pytest.mark.parametrize("side", [None, 24])
def test_torchcodec_shows_the_frames_that_pyav_shows(
    kind: str, side: int | None, make_video: Make, seen: Seen, tmp_path: Path
) -> None:
    path = make_video(tmp_path / kind, **KINDS[kind])
    with open_video(path) as ours, open_video(path, decoder="torchcodec") as theirs:
        assert seen(theirs) == list(range(24))
        assert seen(theirs, [1, 2, 9, 17, 23], short_side=side) == [1, 2, 9, 17, 23]
        assert theirs.frames_found == 24
        np.testing.assert_array_equal(theirs.info.frame_times, ours.info.frame_times)
        both = [reader.frames([3, 20], short_side=side) for reader in (ours, theirs)]
        for (_, expected), (_, pixels) in zip(*both, strict=True):
            assert pixels.shape == expected.shape
            assert np.abs(pixels.astype(int) - expected).mean() < torchcodec.ALIKE
        assert theirs.decoder == "torchcodec"


@WITH_TORCHCODEC
@pytest.mark.parametrize("kind", WRONG)
def test_a_file_about_whose_times_torchcodec_is_wrong_is_read_by_pyav(
    kind: str, make_video: Make, tmp_path: Path
) -> None:
    path = make_video(tmp_path / kind, **KINDS[kind])
    with open_video(path) as ours, open_video(path, decoder="torchcodec") as theirs:
        assert theirs.decoder == "pyav"
        for (_, expected), (_, pixels) in zip(
            ours.frames([0, 9]), theirs.frames([0, 9]), strict=True
        ):
            np.testing.assert_array_equal(pixels, expected)


@WITH_TORCHCODEC
def test_torchcodec_keeps_the_times_of_frames_of_varying_length(
    make_video: Make, seen: Seen, tmp_path: Path
) -> None:
    times = [0, 40, 50, 300, 1000, 1010]
    path = make_video(tmp_path / "vfr.mkv", count=6, times=times)
    with open_video(path, decoder="torchcodec") as video:
        assert video.info.frame_times == pytest.approx(np.array(times) / 1000)
        assert seen(video) == list(range(6))
        assert seen(video, [2, 5]) == [2, 5]
        assert video.decoder == "torchcodec"


@WITH_TORCHCODEC
@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
@pytest.mark.parametrize("mirrored", [False, True])
def test_torchcodec_shows_frames_upright(
    degrees: int, mirrored: bool, make_video: Make, tmp_path: Path
) -> None:
    def turn(stream: Any) -> None:
        stream.set_display_rotation(degrees, hflip=mirrored)

    path = make_video(tmp_path / "turned.mov", codec="png", pix_fmt="rgb24", count=7, setup=turn)
    with open_video(path) as ours, open_video(path, decoder="torchcodec") as theirs:
        assert theirs.decoder == ("pyav" if mirrored else "torchcodec")
        [(_, expected)], [(_, pixels)] = ours.frames([6]), theirs.frames([6])
        np.testing.assert_array_equal(pixels, expected)  # no colours to convert: to the bit
        assert theirs.info.width == ours.info.width


@WITH_TORCHCODEC
def test_torchcodec_makes_pixels_square(make_video: Make, seen: Seen, tmp_path: Path) -> None:
    def wide(stream: Any) -> None:
        stream.codec_context.sample_aspect_ratio = Fraction(2, 1)

    path = make_video(tmp_path / "wide.mp4", setup=wide)
    with open_video(path, decoder="torchcodec") as video:
        [(_, pixels)] = video.frames([23], short_side=24)
        assert pixels.shape == (24, 64, 3)
        assert seen(video) == list(range(24))
        assert video.decoder == "torchcodec"


@WITH_TORCHCODEC
@pytest.mark.parametrize("name", ["front.mp4", "a.avi", "a.mkv", "a.flv"])
@pytest.mark.parametrize("harm", ["cut off", "spoilt"])
def test_a_broken_file_shows_the_same_with_both_decoders(
    name: str, harm: str, make_video: Make, seen: Seen, tmp_path: Path
) -> None:
    path = make_video(tmp_path / name, size=(192, 144), noise=True, **CUT_KINDS[name])
    if harm == "cut off":
        path, _ = cut_at(path, 0.5)
    else:
        spoil_the_middle(path)
    outcomes = []
    for decoder in ("pyav", "torchcodec"):
        with open_video(path, decoder=decoder) as video:
            outcomes.append((seen(video), video.frames_found, video.frames_missing))
    assert outcomes[0] == outcomes[1]


@WITH_TORCHCODEC
def test_torchcodec_gives_way_at_the_first_frame_that_it_gets_wrong(
    make_video: Make, seen: Seen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_video(tmp_path / "a.mp4")
    with open_video(path, decoder="torchcodec") as video:
        monkeypatch.setattr(torchcodec, "SAME_TIME", 0.0)
        assert seen(video, [4, 5, 23]) == [4, 5, 23]
        assert video.decoder == "pyav"


@WITH_TORCHCODEC
@pytest.mark.parametrize("kept", [0, 2**26])
def test_a_file_that_changes_is_never_read_on_by_torchcodec(
    kept: int, make_video: Make, seen: Seen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "KEPT_BYTES", kept)
    path = make_video(tmp_path / "a.mkv", codec="mpeg4")
    with open_video(path, decoder="torchcodec") as video:
        make_video(path, codec="mpeg4", count=30)
        if kept:  # its packets are in memory
            assert seen(video) == list(range(24))
        else:
            with pytest.raises(VideoError, match="the file changed while it was read"):
                seen(video)
        assert video.decoder == "pyav"


def test_without_torchcodec_the_choice_says_how_to_get_it_and_auto_is_pyav(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torchcodec.decoders", None)
    with pytest.raises(ConfigError, match=r"pip install 'clipset\[torchcodec\]'.*ffmpeg"):
        find_decoder("torchcodec")
    assert find_decoder("auto") == find_decoder("pyav") == "pyav"


@pytest.mark.parametrize("error", ["ImportError", "RuntimeError", "OSError"])
def test_torchcodec_without_ffmpeg_counts_as_not_there(
    error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torchcodec").mkdir()
    code = f"import warnings\nwarnings.warn('no FFmpeg')\nraise {error}('libavutil.so.60')\n"
    (tmp_path / "torchcodec" / "__init__.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.split(".")[0] == "torchcodec"]:
        monkeypatch.delitem(sys.modules, name)
    assert import_torchcodec() is None
