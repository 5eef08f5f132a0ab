"""Search equals a plain loop over all vectors, moments do not touch, and examples work."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clipset.errors import SearchError
from clipset.representation import read_vectors, write_vectors
from clipset.retrieval import QueryExample, SearchIndex, open_index
from clipset.retrieval.index import NEGATIVE_WEIGHT
from clipset.retrieval.moments import EQUAL_SCORES, cover_time, merge_clips


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def similarity(a: np.ndarray, b: np.ndarray, widths: tuple[int, ...]) -> float:
    """The mean of the cosines of the parts, by a loop."""
    low, cosines = 0, []
    for width in widths:
        cosines.append(cosine(a[low : low + width], b[low : low + width]))
        low += width
    return sum(cosines) / len(cosines)


def test_a_search_for_videos_is_a_loop_over_their_vectors(index: SearchIndex) -> None:
    pooled = index.table.pooled
    expected = sorted(
        ((cosine(pooled[7], pooled[i]), -i) for i in range(len(index)) if i != 7), reverse=True
    )
    hits = index.search([index.video_example(7)], limit=len(index)).hits
    assert [(hit.video_index, hit.start) for hit in hits] == [(-i, None) for _, i in expected]
    assert [hit.score for hit in hits] == pytest.approx([s for s, _ in expected], abs=1e-5)


def test_a_video_found_by_a_moment_has_the_score_of_its_nearest_clip(index: SearchIndex) -> None:
    widths, vectors = index.table.part_widths, index.table.vectors
    query = index.moment_example(3, 2.0, 3.0)
    assert query.clips is not None
    for crop in (2, 3):  # the clips of 2 to 3 s
        assert similarity(query.clips, vectors[3, crop], widths) > 0.5
    hits = index.search([query], limit=100).hits
    assert len(hits) == len(index) - 1
    for hit in hits:
        clips = vectors[hit.video_index, : index.store.regular.count[hit.video_index]]
        scores = [similarity(query.clips, clip, widths) for clip in clips]
        assert hit.score == pytest.approx(max(scores), abs=1e-5)
        start, end = index.clip_times[hit.video_index, int(np.argmax(scores))]
        assert (hit.start or 0.0) <= start < end <= (hit.end or 0.0)
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


def test_moments_do_not_depend_on_how_many_are_requested(index: SearchIndex) -> None:
    query = [index.moment_example(3, 2.0, 3.0)]
    hits = index.search(query, unit="moment", limit=1000).hits
    for limit in (1, 5, 30):
        assert index.search(query, unit="moment", limit=limit).hits == hits[:limit]
    for hit in hits:
        others = [h for h in hits if h.video_index == hit.video_index and h != hit]
        assert all(hit.end < other.start or other.end < hit.start for other in others)
    assert {hit.video_index for hit in hits} == set(range(len(index)))


@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.integers(1, 6), st.floats(-1, 1, width=32)),
        min_size=1, max_size=12,
    )
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_merged_moments_neither_overlap_nor_touch(clips: list[tuple[int, int, float]]) -> None:
    times = np.array([(start, start + length) for start, length, _ in clips], np.float64)
    scores = np.array([score for _, _, score in clips], np.float32)
    moments = merge_clips(times, scores)
    ordered = sorted(moments)
    assert all(a[1] < b[0] for a, b in pairwise(ordered))
    assert [m[2] for m in moments] == sorted((m[2] for m in moments), reverse=True)
    assert moments[0][2] == scores.max()
    for start, end in times.tolist():
        assert any(start <= high and end >= low for low, high, _ in moments)


def test_clips_of_equal_scores_are_one_moment_and_a_peak_is_one_of_its_own() -> None:
    times = np.array([(i, i + 1) for i in range(6)], np.float64)
    even = np.linspace(0.9, 0.9 + EQUAL_SCORES / 2, 6).astype(np.float32)
    assert [m[:2] for m in merge_clips(times, even)] == [(0.0, 6.0)]
    peak = np.array([0.1, 0.1, 0.8, 0.9, 0.1, 0.1], np.float32)
    assert merge_clips(times, peak)[0][:2] == (2.0, 4.0)


def test_clips_cover_the_time_of_their_video() -> None:
    boxes = np.array([(0.2, 0.4), (0.2, 0.4), (1.0, 1.2), (1.1, 2.0)])
    assert cover_time(boxes, 3.0).tolist() == pytest.approx(
        np.array([(0.0, 0.7), (0.0, 0.7), (0.7, 1.2), (1.1, 3.0)])
    )
    assert cover_time(np.array([(0.0, 3.0)]), 3.0).tolist() == [[0.0, 3.0]]


def test_several_examples_are_averaged_and_negative_ones_subtracted(index: SearchIndex) -> None:
    examples = [index.video_example(i) for i in (0, 4, 1, 2)]
    scores = {
        hit.video_index: hit.score
        for hit in index.search(examples[:2], examples[2:], limit=100).hits
    }
    assert scores.keys() == set(range(len(index))) - {0, 1, 2, 4}
    pooled = index.table.pooled
    for video_index, score in scores.items():
        a, b, c, d = (cosine(pooled[video_index], pooled[i]) for i in (0, 4, 1, 2))
        assert score == pytest.approx((a + b) / 2 - NEGATIVE_WEIGHT * (c + d) / 2, abs=1e-5)


def test_a_negative_example_lowers_the_videos_like_it(index: SearchIndex) -> None:
    positive, negative = index.moment_example(0, 0.0, 5.0), index.moment_example(1, 0.0, 5.0)
    before, after = (
        {
            hit.video_index: rank
            for rank, hit in enumerate(index.search([positive], n, limit=100).hits)
        }
        for n in ([], [negative])
    )
    alike = [i for i in after if i % 4 == 1]  # of the negative example's label
    assert np.mean([after[i] - before[i] for i in alike]) > 0


def test_an_example_is_not_a_result_but_other_moments_of_its_video_are(index: SearchIndex) -> None:
    query = index.moment_example(5, 2.0, 3.0)
    own = [h for h in index.search([query], unit="moment", limit=500).hits if h.video_index == 5]
    assert own
    assert all(hit.end <= 2.0 or hit.start >= 3.0 for hit in own)
    whole = index.search([index.video_example(5)], unit="moment", limit=500).hits
    assert 5 not in {hit.video_index for hit in whole}


def test_only_allowed_videos_are_results(index: SearchIndex) -> None:
    for allowed in (np.arange(len(index)) % 3 == 0, np.arange(len(index)) % 10 < 8):
        for unit in ("video", "moment"):
            for query in (index.video_example(1), index.moment_example(1, 0.0, 1.0)):
                hits = index.search([query], unit=unit, allowed=allowed, limit=500).hits
                every = index.search([query], unit=unit, limit=500).hits
                expected = [hit for hit in every if allowed[hit.video_index]]
                spans = [[(h.video_index, h.start, h.end) for h in s] for s in (hits, expected)]
                assert spans[0] == spans[1]
                scores = [[hit.score for hit in s] for s in (hits, expected)]
                assert scores[0] == pytest.approx(scores[1], abs=1e-6)
    assert index.search([index.video_example(1)], allowed=np.zeros(len(index), bool)).hits == ()


def test_similarity_over_time_is_that_of_the_clips(index: SearchIndex) -> None:
    query = index.moment_example(3, 2.0, 3.0)
    curve = index.clip_similarity(4, [query])
    assert [(hit.start, hit.end) for hit in curve] == [
        (0.0, 1.5), (1.5, 3.5), (3.5, 5.5), (5.5, 8.0),
    ]  # fmt: skip
    assert query.clips is not None
    scores = [
        similarity(query.clips, clip, index.table.part_widths)
        for clip in index.table.vectors[4, :8]
    ]
    expected = [max(scores[i : i + 2]) for i in (0, 2, 4, 6)]  # the better of two crops
    assert [hit.score for hit in curve] == pytest.approx(expected, abs=1e-5)


def test_a_moment_without_clips_is_the_nearest_one(index: SearchIndex) -> None:
    query, nearest = index.moment_example(3, 2.9, 3.0), index.moment_example(3, 2.0, 3.0)
    assert np.array_equal(query.clips, nearest.clips)


def test_what_cannot_be_searched_is_an_error(index: SearchIndex, tmp_path: Path) -> None:
    example = index.video_example(0)
    with pytest.raises(SearchError, match="at least one positive"):
        index.search([], [example])
    with pytest.raises(SearchError, match="must be 1 to 100,000, got 0"):
        index.search([example], limit=0)
    with pytest.raises(SearchError, match=r"run/0\.mp4: 5-7 s is outside the video of 6\.00 s"):
        index.moment_example(0, 5.0, 7.0)
    with pytest.raises(SearchError, match=r"begin at 0 s or later and end after that, got 3-3"):
        index.moment_example(0, 3.0, 3.0)
    for unknown in (-1, len(index)):
        with pytest.raises(SearchError, match="videos 0 to 39"):
            index.video_example(unknown)
    with pytest.raises(SearchError, match="either"):
        QueryExample()
    with pytest.raises(SearchError, match="no vectors to search"):
        open_index(tmp_path)


def test_vectors_of_other_videos_are_refused(collection: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("store", "catalog.csv"):
        (folder / name).symlink_to(collection / name)
    table = read_vectors(collection / "vectors")
    assert table.valid is not None
    fewer = slice(0, 10)
    write_vectors(
        type(table)(
            video_ids=table.video_ids[fewer], labels=table.labels[fewer],
            splits=table.splits[fewer], vectors=table.vectors[fewer], valid=table.valid[fewer],
        ),
        folder / "vectors",
    )  # fmt: skip
    with pytest.raises(SearchError, match="not of the videos in its store"):
        open_index(folder)
