"""The named ways to choose clips, and what holds for all of them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.clips.test_sampling import video

from clipset.clips.config import Augmentation, Sampling
from clipset.clips.sampling import ClipPlan, regular_clips, sample_random_clips, video_generator
from clipset.config import build, to_mapping
from clipset.decoding.reader import VideoInfo
from clipset.errors import ClipError, ConfigError
from clipset.features.config import ExtractConfig
from clipset.presets import PRESETS
from clipset.recipe import load_settings
from clipset.sets.reading import paper_boxes


def preset(name: str) -> Sampling:
    return load_settings(ExtractConfig, name).sampling


STRONG = Augmentation(  # the published code's second set of augmentations, not its default
    brightness=0.6, contrast=0.6, saturation=0.6, hue=0.15,
    grey_probability=0.2, blur_probability=0.5,
)  # fmt: skip
WAYS = {
    **{name: preset(name) for name in PRESETS if name != "recommended"},
    "recommended": Sampling(num_times=8, num_crops=1, flip=False),
    "official, strong": replace(
        preset("official"), crop="frame", crop_scale=(0.2, 0.766), augmentation=STRONG
    ),
    "official, SSv2": replace(preset("official"), num_times=2, flip=False),
    "segments": Sampling(timing="segments"),
    "long videos": Sampling(clips_per_minute=100.0, times_per_minute=30.0),
}
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=list(WAYS))

# Drawn before there were presets: 320 x 240, three seconds, seed 7, id "a.mp4".
FIRST = (
    *(1.1027694734990219, 2.802769473499022),
    *(0.14631731218165783, 0.20013880841911896, 0.9061155631538261, 0.9026998483738804, 0.0),
)
LAST = (
    *(0.5299570622965002, 2.2299570622965),
    *(0.045921887601652625, 0.34836526181376043, 0.7043060335173237, 0.8602355811791378, 1.0),
)
LAST_FRAMES = [15, 22, 28, 35, 41, 47, 54, 60]

sizes = st.integers(1, 3000)
videos = st.builds(video, sizes, sizes, st.integers(1, 300), st.floats(1.0, 120.0))


def random_plan(info: VideoInfo, sampling: Sampling, span: float = 1.0, seed: int = 0) -> ClipPlan:
    generator = np.random.default_rng(seed)
    return sample_random_clips(info, sampling, span=span, frames=8, generator=generator)


def same(first: ClipPlan, second: ClipPlan) -> bool:
    alike = first.boxes == second.boxes and first.colour_changes == second.colour_changes
    return alike and bool((first.frame_indices == second.frame_indices).all())


@every_way
@settings(max_examples=40, deadline=None)
@given(info=videos, span=st.floats(0.05, 20.0), seed=st.integers(0, 2**31))
def test_every_clip_lies_inside_its_video(
    way: Sampling, info: VideoInfo, span: float, seed: int
) -> None:
    for plan in (
        random_plan(info, way, span, seed),
        regular_clips(info, way, span=span, frames=8),
    ):
        assert len(plan) == len(plan.frame_indices) >= 6
        assert plan.frame_indices.min() >= 0
        assert plan.frame_indices.max() < len(info.frame_times)
        assert (np.diff(plan.frame_indices, axis=1) >= 0).all()
        for box in plan.boxes:  # a box that leaves the frame cannot be made
            assert 0 <= box.start < box.end <= max(info.duration, box.start + 1e-3)


@every_way
def test_random_clips_depend_on_the_seed_alone(way: Sampling) -> None:
    info = video()
    assert same(random_plan(info, way, seed=1), random_plan(info, way, seed=1))
    assert not same(random_plan(info, way, seed=1), random_plan(info, way, seed=2))


@every_way
def test_regular_clips_are_the_same_on_every_call(way: Sampling) -> None:
    first, second = (regular_clips(video(), way, span=1.0, frames=8) for _ in range(2))
    assert same(first, second)
    assert not any(box.flipped for box in first.boxes)
    assert set(first.colour_changes) == {None}


@every_way
def test_a_way_of_choosing_survives_being_written_down(way: Sampling) -> None:
    assert build(Sampling, to_mapping(way), "again") == way


def test_clips_are_those_of_older_stores() -> None:
    plan = sample_random_clips(
        video(), Sampling(), span=1.7, frames=8, generator=video_generator(7, "a.mp4")
    )
    assert plan.boxes[0].as_row() == pytest.approx(FIRST, rel=1e-12)
    assert plan.boxes[15].as_row() == pytest.approx(LAST, rel=1e-12)
    assert plan.frame_indices[15].tolist() == LAST_FRAMES


def test_the_paper_reaches_the_end_of_a_video_and_the_published_code_does_not() -> None:
    paper, official = (
        regular_clips(video(frames=300), preset(name), span=2.0, frames=8)
        for name in ("paper", "official")
    )
    assert paper.frame_indices.max() == 299
    assert official.frame_indices.max() == 251
    assert len({box.start for box in official.boxes}) == 5


@settings(max_examples=40, deadline=None)
@given(info=videos, span=st.floats(0.05, 20.0))
def test_a_clip_of_the_paper_that_reaches_the_end_of_the_video_ends_at_1(
    info: VideoInfo, span: float
) -> None:
    """Equation 5: (Q + T_i) / T."""
    plan = regular_clips(info, preset("paper"), span=span, frames=8)
    rows = np.array([[box.as_row() for box in plan.boxes]])
    duration = np.array([info.duration])
    starts, ends = paper_boxes(rows, duration)[0, :, [2, 5]]
    assert ends[-3:] == pytest.approx([1.0] * 3, abs=1e-6)
    assert ends - starts == pytest.approx(min(span / info.duration, 1.0), abs=1e-5)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_random_clips_of_the_paper_span_one_frame_more_than_published_ones(seed: int) -> None:
    info, span = video(frames=300), 2.0
    paper, official = (random_plan(info, preset(name), span, seed) for name in PRESETS[1:])
    assert (paper.frame_indices == official.frame_indices).all()
    for exact, published in zip(paper.boxes, official.boxes, strict=True):
        assert exact.start == published.start
        assert exact.end - exact.start == pytest.approx(span)
        assert published.end == pytest.approx(exact.end - info.duration / 300)


@pytest.mark.parametrize(("width", "height"), [(320, 240), (240, 426), (256, 256)])
def test_short_side_crops_are_windows_at_whole_pixels_of_a_rescaled_frame(
    width: int, height: int
) -> None:
    plan = random_plan(video(width, height), replace(preset("official"), num_clips=400))
    shorts = []
    for box in plan.boxes:
        high, wide = 224 / (box.bottom - box.top), 224 / (box.right - box.left)
        shorts.append(round(min(high, wide)))
        expected = shorts[-1], max(width, height) * shorts[-1] // min(width, height)
        assert sorted((high, wide)) == pytest.approx(expected)
        for offset, room in ((box.top * high, high - 224), (box.left * wide, wide - 224)):
            assert offset == pytest.approx(round(offset), abs=1e-9)
            assert 0 <= round(offset) < round(room)  # the last offset is never drawn
    assert (min(shorts), max(shorts)) == (256, 320)


def test_crops_of_the_frame_have_their_share_of_its_area_where_it_fits() -> None:
    sampling = Sampling(crop="frame", crop_scale=(0.2, 0.766), num_clips=300)
    plan = random_plan(video(320, 240), sampling)
    areas = [(box.bottom - box.top) * (box.right - box.left) for box in plan.boxes]
    assert min(areas) == pytest.approx(0.2, abs=0.02)
    assert max(areas) == pytest.approx(0.766, abs=0.02)
    for box in plan.boxes:
        aspect = (box.right - box.left) * 320 / ((box.bottom - box.top) * 240)
        assert 3 / 4 - 1e-9 <= aspect <= 4 / 3 + 1e-9


def test_the_largest_middle_crop_is_taken_of_a_frame_that_none_fits() -> None:
    (box,) = random_plan(
        video(1000, 10), Sampling(crop="frame", crop_scale=(0.5, 0.9), num_clips=1)
    ).boxes
    assert (box.top, box.bottom) == (0.0, 1.0)
    assert (box.left + box.right) / 2 == pytest.approx(0.5)
    assert (box.right - box.left) * 1000 == pytest.approx(10 * 4 / 3)


def test_segments_give_one_frame_of_each_part_of_the_video() -> None:
    info, sampling = video(frames=80), Sampling(timing="segments", num_times=1, num_crops=1)
    random = random_plan(info, sampling)
    assert (random.frame_indices // 10 == np.arange(8)).all()
    assert len(np.unique(random.frame_indices)) > 30
    regular = regular_clips(info, sampling, span=1.0, frames=8)
    assert regular.frame_indices.tolist() == [[5, 15, 25, 35, 45, 55, 65, 75]]
    assert (regular.boxes[0].start, regular.boxes[0].end) == (0.0, info.duration)


def test_several_times_of_segments_show_different_frames() -> None:
    sampling = Sampling(timing="segments", num_times=2, num_crops=1)
    plan = regular_clips(video(frames=80), sampling, span=1.0, frames=4)
    assert plan.frame_indices.tolist() == [[5, 25, 45, 65], [15, 35, 55, 75]]


def test_long_videos_get_clips_in_proportion_and_short_ones_no_fewer() -> None:
    sampling = Sampling(clips_per_minute=10.0, times_per_minute=4.0)
    long, short = video(frames=9000), video(frames=60)  # five minutes, two seconds
    assert len(random_plan(long, sampling)) == 50
    assert len(regular_clips(long, sampling, span=1.0, frames=4)) == 20 * 3
    assert len(random_plan(short, sampling)) == 16
    assert len(regular_clips(short, sampling, span=1.0, frames=4)) == 5 * 3


def test_colours_and_timing_do_not_change_where_the_crops_are() -> None:
    plain = random_plan(video(), Sampling())
    coloured = random_plan(video(), Sampling(augmentation=STRONG))
    assert coloured.boxes == plain.boxes
    assert len(coloured.colour_changes) == 16
    assert set(plain.colour_changes) == {None}
    spread = random_plan(video(), Sampling(timing="segments"))
    assert [box.as_row()[2:] for box in spread.boxes] == [box.as_row()[2:] for box in plain.boxes]


def test_plans_with_and_without_colours_can_be_joined() -> None:
    random = random_plan(video(), Sampling(augmentation=STRONG))
    regular = regular_clips(video(), Sampling(), span=1.0, frames=8)
    assert (random + regular).colour_changes == (*random.colour_changes, *[None] * 15)
    assert (regular + random).colour_changes == (*[None] * 15, *random.colour_changes)
    with pytest.raises(ClipError, match="15 clips needs as many colour changes or none, got 16"):
        ClipPlan(
            boxes=regular.boxes,
            frame_indices=regular.frame_indices,
            colour_changes=random.colour_changes,
        )


@pytest.mark.parametrize(
    "wrong",
    [
        {"grid": 0},
        {"clips_per_minute": -1.0},
        {"times_per_minute": float("nan")},
    ],
)
def test_a_rule_that_cannot_be_followed_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ClipError, match=next(iter(wrong))):
        Sampling(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong", [{"hue": 0.6}, {"grey_probability": 2.0}, {"blur_probability": -0.1}]
)
def test_colours_that_cannot_be_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ClipError, match=next(iter(wrong))):
        Augmentation(**wrong)  # type: ignore[arg-type]


def test_a_misspelt_colour_in_a_recipe_is_named() -> None:
    with pytest.raises(ConfigError, match="did you mean brightness"):
        build(Sampling, {"augmentation": {"brightnes": 0.5}}, "recipe")
