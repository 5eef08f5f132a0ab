"""Scores, intervals and paired tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binomtest

from clipset.errors import ProbeError
from clipset.evaluation.metrics import r_squared, top_k
from clipset.evaluation.results import (
    Confusion,
    Predictions,
    encode_predictions,
    read_predictions,
)
from clipset.evaluation.statistics import compare_probes, compare_values, interval, mcnemar
from clipset.probes.config import ProbeKey


def test_the_interval_of_an_error_covers_the_truth_about_95_times_of_100() -> None:
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(100):
        low, high = interval(rng.exponential(2.0, (1, 200)))
        covered += low <= 2.0 <= high
    assert 0.88 <= covered / 100 <= 1.0


def test_the_interval_of_a_difference_covers_the_truth_about_95_times_of_100() -> None:
    rng = np.random.default_rng(2)
    covered = wrongly_sure = 0
    for _ in range(100):
        hard = rng.random(150)
        one, other = ((rng.random((1, 150)) + hard < 1.2).astype(float) for _ in range(2))
        found = compare_values(one, other)
        covered += found.interval[0] <= 0.0 <= found.interval[1]
        wrongly_sure += found.p < 0.05
    assert covered >= 88
    assert wrongly_sure <= 12


def test_a_pair_is_told_apart_where_two_intervals_overlap() -> None:
    """The same videos are easy for both rows: only the paired test sees the small gain."""
    rng = np.random.default_rng(0)
    other = (rng.random((1, 400)) < 0.5).astype(float)
    one = other.copy()
    one[0, np.flatnonzero(other[0] == 0)[:14]] = 1.0
    assert interval(one)[0] < interval(other)[1]
    found = compare_values(one, other)
    assert found.difference == pytest.approx(14 / 400)
    assert found.interval[0] > 0
    assert found.p < 0.01
    assert found.mcnemar is not None
    assert found.mcnemar < 0.001


def test_equal_rows_do_not_differ() -> None:
    rng = np.random.default_rng(0)
    values = (rng.random((2, 50)) < 0.5).astype(float)
    found = compare_values(values[:1], values[:1])
    assert (found.difference, found.interval, found.p, found.mcnemar) == (0.0, (0.0, 0.0), 1.0, 1.0)
    assert compare_values(values, values[:1]).mcnemar is None


def test_mcnemar_is_the_exact_binomial_test_of_the_videos_in_dispute() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        one, other = (rng.integers(2, size=40).astype(float) for _ in range(2))
        gained, lost = (
            int(((one == 1) & (other == 0)).sum()),
            int(((one == 0) & (other == 1)).sum()),
        )
        expected = binomtest(gained, gained + lost).pvalue
        assert mcnemar(one, other) == pytest.approx(expected)
    many = np.ones(3000)
    assert mcnemar(many, np.zeros(3000)) < 1e-100


def test_top_5_counts_a_tie_against_the_probe() -> None:
    even = np.full((2, 8), 1 / 8, dtype=np.float32)
    assert not top_k(even, np.array([0, 7]), 5).any()
    ranked = np.arange(8, dtype=np.float32)[None].repeat(2, axis=0)
    assert top_k(ranked, np.array([3, 2]), 5).tolist() == [True, False]


def test_every_class_counts_the_same_in_the_mean_class_accuracy() -> None:
    counts = ((90, 0, 0), (5, 5, 0), (0, 0, 0))
    assert Confusion(classes=tuple("abc"), counts=counts).mean_class_accuracy() == 0.75


def test_r2_is_0_for_the_mean_1_for_the_truth_and_unknown_without_variance() -> None:
    truth = np.array([1.0, 2.0, 6.0])
    assert r_squared(np.stack([truth, truth], axis=1)) == 1.0
    assert r_squared(np.stack([truth, np.full(3, 3.0)], axis=1)) == pytest.approx(0.0)
    assert r_squared(np.ones((3, 2))) is None


def some_predictions() -> Predictions:
    rng = np.random.default_rng(0)
    rows = [
        ProbeKey("backbone", "knn"), ProbeKey("scale", "knn"), ProbeKey("backbone", "ordered")
    ]  # fmt: skip
    return Predictions(
        ids=("a/ä", "b", "c"),
        classes=("x", "y"),
        truth=np.array([0, 1, 1]),
        seeds=dict.fromkeys(rows, (0, 1)),
        outputs={row: rng.random((2, 3, 2)).astype(np.float32) for row in rows},
        groups=("one", None, "one"),
    )


def test_predictions_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    before = some_predictions()
    (tmp_path / "p.safetensors").write_bytes(encode_predictions(before))
    after = read_predictions(tmp_path / "p.safetensors")
    assert (after.ids, after.classes, after.seeds) == (before.ids, before.classes, before.seeds)
    assert after.groups == before.groups
    assert np.array_equal(after.truth, before.truth)
    for row, outputs in before.outputs.items():
        assert np.array_equal(after.outputs[row], outputs)


def test_a_file_without_predictions_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p.safetensors").write_bytes(b"nothing of the kind")
    with pytest.raises(ProbeError, match="holds no predictions"):
        read_predictions(tmp_path / "p.safetensors")


def test_scale_rows_are_compared_with_their_baseline_and_all_with_the_clips_in_order() -> None:
    pairs = [
        ((c.features, c.probe), (c.baseline_features, c.baseline_probe))
        for c in compare_probes(some_predictions())
    ]
    assert pairs == [
        (("scale", "knn"), ("backbone", "knn")),
        (("backbone", "knn"), ("backbone", "ordered")),
        (("scale", "knn"), ("backbone", "ordered")),
    ]
