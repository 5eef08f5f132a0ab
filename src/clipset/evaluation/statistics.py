"""Intervals and paired tests of scores, also of means over several tasks.

A score varies with the test videos and with the seeds of training. Both variances are estimated and
both estimates are uncertain, that of two or three seeds most of all: each source has an interval of
its own (Student's t), and the squares of their half-widths add up (Howe 1974; Zou and Donner 2008).
`benchmarks/coverage.py` measures how often the intervals cover the truth.

Videos of one group are one unit, and so are the videos of a fold with a single training, and a
video that several tasks test. The variance over videos is estimated from these units and from the
videos alone; the wider interval counts, as a few units may be alike by chance.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import bdtr, ndtri, stdtrit

from clipset.evaluation.results import Comparison, Predictions, ProbeResult
from clipset.probes.config import ProbeKey

MEAN = "mean"  # the task of a mean over several
CONFIDENCE = 0.95
MIN_GROUPS = 5  # with fewer, an interval over groups says nothing: its t is above 3
ROUNDING = 1e-9  # of a score or difference: a smaller half-width is 0
SUBTRACTED = 0.7  # of the interaction: covers 93 to 97 % with 2, 3 and 5 seeds
BASELINES = {  # what each SCALE probe is compared with
    ProbeKey("scale", "knn"): ProbeKey("backbone", "knn"),
    ProbeKey("scale", "course_knn"): ProbeKey("backbone", "course_knn"),
    ProbeKey("scale", "linear"): ProbeKey("backbone", "linear"),
    ProbeKey("scale", "attentive"): ProbeKey("backbone", "attentive"),
    ProbeKey("scale", "finetune"): ProbeKey("backbone", "transformer"),
}
ORDERED = ProbeKey("backbone", "ordered")  # what every probe is compared with

Values: TypeAlias = Bool[np.ndarray, "_ _"] | Float[np.ndarray, "_ _"]  # of seeds and videos
Groups: TypeAlias = Sequence[str | None]  # of each video; None: a group of its own
Units: TypeAlias = list[Int[np.ndarray, " _"]]  # for each task: the unit of each video
Levels: TypeAlias = list[Units]  # videos as units, then groups or folds if there are enough


@dataclass(frozen=True, slots=True)
class Variance:
    """The estimated variance of a score from one source, and its degrees of freedom."""

    value: float
    dof: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedTest:
    """The difference of two scores, its 95 % interval and p; McNemar's p for single seeds."""

    difference: float
    interval: tuple[float, float]
    p: float
    mcnemar: float | None = None


def interval(values: Values, groups: Groups = (), folds: Sequence[str] = ()) -> tuple[float, float]:
    """95 % interval of the mean (accuracy, error) over videos, or whole groups, and seeds.

    `folds` is the fold of each video in a cross-validation: each fold has trainings of its own.
    """
    return _interval_of_mean([values], _levels_of_videos([values], groups, folds), folds)


def compare_values(
    values: Float[np.ndarray, "S M"],
    baseline: Float[np.ndarray, "Z M"],
    groups: Groups = (),
    folds: Sequence[str] = (),
) -> PairedTest:
    """The paired difference on the same videos; seeds of both are independent."""
    levels = _levels_of_videos([values, baseline], groups, folds)
    return _paired_test([(values, baseline)], levels, folds)


def half_width(sources: Sequence[Variance], confidence: float = CONFIDENCE) -> float:
    """Half the width of an interval: the root of the sum of the sources' squares."""
    sources = [source for source in sources if source.value > 0 and source.dof > 0]
    variances, dofs = ([getattr(source, name) for source in sources] for name in ("value", "dof"))
    return math.sqrt(np.dot(variances, stdtrit(dofs, (1 + confidence) / 2) ** 2))


def p_value(difference: float, sources: Sequence[Variance]) -> float:
    """The p of a difference: 1 minus the confidence of the interval that ends at 0."""
    if difference == 0:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(30):  # bisection
        p = (low + high) / 2
        low, high = (p, high) if half_width(sources, 1 - p) > abs(difference) else (low, p)
    return high if low > 0 else 0.0


def mcnemar(values: Float[np.ndarray, " M"], baseline: Float[np.ndarray, " M"]) -> float:
    """The exact two-sided p of McNemar's test on the videos that only one classified correctly."""
    num_gained = int(((values > 0) & (baseline <= 0)).sum())
    num_lost = int(((values <= 0) & (baseline > 0)).sum())
    return min(1.0, 2 * float(bdtr(min(num_gained, num_lost), num_gained + num_lost, 0.5)))


