from __future__ import annotations

import inspect
import io
import json
from collections import Counter
from itertools import pairwise, permutations, product
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from clipset.demo_videos import dataset, rendering
from clipset.demo_videos.dataset import render_demo
from clipset.demo_videos.rendering import (
    CLASSES,
    EVENT_KINDS,
    VideoSpec,
    class_of,
    demo_rng,
    demo_video_id,
    list_shots,
    render_video,
    sample_video_spec,
)
from clipset.demo_videos.sprites import ANIMATIONS, draw_background, sample_canvas
from clipset.errors import ConfigError, RunError

ORDERS = [tuple(name.split("-")) for name in CLASSES]


def make_spec(**changes: object) -> VideoSpec:
    fields = {
        "width": 64, "height": 48, "frame_rate": 10, "num_frames": 40,
        "cut_times": (1.0, 2.0, 3.0), "fade_seconds": 0.0, "noise_std": 0.0, "camera_drift": 2,
        "drift_frequency": (0.1, 0.2),
    }  # fmt: skip
    return VideoSpec(**(fields | changes))


def test_every_class_holds_each_kind_of_event_once() -> None:
    assert len(set(CLASSES)) == 8
    assert all(sorted(order) == sorted(EVENT_KINDS) for order in ORDERS)


def test_every_kind_of_event_stands_in_every_place_equally_often() -> None:
    for position in range(4):
        assert set(Counter(order[position] for order in ORDERS).values()) == {2}


def test_every_pair_of_neighbouring_events_occurs_equally_often() -> None:
    pairs = Counter(pair for order in ORDERS for pair in pairwise(order))
    assert pairs == Counter(dict.fromkeys(permutations(EVENT_KINDS, 2), 2))


def test_every_event_comes_before_every_other_one_in_half_of_the_classes() -> None:
    for first, second in permutations(EVENT_KINDS, 2):
        assert sum(order.index(first) < order.index(second) for order in ORDERS) == 4


def test_every_class_has_its_reverse_so_that_clips_across_a_cut_do_not_tell_it() -> None:
    assert {order[::-1] for order in ORDERS} == set(ORDERS)


@pytest.mark.parametrize("videos", [200, 20])
def test_every_class_has_as_many_videos_as_the_others_or_one_more(videos: int) -> None:
    counts = Counter(class_of(index) for index in range(videos))
    assert set(counts) == set(CLASSES)
    assert max(counts.values()) - min(counts.values()) == (videos % 8 > 0)


def test_the_events_of_a_video_fill_it_without_a_gap_in_the_order_of_its_class() -> None:
    for index in range(40):
        spec = sample_video_spec(demo_rng(7, index))
        shots = list_shots(spec, class_of(index))
        assert "-".join(shot.kind for shot in shots if shot.number == 0) == class_of(index)
        assert [shot.number for shot in shots] == [0, 1] * 4
        assert shots[0].start == 0
        assert shots[-1].end == spec.duration
        assert all(before.end == after.start for before, after in pairwise(shots))
        assert all(shot.end - shot.start > 0.5 for shot in shots)


def test_what_is_drawn_for_a_video_is_not_told_the_class() -> None:
    assert list(inspect.signature(sample_video_spec).parameters) == ["rng"]
    for animation in (*ANIMATIONS.values(), draw_background):
        assert list(inspect.signature(animation).parameters) == ["rng", "canvas"]
    assert list(inspect.signature(sample_canvas).parameters) == ["rng", "width", "height"]


def test_another_class_changes_the_order_of_a_video_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []
    monkeypatch.setattr(rendering, "compose_frames", lambda *args: calls.append(args) or iter(()))
    monkeypatch.setattr(rendering, "encode_mp4", lambda *_: b"")
    for label in CLASSES:
        monkeypatch.setattr(rendering, "class_of", lambda _, label=label: label)
        render_video(0, 5)
    assert [label for *_, label in calls] == list(CLASSES)
    assert len({spec for spec, *_ in calls}) == 1
    for shot in product(EVENT_KINDS, (0, 1)):
        scenes = [scenes[shot] for _, scenes, _ in calls]
        assert len({scene.background.tobytes() for scene in scenes}) == 1
        sprites = [scene.animation(1.5) for scene in scenes]
        assert len({b"".join(sprite.tobytes() for sprite, _, _ in own) for own in sprites}) == 1


