from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clipset.report import video_map
from clipset.report.content import MapPoint
from clipset.report.video_map import NUM_RANGES, map_data, map_layout


def map_of(*targets: float | None, labels: tuple[str | None, ...] | None = None) -> dict[str, Any]:
    points = [
        MapPoint(video_id=str(i), x=i, y=0.0, target=target, label=labels[i] if labels else None)
        for i, target in enumerate(targets)
    ]
    return map_data(points)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60))
def test_a_larger_number_is_never_in_a_lower_range_and_no_range_is_empty(
    numbers: list[float],
) -> None:
    data = map_of(*numbers)

    pairs = sorted(zip(numbers, data["label"], strict=True))
    assert [index for _, index in pairs] == sorted(data["label"])
    assert set(data["label"]) == set(range(len(data["labels"])))
    assert len(data["labels"]) <= NUM_RANGES
    assert sum(data["counts"]) == len(numbers)


def test_ranges_have_about_as_many_videos_each_and_say_what_lies_in_them() -> None:
    data = map_of(*map(float, range(10)))

    assert data["ordered"]
    assert data["counts"] == [2, 2, 2, 2, 2]
    assert data["labels"][0] == "0 to 1"
    assert data["labels"][-1] == "8 to 9"
    assert data["targets"][3] == "3"


def test_a_few_numbers_have_a_colour_each() -> None:
    data = map_of(3.0, 1.0, 1.0, 2.0)

    assert data["labels"] == ["1", "2", "3"]
    assert data["counts"] == [2, 1, 1]


def test_a_video_without_a_number_comes_last() -> None:
    data = map_of(3.0, None, 1.0)

    assert data["labels"] == ["1", "3", "no number"]
    assert data["label"] == [1, 2, 0]
    assert data["unlabelled"] == 2


def test_labels_are_shown_rather_than_numbers_where_there_are_both() -> None:
    data = map_of(3.0, 2.0, 1.0, labels=("b", None, "a"))

    assert data["labels"] == ["a", "b", "no label"]
    assert not data["ordered"]
    assert data["targets"] is None


def test_many_videos_lie_where_their_neighbours_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video_map, "MAX_FITTED", 60)
    monkeypatch.setattr(video_map, "CHUNK_SIZE", 128)
    rng = np.random.default_rng(0)
    centres = rng.normal(0, 5, (4, 16))
    groups = np.arange(300) % 4
    positions, kind = map_layout(centres[groups] + rng.normal(0, 0.5, (300, 16)))
    assert kind == "t-SNE"
    assert positions.dtype == np.float32
    assert (positions.min(), positions.max()) == (0, 1)
    assert len(np.unique(positions, axis=0)) == 300
    means = np.stack([positions[groups == group].mean(axis=0) for group in range(4)])
    nearest = np.linalg.norm(positions[:, None] - means, axis=2).argmin(axis=1)
    assert (nearest == groups).all()