def compare_probes(*tasks: Predictions) -> list[Comparison]:
    """Each SCALE probe against its baseline, and every probe against the clips in order.

    Scores are means over the tasks.
    """
    levels, comparisons = _levels_of_tasks(tasks), []
    for key, baseline in list_pairs(common_probes(tasks)):
        test = _paired_test([(task.values(key), task.values(baseline)) for task in tasks], levels)
        comparisons.append(
            Comparison(
                features=key.features,
                probe=key.probe,
                baseline_features=baseline.features,
                baseline_probe=baseline.probe,
                metric=tasks[0].metric,
                n=len({video_id for task in tasks for video_id in task.ids}),
                **asdict(test),
            )
        )
    return comparisons


def intervals_over_tasks(tasks: Sequence[Predictions]) -> dict[ProbeKey, tuple[float, float]]:
    """The 95 % interval of each probe's mean over the tasks."""
    levels = _levels_of_tasks(tasks)
    return {
        probe_key: _interval_of_mean([task.values(probe_key) for task in tasks], levels)
        for probe_key in common_probes(tasks)
    }


def join_results(tasks: Mapping[str, Sequence[ProbeResult]]) -> list[ProbeResult]:
    """The results of different tasks in one list, without per-class results."""
    return [
        replace(result, task=task_name, per_class={}, confusion=None)
        for task_name, task_results in tasks.items()
        for result in task_results
    ]


def mean_results(
    tasks: Mapping[str, Sequence[ProbeResult]],
    intervals: Mapping[ProbeKey, tuple[float, float]],
) -> list[ProbeResult]:
    """The mean of each probe that all tasks have, with the intervals of `intervals_over_tasks`."""
    by_probe: dict[ProbeKey, dict[str, ProbeResult]] = {}
    for task_name, task_results in tasks.items():
        for result in task_results:
            by_probe.setdefault(result.key, {})[task_name] = result
    probe_means = [mean_result(own) for own in by_probe.values() if len(own) == len(tasks)]
    return [replace(mean, interval=intervals.get(mean.key, mean.interval)) for mean in probe_means]


def mean_result(tasks: Mapping[str, ProbeResult]) -> ProbeResult:
    """The mean of one probe over tasks.

    The ends of the interval are means, too: right if the errors of the tasks are fully correlated,
    and otherwise too wide. `intervals_over_tasks` needs the predictions and is exact.
    """
    results = list(tasks.values())
    chance_levels = [result.chance_level for result in results if result.chance_level is not None]
    return replace(
        results[0],
        task=MEAN,
        value=statistics.mean(result.value for result in results),
        interval=(
            statistics.mean(result.interval[0] for result in results),
            statistics.mean(result.interval[1] for result in results),
        ),
        n=sum(result.n for result in results),
        seconds=sum(result.seconds for result in results),
        chance_level=statistics.mean(chance_levels) if len(chance_levels) == len(results) else None,
        learning_rate=None,
        epochs=None,
        per_class={},
        confusion=None,
        task_values={task_name: result.value for task_name, result in tasks.items()},
    )


def common_probes(tasks: Sequence[Predictions]) -> list[ProbeKey]:
    """The probes that every task has."""
    return [key for key in tasks[0].outputs if all(key in task.outputs for task in tasks)]


def list_pairs(keys: list[ProbeKey]) -> list[tuple[ProbeKey, ProbeKey]]:
    """The pairs of probe and baseline that are compared."""
    baseline_pairs = [(key, BASELINES[key]) for key in keys if BASELINES.get(key) in keys]
    return baseline_pairs + [(key, ORDERED) for key in keys if ORDERED in keys and key != ORDERED]


def has_enough_groups(groups: Groups) -> bool:
    """Whether an interval over groups is possible: they are worth five of one size, or more.

    Groups of n videos are worth (sum n)² / sum n²; a few large ones decide, whatever is beside.
    """
    num_ungrouped = sum(name is None for name in groups)
    sizes = [*Counter(name for name in groups if name is not None).values(), *[1] * num_ungrouped]
    return bool(sizes) and round(sum(sizes) ** 2 / sum(n**2 for n in sizes)) >= MIN_GROUPS


