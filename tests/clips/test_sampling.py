"""Which clips are chosen."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clipset.clips.config import Sampling
from clipset.clips.sampling import (
    frame_indices_at,
    regular_clips,
    sample_random_clips,
    video_generator,
)
from clipset.decoding.reader import VideoInfo
from clipset.errors import ClipError


def video(width: int = 320, height: int = 240, frames: int = 90, rate: float = 30.0) -> VideoInfo:
    return VideoInfo(
        width=width,
        height=height,
        frame_times=np.arange(frames) / rate,
        duration=frames / rate,
        expected_frames=frames,
    )


sizes = st.integers(2, 2000)


@settings(max_examples=60, deadline=None)
@given(sizes, sizes, st.integers(1, 300), st.floats(0.05, 20.0), st.integers(0, 2**31))
def test_random_clips_lie_inside_the_video(
    width: int, height: int, frames: int, span: float, seed: int
) -> None:
    info = video(width, height, frames)
    plan = sample_random_clips(
        info, Sampling(), span=span, frames=8, generator=np.random.default_rng(seed)
    )
    assert len(plan) == 16
    assert plan.frame_indices.shape == (16, 8)
    assert plan.frame_indices.min() >= 0
    assert plan.frame_indices.max() < frames
    for box in plan.boxes:
        assert 0 <= box.start < box.end <= max(info.duration, box.start + 1e-3) + 1e-9


@settings(max_examples=60, deadline=None)
@given(sizes, sizes, st.integers(1, 300), st.floats(0.05, 20.0))
def test_regular_clips_cover_the_video_from_its_start_to_its_end(
    width: int, height: int, frames: int, span: float
) -> None:
    info = video(width, height, frames)
    plan = regular_clips(info, Sampling(), span=span, frames=4)
    assert len(plan) == 15
    assert plan.boxes[0].start == 0.0
    assert plan.boxes[-1].end == pytest.approx(info.duration)
    longer = ("top", "bottom") if height > width else ("left", "right")
    assert min(getattr(box, longer[0]) for box in plan.boxes) == 0.0
    assert max(getattr(box, longer[1]) for box in plan.boxes) == pytest.approx(1.0)


def test_regular_crops_are_square_in_pixels() -> None:
    for info in (video(320, 240), video(240, 320)):
        for box in regular_clips(info, Sampling(), span=1.0, frames=4).boxes:
            width = (box.right - box.left) * info.width
            height = (box.bottom - box.top) * info.height
            assert width == pytest.approx(240)
            assert height == pytest.approx(240)


def test_a_frame_is_shown_until_the_next_one_begins() -> None:
    times = np.array([0.0, 0.5, 0.6, 2.0])
    asked = np.array([0.0, 0.49, 0.5, 0.59, 1.99, 2.0, 99.0])
    assert frame_indices_at(asked, times).tolist() == [0, 0, 1, 1, 2, 3, 3]


def test_a_clip_shows_frames_of_its_own_span_in_order() -> None:
    info = video(frames=300)
    plan = sample_random_clips(
        info, Sampling(), span=2.0, frames=8, generator=np.random.default_rng(0)
    )
    for box, frames in zip(plan.boxes, plan.frame_indices, strict=True):
        times = info.frame_times[frames]
        assert (np.diff(times) > 0).all()
        assert box.start - 1 / 30 <= times[0]
        assert times[-1] < box.end


def test_the_last_frame_of_a_short_video_stays() -> None:
    plan = regular_clips(video(frames=3), Sampling(), span=4.0, frames=8)
    assert plan.frame_indices.max() == 2
    assert set(plan.frame_indices[:, -1].tolist()) == {2}


def test_the_same_seed_and_id_give_the_same_clips_whatever_came_before() -> None:
    def draw(seed: int, video_id: str) -> list[float]:
        return video_generator(seed, video_id).random(4).tolist()

    assert draw(0, "a/b.mp4") == draw(0, "a/b.mp4")
    assert draw(0, "a/b.mp4") != draw(0, "a/c.mp4")
    assert draw(0, "a/b.mp4") != draw(1, "a/b.mp4")


def test_flips_can_be_turned_off_without_changing_the_crops() -> None:
    plans = [
        sample_random_clips(
            video(), Sampling(flip=flip), span=1.0, frames=4, generator=np.random.default_rng(3)
        )
        for flip in (True, False)
    ]
    assert any(box.flipped for box in plans[0].boxes)
    assert not any(box.flipped for box in plans[1].boxes)
    assert [box.start for box in plans[0].boxes] == [box.start for box in plans[1].boxes]
    assert [box.left for box in plans[0].boxes] == [box.left for box in plans[1].boxes]


@pytest.mark.parametrize(
    "wrong", [{"num_clips": -1}, {"crop_scale": (0.0, 1.0)}, {"crop_scale": (0.5, 0.2)}]
)
def test_a_sampling_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ClipError):
        Sampling(**wrong)  # type: ignore[arg-type]
