"""Means over several splits: their intervals and comparisons."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from clipset.evaluation.results import Predictions, read_predictions, write_predictions
from clipset.evaluation.statistics import (
    compare_over_tasks,
    compare_probes,
    compare_values,
    intervals_over_tasks,
)
from clipset.probes.config import ProbeKey

ONE = ProbeKey("scale", "linear")
TWO = ProbeKey("backbone", "linear")


def predictions(ids: range, right: dict[ProbeKey, np.ndarray]) -> Predictions:
    """Two classes; class 1 is the truth, and each row is right where it is said to be."""
    outputs = {row: np.stack([1.0 - each, each * 1.0], axis=-1) for row, each in right.items()}
    return Predictions(
        ids=tuple(map(str, ids)),
        classes=("a", "b"),
        truth=np.ones(len(ids), dtype=np.int64),
        seeds={row: tuple(range(len(each))) for row, each in right.items()},
        outputs=outputs,
    )


def test_what_is_read_is_what_was_written_also_of_a_view(tmp_path: Path) -> None:
    part = draw(range(20), 0)
    pairs = np.stack([np.arange(20), -np.ones(20, dtype=np.int64)], axis=1)
    flipped = {row: each[:, ::-1] for row, each in part.outputs.items()}
    views = replace(part, truth=pairs[:, 0], outputs=flipped)
    write_predictions(views, tmp_path / "file.safetensors")
    again = read_predictions(tmp_path / "file.safetensors")
    assert again.truth.tolist() == list(range(20))
    for row in (ONE, TWO):
        np.testing.assert_array_equal(again.outputs[row], part.outputs[row][:, ::-1])


def draw(ids: range, seed: int) -> Predictions:
    generator = np.random.default_rng(seed)
    chances = generator.random((2, 2, len(ids)))
    return predictions(ids, {ONE: chances[0] < 0.8, TWO: chances[1] < 0.7})


def test_one_part_is_compared_as_a_table_of_its_own() -> None:
    part = draw(range(200), 0)
    [alone], [pooled] = compare_probes(part), compare_over_tasks([part])
    assert pooled.difference == pytest.approx(alone.difference)
    assert pooled.interval == pytest.approx(alone.interval, abs=0.01)
    assert pooled.n == alone.n == 200


def test_the_difference_of_means_is_the_mean_of_differences() -> None:
    parts = [draw(range(50), 1), draw(range(50, 150), 2), draw(range(100, 220), 3)]
    [pooled] = compare_over_tasks(parts)
    each = [compare_probes(part)[0].difference for part in parts]
    assert pooled.difference == pytest.approx(np.mean(each))
    assert pooled.n == 220


def test_a_video_in_several_splits_is_one_unit_and_counts_no_more_than_once() -> None:
    """Three times the same test videos know no more than once; three times other ones do."""
    part = draw(range(120), 4)
    same = compare_over_tasks([part, part, part])[0].interval
    other = compare_over_tasks([part, draw(range(200, 320), 4), draw(range(400, 520), 4)])[
        0
    ].interval
    alone = compare_over_tasks([part])[0].interval
    widths = [high - low for low, high in (alone, same, other)]
    assert widths[1] > 0.75 * widths[0]  # a little less: seeds are drawn for each split
    assert widths[2] < 0.7 * widths[0]


def test_what_holds_in_every_split_is_found_and_what_is_nothing_is_not() -> None:
    ids = range(100)
    better = {ONE: np.ones((1, 100)) > 0, TWO: np.arange(100)[None] % 4 > 0}
    equal = {ONE: np.arange(100)[None] % 2 > 0, TWO: np.arange(100)[None] % 2 < 1}
    [sure] = compare_over_tasks([predictions(ids, better)] * 2)
    [unsure] = compare_over_tasks([predictions(ids, equal)] * 2)
    assert sure.difference == pytest.approx(0.25)
    assert sure.p < 0.001
    assert unsure.p > 0.5


def test_the_interval_of_a_mean_covers_the_truth_as_often_as_it_says() -> None:
    """Three splits of 80 videos that overlap; true accuracy .8."""
    covered = 0
    for seed in range(40):
        generator = np.random.default_rng(seed)
        right = generator.random((1, 160)) < 0.8
        parts = [
            predictions(range(low, low + 80), {ONE: right[:, low : low + 80]})
            for low in (0, 40, 80)
        ]
        low, high = intervals_over_tasks(parts)[ONE]
        covered += low <= 0.8 <= high
    assert covered >= 34  # 38 are expected


def test_rows_that_a_split_lacks_are_left_out() -> None:
    whole, less = draw(range(30), 0), predictions(range(30), {TWO: np.ones((1, 30)) > 0})
    assert list(intervals_over_tasks([whole, less])) == [TWO]
    assert compare_over_tasks([whole, less]) == []
    found = compare_values(whole.values(ONE), whole.values(TWO), np.random.default_rng(0))
    assert compare_probes(whole)[0].interval == found.interval