def _units_of_groups(groups: Groups) -> Int[np.ndarray, " M"]:
    """The index of each video's group."""
    group_names = [(index,) if name is None else name for index, name in enumerate(groups)]
    unit_by_group = {name: unit_index for unit_index, name in enumerate(dict.fromkeys(group_names))}
    return np.array([unit_by_group[name] for name in group_names])


def _levels_of_videos(sides: Sequence[Values], groups: Groups, folds: Sequence[str]) -> Levels:
    """The units of one task's videos; whole folds where a fold has a single training.

    Such a fold's groups share the training, and only other folds show how trainings differ.
    """
    is_single = min(len(values) for values in sides) == 1
    levels = [[np.arange(sides[0].shape[1])]]
    for names in (folds if is_single else (), groups):
        if has_enough_groups(names):
            return [*levels, [_units_of_groups(names)]]
    return levels


def _levels_of_tasks(tasks: Sequence[Predictions]) -> Levels:
    """The same for several tasks, with one numbering; a video of several tasks is one unit."""
    group_by_id: dict[str, str | None] = {}
    for task in tasks:
        group_by_id |= dict(zip(task.ids, task.groups or [None] * len(task.ids), strict=True))
    numberings, groups = [np.arange(len(group_by_id))], list(group_by_id.values())
    if has_enough_groups(groups):
        numberings.append(_units_of_groups(groups))
    unit_by_id = [dict(zip(group_by_id, units, strict=True)) for units in numberings]
    return [
        [np.array([unit_of[id] for id in task.ids]) for task in tasks] for unit_of in unit_by_id
    ]


def _interval_of_mean(
    tasks: Sequence[Values], levels: Levels, folds: Sequence[str] = ()
) -> tuple[float, float]:
    """The interval of the mean over tasks."""
    video_means = [values.mean(axis=0) for values in tasks]
    mean_value = float(np.mean([task_mean.mean() for task_mean in video_means]))
    seed_source = _seed_source([tasks], levels[-1], folds)
    half = half_width([_video_source(video_means, levels), seed_source])
    is_accuracy = _is_accuracy(tasks)
    if is_accuracy and half <= ROUNDING * mean_value:
        return _interval_of_alike(mean_value, _count_units(levels))
    upper_bound = 1.0 if is_accuracy else math.inf
    return max(mean_value - half, 0.0), min(mean_value + half, upper_bound)


def _interval_of_alike(accuracy: float, num_units: int) -> tuple[float, float]:
    """Wilson's interval where all videos are right, or none, or all fare alike: no variance."""
    squared_quantile = float(ndtri((1 + CONFIDENCE) / 2)) ** 2
    margin = squared_quantile / (num_units + squared_quantile)  # may be right or wrong
    low = (1 - margin) * accuracy
    return low, low + margin


def _paired_test(
    pairs: Sequence[tuple[Values, Values]], levels: Levels, folds: Sequence[str] = ()
) -> PairedTest:
    """The difference of the means over the tasks, from values and baseline of each task."""
    video_gaps = [values.mean(axis=0) - baseline.mean(axis=0) for values, baseline in pairs]
    difference = float(np.mean([task_gap.mean() for task_gap in video_gaps]))
    ours, baselines = zip(*pairs, strict=True)
    seed_source = _seed_source([ours, baselines], levels[-1], folds)
    sources = [_video_source(video_gaps, levels), seed_source]
    if not any(task_gap.any() for task_gap in video_gaps):
        sources = []  # the same predictions
    half, p = half_width(sources), p_value(difference, sources)
    if half <= ROUNDING * abs(difference):
        half, p = _test_of_alike(difference, _count_units(levels))
    is_accuracy = _is_accuracy([*ours, *baselines])
    upper_bound = 1.0 if is_accuracy else math.inf
    is_single = len(pairs) == len(ours[0]) == len(baselines[0]) == 1  # one task, one seed each
    return PairedTest(
        difference=difference,
        interval=(max(difference - half, -upper_bound), min(difference + half, upper_bound)),
        p=p,
        mcnemar=mcnemar(ours[0][0], baselines[0][0]) if is_single and is_accuracy else None,
    )


