"""Labelling a run: what is written, what is learned, what is shown next."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.labelling.conftest import CLASSES, NUM_VIDEOS

from clipset.errors import LabelError, StoreError
from clipset.labelling import LabelLoop
from clipset.labelling.score import score_correct
from clipset.labelling.vectors import CompactVectors, open_components


def truth(video_index: int) -> str:
    return CLASSES[video_index % len(CLASSES)]


def label_from_queue(loop: LabelLoop, count: int) -> None:
    for _ in range(count):
        [item] = loop.queue(1)
        loop.add(item.video_index, truth(item.video_index))


def test_twenty_labels_from_the_queue_teach_four_classes(run_folder: Path) -> None:
    loop = LabelLoop(run_folder)
    assert loop.score().score is None
    assert set(loop.predictions().labels) == {None}
    label_from_queue(loop, 20)
    state, predictions = loop.score(), loop.predictions()
    correct = np.mean([label == truth(i) for i, label in enumerate(predictions.labels)])
    assert correct > 0.95
    assert predictions.classes == CLASSES
    assert (state.num_labels, state.num_held_out, state.num_trained) == (20, 4, 16)
    assert state.score is not None
    assert 0 <= state.low <= state.score <= state.high <= 1
    assert [point.num_labels for point in state.curve] == [5, 10, 15, 20]
    assert state.seconds < 1


def test_every_fifth_label_is_held_out_and_never_trained_on(run_folder: Path) -> None:
    loop = LabelLoop(run_folder)
    label_from_queue(loop, 15)
    assert loop.held_out == list(loop.labels)[4::5]
    before = loop.predictions()
    loop.add(loop.held_out[0], "run")  # another label of a held-out video changes only the score
    assert loop.predictions() == before
    assert len(loop.held_out) == 3


def test_the_queue_says_why_and_shows_no_video_twice(run_folder: Path) -> None:
    loop = LabelLoop(run_folder)
    assert {item.reason for item in loop.queue(4)} == {"typical of videos without a label"}
    assert loop.queue(5)[4].reason == "drawn at random, for the score"
    label_from_queue(loop, 12)
    loop.skip(7)
    items = loop.queue(12)
    videos = [item.video_index for item in items]
    assert len(set(videos)) == len(videos) == 12
    assert not set(videos) & {*loop.labels, 7}
    starts = ("uncertain: ", "typical of uncertain videos", "unlike anything", "drawn at random")
    assert all(item.reason.startswith(starts) for item in items)
    assert all(item.suggestion in CLASSES and 0 < item.probability <= 1 for item in items)
    assert items == loop.queue(12)


def test_the_queue_ends_when_all_is_labelled(run_folder: Path) -> None:
    loop = LabelLoop(run_folder)
    for video in range(NUM_VIDEOS - 2):
        loop.add(video, truth(video))
    assert sorted(item.video_index for item in loop.queue(9)) == [NUM_VIDEOS - 2, NUM_VIDEOS - 1]
    loop.skip(NUM_VIDEOS - 2)
    loop.add(NUM_VIDEOS - 1, "wave")
    assert loop.queue(9) == []


def test_labels_spans_and_skips_come_back_and_can_be_undone(run_folder: Path) -> None:
    loop = LabelLoop(run_folder)
    loop.add(3, "wave")
    loop.add(3, "jump", 1.0, 2.5)
    loop.skip(5)
    loop.remove(3)
    loop.undo()
    loop.close()
    again = LabelLoop(run_folder)
    assert (again.labels, again.skipped, again.classes) == ({3: "wave"}, [5], ("jump", "wave"))
    [span] = again.spans
    assert (span.video_index, span.start, span.end, span.label) == (3, 1.0, 2.5, "jump")
    again.remove(3, 1.0, 2.5)
    for _ in range(4):
        again.undo()
    assert (again.labels, again.spans, again.skipped) == ({}, [], [])
    with pytest.raises(LabelError, match="nothing to undo"):
        again.undo()


def test_what_cannot_be_is_refused_and_not_written(run_folder: Path) -> None:
    loop = LabelLoop(run_folder)
    with pytest.raises(LabelError, match="from 0 to 119, got 120"):
        loop.add(NUM_VIDEOS, "run")
    with pytest.raises(LabelError, match=r"has 8\.00 s"):
        loop.add(0, "run", 7.0, 9.0)
    with pytest.raises(LabelError, match="no label to remove"):
        loop.remove(0)
    assert loop.log.num_events == 0
    with pytest.raises(StoreError, match="holds no vectors"):
        LabelLoop(run_folder / "nothing")


def test_components_are_computed_once(run_folder: Path) -> None:
    first = LabelLoop(run_folder).components
    file = run_folder / "labels" / "components.safetensors"
    written = file.stat().st_mtime_ns
    second = LabelLoop(run_folder).components
    assert file.stat().st_mtime_ns == written
    np.testing.assert_array_equal(first.values, second.values)
    file.write_bytes(b"damaged")
    np.testing.assert_allclose(LabelLoop(run_folder).components.values, first.values)


def test_labels_are_read_and_written_while_the_vectors_are_prepared(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, may_end = threading.Event(), threading.Event()

    def open_slowly(*arguments: Any) -> CompactVectors:
        began.set()
        assert may_end.wait(60)
        return open_components(*arguments)

    monkeypatch.setattr("clipset.labelling.loop.open_components", open_slowly)
    loop = LabelLoop(run_folder)
    with ThreadPoolExecutor(2) as executor:
        queue = executor.submit(loop.queue, 1)
        assert began.wait(60)
        try:
            executor.submit(loop.add, 3, "wave").result(60)
            assert loop.labels == {3: "wave"}
        finally:
            may_end.set()
        assert [item.video_index for item in queue.result()] != [3]


def test_wilsons_interval() -> None:
    """The values of Newcombe (1998), table I, for 81 of 263 and 0 of 20."""
    many, none = score_correct(300, 81, 263), score_correct(30, 0, 20)
    assert (many.low, many.high) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert (none.low, none.high) == pytest.approx((0.0, 0.1611), abs=5e-5)
