"""The numbers that tell the model where a clip is."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clipset.clips.box import ClipBox
from clipset.model.config import ModelConfig
from clipset.sets.reading import make_clips, official_boxes, paper_boxes

GOLDEN = Path(__file__).parents[1] / "golden" / "protocol" / "position_normalisation.json"


def test_boxes_are_relative_to_the_video_as_in_equation_5() -> None:
    box = ClipBox(start=2.0, end=4.0, top=0.1, left=0.2, bottom=0.6, right=0.9, flipped=True)
    rows = np.array([[box.as_row()]], dtype=np.float32)
    boxes_of_model = paper_boxes(rows, np.array([8.0]))[0, 0]
    assert boxes_of_model.tolist() == pytest.approx([0.1, 0.2, 0.25, 0.6, 0.9, 0.5])


def test_the_whole_video_is_the_unit_box() -> None:
    rows = np.array([[ClipBox(start=0.0, end=3.0).as_row()]], dtype=np.float32)
    assert paper_boxes(rows, np.array([3.0])).tolist() == [[[0, 0, 0, 1, 1, 1]]]


def stored(published: np.ndarray, *, rate: float, height: float, width: float) -> np.ndarray:
    """Published rows (flip, pixels, source frames) as a store keeps them: seconds, fractions."""
    flip, top, left, bottom, right, start, end = published.T
    columns = (start / rate, end / rate, top / height, left / width)
    more = (bottom / height, right / width, (flip > 0).astype(float))
    return np.stack([*columns, *more], axis=-1).astype(np.float32)


@pytest.mark.parametrize(("rate", "height", "width"), [(30.0, 256, 340), (29.97, 240, 320.5)])
def test_official_boxes_are_the_published_positions_though_stored_in_other_units(
    rate: float, height: float, width: float
) -> None:
    golden = json.loads(GOLDEN.read_text("utf-8"))
    rows = stored(np.array(golden["raw"]), rate=rate, height=height, width=width)
    boxes_of_model = official_boxes(rows[None])[0]
    np.testing.assert_allclose(boxes_of_model, np.array(golden["normalised"]), rtol=0, atol=5e-7)


def test_official_boxes_of_each_video_are_relative_to_its_own_clips() -> None:
    first = [
        ClipBox(start=1.0, end=2.0, top=0.1, left=0.2, bottom=0.5, right=0.6),
        ClipBox(start=3.0, end=5.0, top=0.3, left=0.4, bottom=0.9, right=1.0, flipped=True),
    ]
    second = [ClipBox(start=7.0, end=9.0), ClipBox(start=8.0, end=11.0)]
    rows = np.array([[box.as_row() for box in boxes] for boxes in (first, second)])
    assert official_boxes(rows)[0, 0].tolist() == pytest.approx([-1, 0, 0, 0.5, 0.5, 0, 0.25])
    assert official_boxes(rows)[0, 1].tolist() == pytest.approx([1, 0.25, 0.25, 1, 1, 0.5, 1])
    assert official_boxes(rows)[1, 1].tolist() == pytest.approx([-1, 0, 0, 1, 1, 0.25, 1])


ends = st.tuples(st.floats(0, 0.8), st.floats(0.01, 0.2))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(ends, ends, ends), min_size=1, max_size=6), st.floats(0.1, 5000))
def test_official_boxes_span_the_unit_box_whatever_the_clips(
    clips: list[tuple[tuple[float, float], ...]], duration: float
) -> None:
    boxes = [
        ClipBox(
            start=t * duration, end=(t + dt) * duration, top=y, bottom=y + dy, left=x, right=x + dx
        )
        for (t, dt), (y, dy), (x, dx) in clips
    ]
    boxes_of_model = official_boxes(np.array([[box.as_row() for box in boxes]], dtype=np.float32))[
        0
    ]
    np.testing.assert_allclose(boxes_of_model[:, [1, 2, 5]].min(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(boxes_of_model[:, [3, 4, 6]].max(axis=0), 1, atol=1e-6)


def test_a_model_gets_the_boxes_that_it_was_made_for() -> None:
    box = ClipBox(start=2.0, end=4.0, top=0.1, left=0.2, bottom=0.6, right=0.9)
    rows, lengths = np.array([[box.as_row()]], dtype=np.float32), np.array([8.0])
    features = np.zeros((1, 1, 3), dtype=np.float32)
    model = ModelConfig(box_coordinates="official")
    usual, official = (
        make_clips(features, rows, lengths),
        make_clips(features, rows, lengths, model),
    )
    np.testing.assert_array_equal(usual.boxes, paper_boxes(rows, lengths))
    np.testing.assert_array_equal(official.boxes, official_boxes(rows))