def _test_of_alike(difference: float, num_units: int) -> tuple[float, float]:
    """Half-width and p where all videos differ alike: no variance. The p is McNemar's.

    The fraction of videos that differ alike has the interval of Clopper and Pearson; the others may
    differ as much the other way.
    """
    if difference == 0:
        return 0.0, 1.0
    smallest_fraction = ((1 - CONFIDENCE) / 2) ** (1 / num_units)
    return 2 * (1 - smallest_fraction) * abs(difference), min(1.0, 2 * 0.5**num_units)


def _count_units(levels: Levels) -> int:
    """The number of groups or folds, or of videos if these are too few."""
    return len(np.unique(np.concatenate(levels[-1])))


def _video_source(tasks: Sequence[Float[np.ndarray, " _"]], levels: Levels) -> Variance:
    """The variance over videos or over their groups, whichever has the wider interval."""
    variances = [video_variance(tasks, units) for units in levels]
    return max(variances, key=lambda variance: half_width([variance]))


def video_variance(tasks: Sequence[Float[np.ndarray, " _"]], units: Units) -> Variance:
    """The variance of the mean over tasks of the mean over their videos, from whole units.

    It is that of a bootstrap over units, times U / (U - 1), with U - 1 degrees of freedom. U is the
    number of units, or, if their sizes differ, that of equal units of the same worth.
    """
    scaled_deviations = [(values - values.mean()) / (len(values) * len(tasks)) for values in tasks]
    unit_of = np.concatenate(units)
    unit_deviations = np.bincount(unit_of, np.concatenate(scaled_deviations))
    video_weights = [np.full(len(values), 1 / (len(values) * len(tasks))) for values in tasks]
    unit_weights = np.bincount(unit_of, np.concatenate(video_weights))
    if np.count_nonzero(unit_weights) == 1:
        return Variance(0.0, 0.0)  # unknown
    dof = max(1 / float((unit_weights**2).sum()) - 1, 1.0)
    return Variance(float((unit_deviations**2).sum()) * (dof + 1) / dof, dof)


def _seed_source(
    sides: Sequence[Sequence[Values]], units: Units, folds: Sequence[str] = ()
) -> Variance:
    """The variance from the seeds, of a mean over tasks or the difference of two such means.

    The seeds of tasks and sides are independent, and their variances are taken to be alike: the
    degrees of freedom add up.
    """
    seed_variances = [
        _seed_variance_of_folds(values, of_task, folds)
        for tasks in sides
        for values, of_task in zip(tasks, units, strict=True)
    ]
    mean_variance = sum(variance.value for variance in seed_variances) / len(units) ** 2
    return Variance(mean_variance, sum((variance.dof for variance in seed_variances), 0.0))


def _seed_variance_of_folds(
    values: Values, units: Int[np.ndarray, " M"], folds: Sequence[str]
) -> Variance:
    """The variance from the seeds of all folds, which are independent trainings."""
    fold_indices = [np.flatnonzero(np.array(folds) == fold) for fold in dict.fromkeys(folds)]
    fold_indices = fold_indices or [np.arange(len(units))]
    fold_variances = [_seed_variance(values[:, part], units[part]) for part in fold_indices]
    fold_weights = [len(part) / len(units) for part in fold_indices]
    value = sum(w**2 * source.value for w, source in zip(fold_weights, fold_variances, strict=True))
    return Variance(value, sum((source.dof for source in fold_variances), 0.0))


def _seed_variance(values: Values, units: Int[np.ndarray, " M"]) -> Variance:
    """The variance of the mean over seeds that is due to the choice of seeds.

    The scores of the seeds differ also by chance on each video. This interaction is part of the
    variance over videos, too, and is subtracted, but not all of it: a variance with few degrees of
    freedom would too often be estimated as 0.
    """
    num_seeds = len(values)
    if num_seeds == 1:
        return Variance(0.0, 0.0)  # unknown
    seed_scores = values.mean(axis=1)  # (S,)
    residuals = values - values.mean(axis=0) - (seed_scores - seed_scores.mean())[:, None]  # (S, M)
    interaction = sum(video_variance([row], [units]).value for row in residuals)
    interaction /= num_seeds * (num_seeds - 1)
    seed_variance = float(seed_scores.var(ddof=1)) / num_seeds
    return Variance(max(seed_variance - SUBTRACTED * interaction, 0.0), float(num_seeds - 1))


def _is_accuracy(tasks: Sequence[Values]) -> bool:
    """Whether all values are 0 or 1, not errors."""
    return all(bool(np.isin(values, (0, 1)).all()) for values in tasks)
