"""Means over several splits: their intervals and comparisons."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from clipset.evaluation.results import Predictions, encode_predictions, read_predictions
from clipset.evaluation.statistics import (
    Variance,
    compare_probes,
    compare_values,
    half_width,
    has_enough_groups,
    interval,
    intervals_over_tasks,
    p_value,
    video_variance,
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
    (tmp_path / "file.safetensors").write_bytes(encode_predictions(views))
    again = read_predictions(tmp_path / "file.safetensors")
    assert again.truth.tolist() == list(range(20))
    for row in (ONE, TWO):
        np.testing.assert_array_equal(again.outputs[row], part.outputs[row][:, ::-1])


def draw(ids: range, seed: int) -> Predictions:
    generator = np.random.default_rng(seed)
    chances = generator.random((2, 2, len(ids)))
    return predictions(ids, {ONE: chances[0] < 0.8, TWO: chances[1] < 0.7})


def first_seed(part: Predictions) -> Predictions:
    outputs = {key: outputs[:1] for key, outputs in part.outputs.items()}
    return replace(part, outputs=outputs, seeds=dict.fromkeys(outputs, (0,)))


def test_one_part_is_compared_as_a_table_of_its_own() -> None:
    part = draw(range(200), 0)
    [pooled] = compare_probes(part)
    alone = compare_values(part.values(ONE), part.values(TWO))
    assert pooled.difference == pytest.approx(alone.difference)
    assert pooled.interval == pytest.approx(alone.interval)
    assert pooled.n == 200


def test_the_difference_of_means_is_the_mean_of_differences() -> None:
    parts = [draw(range(50), 1), draw(range(50, 150), 2), draw(range(100, 220), 3)]
    [pooled] = compare_probes(*parts)
    each = [compare_probes(part)[0].difference for part in parts]
    assert pooled.difference == pytest.approx(np.mean(each))
    assert pooled.n == 220


def test_a_video_in_several_splits_is_one_unit_and_counts_no_more_than_once() -> None:
    """Three times the same test videos know no more than once; three times other ones do."""
    part, *others = (first_seed(draw(range(n, n + 120), 4)) for n in (0, 200, 400))
    same = compare_probes(part, part, part)[0].interval
    other = compare_probes(part, *others)[0].interval
    alone = compare_probes(part)[0].interval
    assert same == pytest.approx(alone)
    assert other[1] - other[0] < 0.7 * (alone[1] - alone[0])


def test_seeds_of_several_splits_are_independent() -> None:
    part = draw(range(120), 4)
    (low, high), (alone_low, alone_high) = (
        compare_probes(*[part] * count)[0].interval for count in (3, 1)
    )
    assert high - low < alone_high - alone_low


def test_what_holds_in_every_split_is_found_and_what_is_nothing_is_not() -> None:
    ids = range(100)
    better = {ONE: np.ones((1, 100)) > 0, TWO: np.arange(100)[None] % 4 > 0}
    equal = {ONE: np.arange(100)[None] % 2 > 0, TWO: np.arange(100)[None] % 2 < 1}
    [sure] = compare_probes(*[predictions(ids, better)] * 2)
    [unsure] = compare_probes(*[predictions(ids, equal)] * 2)
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


def draw_values(
    generator: np.random.Generator, seeds: int, deviation: float, num_videos: int = 300
) -> np.ndarray:
    """Correct or not: videos of different difficulty, seeds of different luck; true accuracy .6."""
    easy = generator.choice([0.3, 0.9], num_videos)
    luck = generator.normal(0.0, deviation, (seeds, 1))
    same = generator.random(num_videos)  # most videos fare alike with every seed
    own = generator.random((seeds, num_videos))
    mixed = np.where(generator.random((seeds, num_videos)) < 0.3, own, same)
    return (mixed < easy + luck) * 1.0


@pytest.mark.parametrize("deviation", [0.0, 0.02, 0.04])
@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_intervals_cover_the_truth_for_few_seeds_of_any_deviation(
    seeds: int, deviation: float
) -> None:
    generator = np.random.default_rng(0)
    covered = []
    for _ in range(200):
        values, other = (draw_values(generator, seeds, deviation) for _ in range(2))
        low, high = interval(values)
        gap = compare_values(values, other)
        covered.append((low <= 0.6 <= high, gap.interval[0] <= 0 <= gap.interval[1], gap.p >= 0.05))
    for rate in np.mean(covered, axis=0):
        assert 0.9 <= rate <= 0.995
    assert [each[1] for each in covered] == [each[2] for each in covered]


def test_intervals_cover_the_truth_where_videos_of_a_group_fare_alike() -> None:
    """Twelve groups of 25 videos; with videos as units, half of the intervals would miss."""
    generator = np.random.default_rng(0)
    groups = [str(video // 25) for video in range(300)]
    whole, single = 0, 0
    for _ in range(200):
        easy = np.repeat(generator.uniform(0.3, 0.9, 12), 25)
        values = (generator.random((1, 300)) < easy) * 1.0
        for units in (groups, ()):
            low, high = interval(values, units)
            whole += bool(units) and low <= 0.6 <= high
            single += not units and low <= 0.6 <= high
    assert 0.9 <= whole / 200 <= 0.99
    assert single / 200 < 0.85


def test_groups_count_in_comparisons_and_over_tasks() -> None:
    part = draw(range(120), 5)
    grouped = replace(part, groups=tuple(str(video // 20) for video in range(120)))
    [plain], [own] = compare_probes(part), compare_probes(grouped)
    assert plain.difference == own.difference
    assert plain.interval != own.interval
    assert compare_probes(grouped)[0].interval == pytest.approx(own.interval)
    low, high = intervals_over_tasks([grouped])[ONE]
    assert (low, high) == pytest.approx(interval(part.values(ONE), grouped.groups))


def test_too_few_groups_do_not_widen_an_interval() -> None:
    values = draw(range(60), 6).values(ONE)
    few, enough = ([str(video % count) for video in range(60)] for count in (4, 5))
    assert interval(values, few) == interval(values)
    assert interval(values, enough) != interval(values)


def test_videos_without_a_group_and_a_single_group_are_units_of_their_own() -> None:
    values = draw(range(50), 6).values(ONE)
    assert interval(values, [None] * 50) == interval(values)
    assert interval(values, ["all"] * 50) == interval(values)


def test_the_variance_over_units_is_that_of_a_bootstrap() -> None:
    generator = np.random.default_rng(0)
    values, units = generator.normal(size=40), np.repeat(np.arange(20), 2)
    means = values.reshape(20, 2).mean(axis=1)
    resampled = means[generator.integers(20, size=(20_000, 20))].mean(axis=1)
    found = video_variance([values], [units])
    assert found.dof == pytest.approx(19)
    assert found.value == pytest.approx(resampled.var() * 20 / 19, rel=0.05)


def test_one_source_of_variance_gives_the_t_test() -> None:
    values = np.random.default_rng(0).normal(0.3, 1.0, 15)
    source = Variance(values.var(ddof=1) / 15, 14.0)
    expected = stats.ttest_1samp(values, 0.0)
    assert p_value(values.mean(), [source]) == pytest.approx(expected.pvalue, rel=1e-6)
    low, _ = expected.confidence_interval()
    assert values.mean() - half_width([source]) == pytest.approx(low)


@pytest.mark.parametrize("num_videos", [4, 24, 1000])
def test_a_perfect_score_on_few_videos_is_not_certain(num_videos: int) -> None:
    low, high = interval(np.ones((3, num_videos)))
    assert high == 1.0
    expected = stats.binomtest(num_videos, num_videos).proportion_ci(0.95, "wilson")
    assert low == pytest.approx(expected.low)
    assert interval(np.zeros((3, num_videos))) == (0.0, pytest.approx(1 - low))


def test_more_seeds_and_no_variance_narrow_an_interval() -> None:
    values = np.array([[1.0, 0.0, 1.0, 1.0]])
    assert interval(np.full((3, 4), 0.5)) == (0.5, 0.5)
    assert interval(values.repeat(3, axis=0)) == interval(values)  # seeds that agree add nothing


def test_rows_that_a_split_lacks_are_left_out() -> None:
    whole, less = draw(range(30), 0), predictions(range(30), {TWO: np.ones((1, 30)) > 0})
    assert list(intervals_over_tasks([whole, less])) == [TWO]
    assert compare_probes(whole, less) == []
    found = compare_values(whole.values(ONE), whole.values(TWO))
    assert compare_probes(whole)[0].interval == found.interval


def test_folds_are_independent_trainings() -> None:
    generator = np.random.default_rng(5)
    folds = np.repeat(np.arange(5), 60)
    groups = [str(group) for group in np.repeat(np.arange(10), 30)]  # two in each fold
    covered, widths = [], []
    for _ in range(300):
        easy = 0.6 + generator.normal(0, 0.05, 10).repeat(30) + generator.normal(0, 0.1, 300)
        luck = generator.normal(0, 0.04, (2, 5))[:, folds]
        values = (generator.random((2, 300)) < easy + luck).astype(np.float64)
        low, high = interval(values, groups, [str(fold) for fold in folds])
        covered.append(low <= 0.6 <= high)
        together = interval(values, groups)
        widths.append((high - low, together[1] - together[0]))
    assert 0.92 <= np.mean(covered) <= 0.99
    with_folds, without = np.mean(widths, axis=0)
    assert (
        with_folds < 0.8 * without
    )  # two trainings have one degree of freedom, five times two five


def test_one_fold_is_no_fold() -> None:
    values = (np.random.default_rng(6).random((3, 40)) < 0.7).astype(np.float64)
    assert interval(values, folds=["a"] * 40) == interval(values)
    assert compare_values(values, 1 - values, folds=["a"] * 40) == compare_values(
        values, 1 - values
    )


FIVE_OF_FOUR = [str(video // 4) for video in range(20)]  # groups of four videos
ONE_OF_FOUR = (np.arange(20) % 4 == 0)[None] * 1.0


def test_groups_that_are_alike_by_chance_do_not_make_a_difference_certain() -> None:
    """One video of four is gained in each of five groups: as uncertain as 5 videos of 20."""
    found = compare_values(ONE_OF_FOUR, np.zeros((1, 20)), FIVE_OF_FOUR)
    assert found == compare_values(ONE_OF_FOUR, np.zeros((1, 20)))
    assert 0.005 < found.p < 0.0625
    assert found.mcnemar == 0.0625


def test_groups_that_are_alike_by_chance_do_not_make_a_score_certain() -> None:
    low, high = interval(1 - ONE_OF_FOUR, FIVE_OF_FOUR)
    assert (low, high) == interval(1 - ONE_OF_FOUR)
    assert low < 0.6 < 0.9 < high


@pytest.mark.parametrize("num_videos", [1, 3, 5, 6, 20])
def test_a_gain_of_all_videos_has_the_p_of_mcnemar_and_an_interval_that_agrees(
    num_videos: int,
) -> None:
    found = compare_values(np.ones((1, num_videos)), np.zeros((1, num_videos)))
    assert found.p == found.mcnemar == pytest.approx(min(1.0, 2 * 0.5**num_videos))
    assert found.interval[1] == 1.0
    exact = stats.binomtest(num_videos, num_videos).proportion_ci(0.95, "exact")
    assert found.interval[0] == pytest.approx(2 * exact.low - 1)
    assert (found.interval[0] > 0) == (found.p < 0.05)


def test_the_same_gain_of_every_error_is_not_certain_on_few_videos() -> None:
    errors = np.array([[4.0, 5.0, 6.0]])
    found = compare_values(errors, errors + 2)
    assert found.difference == -2
    assert found.interval[0] < -2
    assert found.interval[1] > 0
    assert found.p == 0.25


def test_the_unit_of_errors_does_not_change_a_test() -> None:
    errors, others = np.array([[4.0, 5.0, 6.0]]), np.array([[6.0, 8.0, 10.0]])
    small = compare_values(errors * 1e-12, others * 1e-12)
    assert small.p == pytest.approx(compare_values(errors, others).p)


def test_seeds_that_are_right_on_other_halves_do_not_make_a_score_certain() -> None:
    values = np.array([[1.0, 0.0] * 5, [0.0, 1.0] * 5])  # every video and every seed: 0.5
    low, high = interval(values)
    assert low < 0.4 < 0.6 < high
    found = compare_values(values, np.zeros((2, 10)))
    assert found.interval[0] < 0.4 < 0.6 < found.interval[1]
    assert found.p == pytest.approx(2 * 0.5**10)


@given(
    values=st.lists(st.tuples(*[st.booleans()] * 2, st.integers(0, 7)), min_size=2, max_size=40),
)
@settings(max_examples=200, deadline=None)
def test_only_equal_predictions_have_an_interval_without_width(
    values: list[tuple[bool, bool, int]],
) -> None:
    ours, baseline = (np.array([[row[side] for row in values]]) * 1.0 for side in (0, 1))
    groups = [str(row[2]) for row in values]
    found = compare_values(ours, baseline, groups)
    low, high = interval(ours, groups)
    assert 0 <= low < high <= 1
    assert low <= ours.mean() <= high
    assert found.interval[0] <= found.difference <= found.interval[1]
    assert (found.interval[0] == found.interval[1]) == np.array_equal(ours, baseline)
    assert found.p > 0
    alone = interval(ours)
    if low > 0 and high < 1 and 0 < ours.mean() < 1:
        assert high - low >= alone[1] - alone[0] - 1e-12  # groups never narrow an interval


def test_two_large_groups_and_a_few_single_videos_are_too_few_groups() -> None:
    values = (np.random.default_rng(0).random((1, 303)) < 0.6) * 1.0
    groups = ["a"] * 150 + ["b"] * 150 + [None] * 3
    assert not has_enough_groups(groups)
    assert interval(values, groups) == interval(values)


def test_groups_of_nearly_one_size_are_counted_as_they_are() -> None:
    assert has_enough_groups([str(group) for group in range(5) for _ in range(18 + group)])
    assert not has_enough_groups([str(group) for group in range(4) for _ in range(20)])
    assert has_enough_groups([None] * 5)
    assert not has_enough_groups([])


@pytest.mark.parametrize("sizes", [[45, 50, 50, 55, 50], [150] * 4 + [5] * 10, [100] + [10] * 19])
def test_intervals_cover_the_truth_for_groups_of_different_sizes(sizes: list[int]) -> None:
    """As many degrees of freedom as groups would cover 87 to 90 % in the last two cases."""
    generator = np.random.default_rng(0)
    group_of = np.repeat(np.arange(len(sizes)), sizes)
    groups = [str(group) for group in group_of]
    covered = 0
    for _ in range(400):
        easy = 0.7 + generator.normal(0, 0.1, len(sizes))[group_of]
        low, high = interval((generator.random((1, len(easy))) < easy) * 1.0, groups)
        covered += low <= 0.7 <= high
    assert 0.92 <= covered / 400 <= 0.985


def test_five_folds_with_one_training_each_cover_other_trainings() -> None:
    """Signers of a fold share its training; with signers as units fewer are covered."""
    generator = np.random.default_rng(0)
    folds, groups = ([str(video // size) for video in range(500)] for size in (100, 50))
    fold_of = np.array(folds, dtype=int)
    covered = []
    for _ in range(400):
        hard = generator.random((1, 500))
        ours, baseline = (
            (hard + generator.normal(0, 0.1, (1, 500)) < 0.7 + luck[fold_of]) * 1.0
            for luck in generator.normal(0, 0.04, (2, 5))
        )
        spans = [compare_values(ours, baseline, groups, names).interval for names in (folds, [])]
        covered.append([low <= 0 <= high for low, high in spans])
    with_folds, without = np.mean(covered, axis=0)
    assert 0.93 <= with_folds <= 0.99
    assert without < 0.91 < with_folds - 0.03


def test_two_folds_with_one_training_each_say_nothing_of_other_trainings() -> None:
    values = draw(range(100), 7).values(ONE)[:1]
    groups, folds = ([str(video // size) for video in range(100)] for size in (10, 50))
    assert interval(values, groups, folds) == interval(values, groups)
