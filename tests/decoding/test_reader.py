"""Frames of good videos: exact, in the order of time, whatever the container and codec."""

from __future__ import annotations

import os
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from tests.decoding.makers import make_video, read_numbers

from clipset.decoding import demux
from clipset.decoding.reader import FrameDecoder, open_video
from clipset.errors import VideoError

B_FRAMES = {"bf": "3", "g": "10"}
KINDS: dict[str, dict[str, Any]] = {
    "h264.mp4": {"options": {"x264-params": "bframes=3:keyint=10:scenecut=0:b-adapt=0"}},
    "open_gop.mp4": {"options": {"x264-params": "open-gop=1:bframes=3:keyint=10:b-adapt=0"}},
    "h264.mkv": {"options": {"x264-params": "bframes=3:keyint=10:b-adapt=0"}},
    "h264.ts": {"options": {"x264-params": "bframes=3:keyint=10:b-adapt=0"}},
    "h264.flv": {"options": {"x264-params": "bframes=3:keyint=10:b-adapt=0"}},
    "h264.avi": {"options": {"x264-params": "bframes=3:keyint=10:b-adapt=0"}},
    "hevc.mp4": {"codec": "libx265", "options": {"x265-params": "keyint=10:log-level=none"}},
    "intra_refresh.mp4": {"options": {"x264-params": "intra-refresh=1:keyint=10"}},
    "mpeg4.avi": {"codec": "mpeg4", "options": B_FRAMES},
    "mpeg4_no_b.avi": {"codec": "mpeg4", "options": {"bf": "0", "g": "5"}},
    "mpeg4.mov": {"codec": "mpeg4", "options": B_FRAMES},
    "msmpeg4.avi": {"codec": "msmpeg4"},
    "mpeg2.mpg": {"codec": "mpeg2video", "options": B_FRAMES},
    "mpeg1.mpeg": {"codec": "mpeg1video", "options": B_FRAMES},
    "mpeg2.ts": {"codec": "mpeg2video", "options": B_FRAMES},
    "interlaced.mts": {
        "codec": "mpeg2video", "options": {**B_FRAMES, "flags": "+ildct+ilme"}, "format": "mpegts",
    },
    "vp8.webm": {"codec": "libvpx", "options": {"auto-alt-ref": "1", "lag-in-frames": "12"}},
    "vp9.webm": {"codec": "libvpx-vp9", "options": {"auto-alt-ref": "1", "lag-in-frames": "12"}},
    "av1.mkv": {"codec": "libsvtav1", "options": {"preset": "12", "svtav1-params": "keyint=10"}},
    "wmv2.wmv": {"codec": "wmv2"},
    "flv1.flv": {"codec": "flv"},
    "h263.3gp": {"codec": "h263", "size": (128, 96)},  # pixels of 12:11
    "gif.gif": {"codec": "gif", "pix_fmt": "rgb8"},
    "mjpeg.avi": {"codec": "mjpeg", "pix_fmt": "yuvj420p"},
    "raw.avi": {"codec": "rawvideo", "pix_fmt": "bgr24"},
    "ten_bits.mkv": {"pix_fmt": "yuv420p10le"},
    "prores.mov": {"codec": "prores_ks", "pix_fmt": "yuv422p10le"},
    "alpha.mov": {"codec": "qtrle", "pix_fmt": "argb"},
    "alpha.mkv": {"codec": "ffv1", "pix_fmt": "yuva420p"},
    "grey.mkv": {"codec": "ffv1", "pix_fmt": "gray"},
    "grey16.mkv": {"codec": "ffv1", "pix_fmt": "gray16le"},
    "rgb.mkv": {"codec": "libx264rgb", "pix_fmt": "rgb24"},
    "odd.mkv": {"codec": "ffv1", "size": (61, 47)},
    "yuv444.mp4": {"pix_fmt": "yuv444p", "size": (63, 49)},
}  # fmt: skip


