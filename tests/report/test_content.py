"""What may stand on the page."""

from __future__ import annotations

import pytest

from clipset.report.content import Neighbours, Strip


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
