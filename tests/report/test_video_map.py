from hypothesis import given
from hypothesis import strategies as st

from clipset.report.content import MapPoint
from clipset.report.video_map import NUM_RANGES, Legend, make_legend, map_data


def legend_of(
    *targets: float | None, labels: tuple[str | None, ...] | None = None
) -> tuple[Legend, list[MapPoint]]:
    points = [
        MapPoint(video_id=str(i), x=i, y=0.0, target=target, label=labels[i] if labels else None)
        for i, target in enumerate(targets)
    ]
    return make_legend(points), points


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60))
def test_a_larger_number_is_never_in_a_lower_range_and_no_range_is_empty(
    numbers: list[float],
) -> None:
    legend, _ = legend_of(*numbers)

    pairs = sorted(zip(numbers, legend.indices, strict=True))
    assert [index for _, index in pairs] == sorted(legend.indices)
    assert set(legend.indices) == set(range(len(legend.names)))
    assert len(legend.names) <= NUM_RANGES
    assert sum(legend.counts) == len(numbers)


def test_ranges_have_about_as_many_videos_each_and_say_what_lies_in_them() -> None:
    legend, points = legend_of(*map(float, range(10)))

    assert legend.ordered
    assert legend.counts == (2, 2, 2, 2, 2)
    assert legend.names[0] == "0 to 1"
    assert legend.names[-1] == "8 to 9"
    assert map_data(points, legend)["targets"][3] == "3"


def test_a_few_numbers_have_a_colour_each() -> None:
    legend, _ = legend_of(3.0, 1.0, 1.0, 2.0)

    assert legend.names == ("1", "2", "3")
    assert legend.counts == (2, 1, 1)


def test_a_video_without_a_number_comes_last() -> None:
    legend, points = legend_of(3.0, None, 1.0)

    assert legend.names == ("1", "3", "no number")
    assert legend.indices == (1, 2, 0)
    assert map_data(points, legend)["unlabelled"] == 2


def test_labels_are_shown_rather_than_numbers_where_there_are_both() -> None:
    legend, points = legend_of(3.0, 2.0, 1.0, labels=("b", None, "a"))

    assert legend.names == ("a", "b", "no label")
    assert not legend.ordered
    assert map_data(points, legend)["targets"] is None
