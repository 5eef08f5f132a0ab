"""What may stand on the page."""

from __future__ import annotations

import pytest

from clipset.errors import ReportError
from clipset.report.content import MapPoint, Neighbours, Step, Strip

PNG = b"\x89PNG\r\n\x1a\n"


def test_a_thumbnail_must_be_jpeg() -> None:
    with pytest.raises(ReportError, match="not JPEG; save it as JPEG"):
        MapPoint(video_id="a.mp4", x=0.0, y=0.0, thumbnail=PNG)


def test_a_frame_must_be_jpeg() -> None:
    with pytest.raises(ReportError, match=r"an image of 'a\.mp4'"):
        Strip(video_id="a.mp4", frames=(PNG,))


def test_a_point_of_the_map_must_be_finite() -> None:
    with pytest.raises(ReportError, match="not finite"):
        MapPoint(video_id="a.mp4", x=float("nan"), y=0.0)


@pytest.mark.parametrize("seconds", [-1.0, float("inf"), float("nan")])
def test_a_step_takes_a_time_that_can_be(seconds: float) -> None:
    with pytest.raises(ReportError, match="cannot have taken"):
        Step(name="extract", seconds=seconds)


@pytest.mark.parametrize(
    ("asked", "found", "same"),
    [("a", "a", True), ("a", "b", False), (None, "a", None), ("a", None, None), (None, None, None)],
)
def test_a_hit_shares_a_label_only_where_both_have_one(
    asked: str | None, found: str | None, same: bool | None
) -> None:
    hit = Strip(video_id="b", frames=(), label=found, similarity=0.5)
    query = Strip(video_id="a", frames=(), label=asked)
    assert Neighbours(query=query, hits=(hit,)).same_label(hit) is same