def shown_size(kind: str) -> tuple[int, int]:
    size: tuple[int, int] = KINDS[kind].get("size", (64, 48))
    return (140, 96) if kind == "h263.3gp" else size


@pytest.fixture
def usual_priority() -> Iterator[None]:
    """SVT-AV1 makes the thread that encodes a real-time one, if root may: undone here."""
    yield
    if hasattr(os, "sched_setscheduler"):  # Linux
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


@pytest.mark.usefixtures("usual_priority")
@pytest.mark.parametrize("kind", KINDS)
def test_every_frame_of_every_kind_is_the_right_one(kind: str, tmp_path: Path) -> None:
    path = make_video(tmp_path / kind, **KINDS[kind])
    with open_video(path) as video:
        assert video.info.frame_times[0] == 0.0
        assert np.diff(video.info.frame_times) == pytest.approx(0.04, abs=0.0011)
        assert video.info.duration == pytest.approx(24 / 25, abs=0.045)
        assert (video.info.width, video.info.height) == shown_size(kind)
        assert read_numbers(video) == list(range(24))
        assert read_numbers(video, [1, 2, 9, 17, 23]) == [1, 2, 9, 17, 23]
        assert read_numbers(video, [18]) == [18]
        assert (len(video.needed_frames), len(video.missing_frames)) == (24, 0)