def test_no_two_shots_of_a_video_look_alike() -> None:
    spec = make_spec()
    for kind in EVENT_KINDS:
        scenes = [rendering.draw_scene(demo_rng(0, 5, 0, shot), spec, kind) for shot in (0, 1)]
        assert scenes[0].background.tobytes() != scenes[1].background.tobytes()


def test_size_rate_and_length_are_the_same_on_average_in_every_class() -> None:
    specs = [sample_video_spec(demo_rng(0, index)) for index in range(8 * 250)]
    rows = [
        (
            *(s.width, s.height, s.frame_rate, s.duration),
            *(s.fade_seconds, s.noise_std, s.camera_drift, *s.cut_times),
        )
        for s in specs
    ]
    table = np.array(rows).reshape(250, 8, -1)  # (number, class, field)
    error = table.std(axis=(0, 1)) / np.sqrt(250)
    off = np.abs(table.mean(axis=0) - table.mean(axis=(0, 1))) / error
    assert off.max() < 4


def test_videos_vary_in_size_shape_rate_and_length() -> None:
    specs = [sample_video_spec(demo_rng(0, index)) for index in range(200)]
    assert {s.frame_rate for s in specs} == {15, 20, 24, 25, 30}
    assert {np.sign(s.width - s.height) for s in specs} == {-1, 0, 1}
    assert all(s.width % 2 == s.height % 2 == 0 for s in specs)
    assert all(min(s.width, s.height) >= 120 and max(s.width, s.height) <= 320 for s in specs)
    assert min(s.duration for s in specs) < 5.5
    assert max(s.duration for s in specs) > 6.5
    assert {s.fade_seconds == 0 for s in specs} == {True, False}


def test_a_video_is_h264_with_the_frames_that_were_drawn_for_it() -> None:
    spec = sample_video_spec(demo_rng(3, 1))
    with av.open(io.BytesIO(render_video(3, 1))) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.codec_context.pix_fmt) == ("h264", "yuv420p")
        frames = list(container.decode(stream))
    assert len(frames) == spec.num_frames
    assert (frames[0].width, frames[0].height) == (spec.width, spec.height)
    assert [frame.time for frame in frames] == pytest.approx(
        np.arange(spec.num_frames) / spec.frame_rate
    )


def test_the_same_seed_gives_the_same_bytes_and_another_one_does_not() -> None:
    assert render_video(0, 2) == render_video(0, 2)
    assert render_video(0, 2) != render_video(1, 2)


@pytest.mark.parametrize("fade", [0.0, 0.4])
def test_each_event_is_seen_in_its_time_and_faded_only_around_cuts(fade: float) -> None:
    spec = make_spec(fade_seconds=fade)
    greys = dict(zip(EVENT_KINDS, (40, 90, 140, 190), strict=True))

    def scene(kind: str):
        sprite = Image.new("RGBA", (200, 200), (greys[kind],) * 3 + (255,))
        return rendering.Scene(Image.new("RGB", (68, 52)), lambda _: [(sprite, 0.0, 0.0)])

    scenes = {(kind, number): scene(kind) for kind in EVENT_KINDS for number in (0, 1)}
    pixels = [
        np.asarray(frame)[24, 32, 0] for frame in rendering.compose_frames(spec, scenes, CLASSES[0])
    ]
    assert len(pixels) == spec.num_frames
    pure = [greys[shot.kind] for shot in list_shots(spec, CLASSES[0]) for _ in range(5)]
    for number, (grey, expected) in enumerate(zip(pixels, pure, strict=True)):
        from_cut = min(abs(number - 10), abs(number - 20), abs(number - 30)) / spec.frame_rate
        if fade == 0 or from_cut >= fade / 2:
            assert grey == expected
        else:
            assert min(greys.values()) < grey < max(greys.values())