@pytest.mark.parametrize("kind", ["h264.mp4", "h264.avi", "mpeg2.mpg", "vp9.webm"])
def test_a_large_file_is_read_again_from_disk_and_gives_the_same_frames(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_video(tmp_path / kind, **KINDS[kind])
    indices = [0, 3, 4, 19, 22]
    with open_video(path) as video:
        in_memory = list(video.frames(indices))
    monkeypatch.setattr(demux, "MAX_CACHED_BYTES", 0)
    with open_video(path) as video:
        for (_, expected), (_, pixels) in zip(in_memory, video.frames(indices), strict=True):
            np.testing.assert_array_equal(pixels, expected)


@pytest.mark.parametrize("max_cached_bytes", [0, 2**26])
def test_only_the_groups_of_pictures_of_requested_frames_are_decoded(
    max_cached_bytes: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = {"x264-params": "bframes=3:keyint=10:scenecut=0:b-adapt=0"}
    path = make_video(tmp_path / "long.mp4", count=250, options=options)
    monkeypatch.setattr(demux, "MAX_CACHED_BYTES", max_cached_bytes)
    decoded = 0
    decode_next = FrameDecoder._decode_next

    def counting(decoder: FrameDecoder) -> Any:
        nonlocal decoded
        decoded += 1
        return decode_next(decoder)

    with open_video(path) as video:
        monkeypatch.setattr(FrameDecoder, "_decode_next", counting)
        assert read_numbers(video, [5, 100, 101, 249]) == [5, 100, 101, 249]
        assert (len(video.needed_frames), len(video.missing_frames)) == (4, 0)
    assert decoded < 45


def test_sparse_frames_are_the_pixels_of_a_full_decoding(tmp_path: Path) -> None:
    for kind in ("open_gop.mp4", "mpeg4.mov", "vp8.webm", "gif.gif"):
        path = make_video(tmp_path / kind, **KINDS[kind], noise=True)
        with open_video(path) as video:
            everything = dict(video.frames(range(24)))
            for number in range(24):
                [(_, pixels)] = video.frames([number])
                np.testing.assert_array_equal(pixels, everything[number])


def test_frames_of_varying_length_keep_their_times(tmp_path: Path) -> None:
    times = [0, 40, 50, 300, 1000, 1010]
    path = make_video(tmp_path / "vfr.mkv", count=6, times=times)
    with open_video(path) as video:
        assert video.info.frame_times == pytest.approx(np.array(times) / 1000)
        assert video.info.duration >= 1.010


def test_what_an_edit_list_cuts_off_is_not_shown(tmp_path: Path) -> None:
    times = [(number - 5) * 40 for number in range(24)]
    options = {"x264-params": "bframes=2:keyint=10:b-adapt=0"}
    path = make_video(tmp_path / "edited.mp4", times=times, options=options)
    with open_video(path) as video:
        assert read_numbers(video) == list(range(5, 24))
        assert video.info.frame_times[0] == 0.0
        assert video.info.duration == pytest.approx(19 * 0.04)


@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
@pytest.mark.parametrize("mirrored", [False, True])
def test_frames_stand_upright(degrees: int, mirrored: bool, tmp_path: Path) -> None:
    def turn(stream: Any) -> None:
        stream.set_display_rotation(degrees, hflip=mirrored)

    plain = make_video(tmp_path / "plain.mov", codec="png", pix_fmt="rgb24", count=2)
    turned = make_video(tmp_path / "turned.mov", codec="png", pix_fmt="rgb24", count=2, setup=turn)
    with open_video(plain) as video:
        _, stored = list(video.frames([0, 1]))[1]
    with open_video(turned) as video:
        _, shown = list(video.frames([0, 1]))[1]
        assert shown.shape == (video.info.height, video.info.width, 3)
    upright = np.rot90(stored, degrees // 90)
    np.testing.assert_array_equal(shown, upright[:, ::-1] if mirrored else upright)


def test_pixels_that_are_not_square_are_made_square(tmp_path: Path) -> None:
    def wide(stream: Any) -> None:
        stream.codec_context.sample_aspect_ratio = Fraction(2, 1)

    with open_video(make_video(tmp_path / "wide.mp4", setup=wide)) as video:
        assert (video.info.width, video.info.height) == (128, 48)
        assert read_numbers(video) == list(range(24))
        [(_, pixels)] = video.frames([0], short_side=24)
        assert pixels.shape == (24, 64, 3)


def test_frames_are_made_smaller_but_never_larger(tmp_path: Path) -> None:
    with open_video(make_video(tmp_path / "a.mp4", size=(96, 64))) as video:
        shapes = {
            side: next(video.frames([0], short_side=side))[1].shape for side in (8, 32, 64, 500)
        }
        assert shapes == {8: (8, 12, 3), 32: (32, 48, 3), 64: (64, 96, 3), 500: (64, 96, 3)}
        assert read_numbers(video, short_side=16) == list(range(24))


@pytest.mark.parametrize("pix_fmt", ["yuv420p", "yuvj420p", "gray", "yuv420p10le", "bgr0"])
@pytest.mark.parametrize("side", [None, 16])
def test_black_is_0_and_white_is_255(pix_fmt: str, side: int | None, tmp_path: Path) -> None:
    path = tmp_path / "levels.mkv"
    codec = "mjpeg" if pix_fmt == "yuvj420p" else "ffv1"
    with av.open(str(path), "w") as file:
        stream = file.add_stream(codec, rate=25)
        stream.width = stream.height = 32
        stream.pix_fmt = pix_fmt
        for shade in (0, 255):
            picture = np.full((32, 32, 3), shade, dtype=np.uint8)
            file.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        file.mux(stream.encode())
    with open_video(path) as video:
        (_, black), (_, white) = video.frames([0, 1], short_side=side)
    assert black.max() <= 1
    assert white.min() >= 253


def test_frames_must_be_requested_in_order_and_within_the_video(tmp_path: Path) -> None:
    with open_video(make_video(tmp_path / "a.mp4")) as video:
        for indices in ([3, 2], [1, 1], [-1], [24]):
            with pytest.raises(VideoError, match="must be in increasing order, from 0 to 23"):
                list(video.frames(indices))
        assert list(video.frames([])) == []


def test_a_name_that_looks_like_an_address_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("http:", "concat:a|b", "пример 'x' \"y\", %d.mp4", "a?b#c.mp4", "pipe:0"):
        path = make_video(tmp_path / "plain.mp4").rename(name)
        with open_video(path) as video:
            assert len(video.info.frame_times) == 24