@pytest.mark.parametrize("kind", EVENT_KINDS)
def test_every_event_moves_and_stays_mostly_in_sight(kind: str) -> None:
    for index in range(5):
        canvas = sample_canvas(demo_rng(0, index), 160, 120)
        sprites_at = ANIMATIONS[kind](demo_rng(0, index, 1), canvas)
        assert [sprite[1:] for sprite in sprites_at(1.0)] != [
            sprite[1:] for sprite in sprites_at(1.3)
        ] or (sprites_at(1.0)[-1][0] is not sprites_at(1.3)[-1][0])
        inside = [
            0 <= x <= 160 and -12 <= y <= 132 for t in range(12) for _, x, y in sprites_at(t / 2)
        ]
        assert np.mean(inside) > 0.7


def test_the_catalog_names_videos_by_their_path_and_labels_them_by_their_folder(
    tmp_path: Path,
) -> None:
    calls = []
    catalog = render_demo(tmp_path, videos=2, on_video=lambda: calls.append(1))
    assert [video.id for video in catalog] == sorted(demo_video_id(index) for index in range(2))
    for video in catalog:
        assert video.path == tmp_path / video.id
        assert video.path.is_file()
        assert video.label == video.path.parent.name
    assert len(calls) == 2
    assert json.loads((tmp_path / "demo.json").read_text())["whole"] is True


def test_a_rendering_that_was_stopped_goes_on_and_keeps_what_was_there(tmp_path: Path) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        render_demo(tmp_path, videos=2, on_video=stop)
    first, second = (tmp_path / demo_video_id(index) for index in range(2))
    assert json.loads((tmp_path / "demo.json").read_text())["whole"] is False
    assert not second.exists()
    written = first.stat().st_mtime_ns
    render_demo(tmp_path, videos=2)
    assert first.stat().st_mtime_ns == written
    assert [first.read_bytes(), second.read_bytes()] == [render_video(0, 0), render_video(0, 1)]


def test_rendering_over_processes_gives_the_same_files_and_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dataset, "MIN_VIDEOS_PER_WORKER", 1)
    calls = []
    catalog = render_demo(tmp_path, seed=4, videos=3, workers=2, on_video=lambda: calls.append(1))
    assert len(calls) == len(catalog) == 3
    for index in range(3):
        assert (tmp_path / demo_video_id(index)).read_bytes() == render_video(4, index)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_video_that_cannot_be_written_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    monkeypatch.setattr(dataset, "MIN_VIDEOS_PER_WORKER", 1)
    render_demo(tmp_path, videos=2)
    for index in range(2):
        (tmp_path / demo_video_id(index)).unlink()
        (tmp_path / demo_video_id(index)).mkdir()
    with pytest.raises(
        RunError, match=r"give another folder|exit code 1; run the same command again"
    ):
        render_demo(tmp_path, videos=2, workers=workers)
    assert not list(tmp_path.rglob("*.part"))


def test_a_folder_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "holiday.mp4").write_bytes(b"mine")
    with pytest.raises(RunError, match="not a folder of demo videos"):
        render_demo(tmp_path, videos=1)
    assert [path.name for path in tmp_path.iterdir()] == ["holiday.mp4"]


@pytest.mark.parametrize(
    ("other", "message"), [({"seed": 1}, "seed is 0, not 1"), ({"videos": 2}, "videos is 1, not 2")]
)
def test_a_folder_that_holds_another_rendering_is_refused(
    tmp_path: Path, other: dict[str, int], message: str
) -> None:
    render_demo(tmp_path, videos=1)
    with pytest.raises(RunError, match=message):
        render_demo(tmp_path, **({"seed": 0, "videos": 1} | other))


def test_a_folder_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(RunError, match="give another folder"):
        render_demo(tmp_path / "file", videos=1)


@pytest.mark.parametrize(("seed", "videos"), [(0, 0), (-1, 8)])
def test_a_demo_without_videos_or_with_a_negative_seed_is_refused(
    tmp_path: Path, seed: int, videos: int
) -> None:
    with pytest.raises(ConfigError, match="at least 1 video"):
        render_demo(tmp_path, seed=seed, videos=videos)
