"""Bootstrap intervals and paired tests of scores, also of means over several tasks.

Videos and seeds are drawn with replacement. A video that several tasks test is one unit: it is
drawn for all of them, or for none.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int

from clipset.evaluation.results import Comparison, Predictions, ProbeResult
from clipset.probes.config import ProbeKey

MEAN = "mean"  # the task of a mean over several
RESAMPLES = 5000
CHUNK = 500  # resamples in memory
BASELINES = {  # what each SCALE probe is compared with
    ProbeKey("scale", "knn"): ProbeKey("backbone", "knn"),
    ProbeKey("scale", "linear"): ProbeKey("backbone", "linear"),
    ProbeKey("scale", "attentive"): ProbeKey("backbone", "attentive"),
    ProbeKey("scale", "finetune"): ProbeKey("backbone", "transformer"),
}
ORDERED = ProbeKey("backbone", "ordered")  # what every probe is compared with


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedTest:
    """The difference of two scores, its 95 % interval and p; McNemar's p for single seeds."""

    difference: float
    interval: tuple[float, float]
    p: float
    mcnemar: float | None = None


def interval(
    values: Bool[np.ndarray, "S M"] | Float[np.ndarray, "S M"], generator: np.random.Generator
) -> tuple[float, float]:
    """95 % interval of the mean (accuracy, error) over videos and seeds."""
    [means] = _bootstrap([values.astype(np.float64)], [np.arange(values.shape[1])], generator)
    return _quantiles(_mean_over_seeds(means, generator))


def compare_values(
    values: Float[np.ndarray, "S M"],
    baseline: Float[np.ndarray, "Z M"],
    generator: np.random.Generator,
) -> PairedTest:
    """Paired bootstrap: the same videos are drawn for both, seeds for each on its own."""
    test = _paired_bootstrap([(values, baseline)], [np.arange(values.shape[1])], generator)
    if len(values) == len(baseline) == 1 and np.isin(values, (0.0, 1.0)).all():
        return replace(test, mcnemar=mcnemar(values[0], baseline[0]))
    return test


def mcnemar(values: Float[np.ndarray, " M"], baseline: Float[np.ndarray, " M"]) -> float:
    """The exact two-sided p of McNemar's test on the videos that only one classified correctly."""
    gained = int(((values > 0) & (baseline <= 0)).sum())
    lost = int(((values <= 0) & (baseline > 0)).sum())
    trials = gained + lost
    ways = sum(math.comb(trials, count) for count in range(min(gained, lost) + 1))
    return min(1.0, float(2 * ways / 2**trials))


def compare_probes(predictions: Predictions, *, seed: int = 0) -> list[Comparison]:
    """Each SCALE probe against its baseline, and every probe against the clips in order."""
    return [
        _comparison(
            key,
            baseline,
            compare_values(
                predictions.values(key), predictions.values(baseline), np.random.default_rng(seed)
            ),
            metric=predictions.metric,
            n=len(predictions.ids),
        )
        for key, baseline in list_pairs(list(predictions.outputs))
    ]


def compare_over_tasks(tasks: Sequence[Predictions], *, seed: int = 0) -> list[Comparison]:
    """The same comparisons of means over several tasks."""
    index, n = _video_indices(tasks)
    return [
        _comparison(
            key,
            baseline,
            _paired_bootstrap(
                [(task.values(key), task.values(baseline)) for task in tasks],
                index,
                np.random.default_rng(seed),
            ),
            metric=tasks[0].metric,
            n=n,
        )
        for key, baseline in list_pairs(common_probes(tasks))
    ]


def intervals_over_tasks(
    tasks: Sequence[Predictions], *, seed: int = 0
) -> dict[ProbeKey, tuple[float, float]]:
    """The 95 % interval of each probe's mean over the tasks."""
    index, _ = _video_indices(tasks)
    intervals = {}
    for key in common_probes(tasks):
        generator = np.random.default_rng(seed)
        means = _bootstrap([task.values(key) for task in tasks], index, generator)
        intervals[key] = _quantiles(_mean_over_tasks(means, generator))
    return intervals


def join_results(tasks: Mapping[str, Sequence[ProbeResult]]) -> list[ProbeResult]:
    """The results of different tasks in one list, without per-class results."""
    return [
        replace(result, task=name, per_class={}, confusion=None)
        for name, results in tasks.items()
        for result in results
    ]


def mean_results(
    tasks: Mapping[str, Sequence[ProbeResult]],
    intervals: Mapping[ProbeKey, tuple[float, float]],
) -> list[ProbeResult]:
    """The mean of each probe that all tasks have, with the intervals of `intervals_over_tasks`."""
    by_probe: dict[ProbeKey, dict[str, ProbeResult]] = {}
    for name, results in tasks.items():
        for result in results:
            by_probe.setdefault(result.key, {})[name] = result
    means = [mean_result(own) for own in by_probe.values() if len(own) == len(tasks)]
    return [replace(mean, interval=intervals.get(mean.key, mean.interval)) for mean in means]


def mean_result(tasks: Mapping[str, ProbeResult]) -> ProbeResult:
    """The mean of one probe over tasks.

    The ends of the interval are means, too: right if the errors of the tasks are fully correlated,
    and otherwise too wide. `intervals_over_tasks` needs the predictions and is exact.
    """
    results = list(tasks.values())
    levels = [result.chance_level for result in results if result.chance_level is not None]
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
        chance_level=statistics.mean(levels) if len(levels) == len(results) else None,
        learning_rate=None,
        epochs=None,
        per_class={},
        confusion=None,
        task_values={name: result.value for name, result in tasks.items()},
    )


def common_probes(tasks: Sequence[Predictions]) -> list[ProbeKey]:
    """The probes that every task has."""
    return [key for key in tasks[0].outputs if all(key in task.outputs for task in tasks)]


def list_pairs(keys: list[ProbeKey]) -> list[tuple[ProbeKey, ProbeKey]]:
    """The pairs of probe and baseline that are compared."""
    pairs = [(key, BASELINES[key]) for key in keys if BASELINES.get(key) in keys]
    return pairs + [(key, ORDERED) for key in keys if ORDERED in keys and key != ORDERED]


def _comparison(
    key: ProbeKey, baseline: ProbeKey, test: PairedTest, *, metric: str, n: int
) -> Comparison:
    return Comparison(
        features=key.features,
        probe=key.probe,
        baseline_features=baseline.features,
        baseline_probe=baseline.probe,
        metric=metric,
        difference=test.difference,
        interval=test.interval,
        p=test.p,
        mcnemar=test.mcnemar,
        n=n,
    )


def _video_indices(tasks: Sequence[Predictions]) -> tuple[list[Int[np.ndarray, " M"]], int]:
    """The index of each task's videos among those of all tasks, and the number of these."""
    ids = dict.fromkeys(id for task in tasks for id in task.ids)
    index = {id: number for number, id in enumerate(ids)}
    return [np.array([index[id] for id in task.ids]) for task in tasks], len(index)


def _bootstrap(
    values: Sequence[Float[np.ndarray, "_ _"]],
    index: Sequence[Int[np.ndarray, " _"]],
    generator: np.random.Generator,
) -> list[Float[np.ndarray, "R _"]]:
    """For each task, the mean of each row of its `values` (K, M) over videos drawn R times.

    `index` numbers a task's videos among those of all tasks; the draws are the same for all rows.
    """
    num_videos = 1 + max(int(videos.max()) for videos in index)
    columns = [np.ascontiguousarray(rows.T, dtype=np.float64) for rows in values]  # (M, K)
    means: list[list[np.ndarray]] = [[] for _ in values]
    for _ in range(RESAMPLES // CHUNK):
        drawn = generator.integers(num_videos, size=(CHUNK, num_videos))
        drawn += num_videos * np.arange(CHUNK)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=drawn.size).reshape(drawn.shape)
        for task, videos in enumerate(index):
            weights = counts.take(videos, axis=1).astype(np.float64)  # (CHUNK, M)
            total = weights.sum(axis=1, keepdims=True).clip(1.0)
            means[task].append(weights @ columns[task] / total)
    return [np.concatenate(chunks) for chunks in means]


def _paired_bootstrap(
    pairs: Sequence[tuple[Float[np.ndarray, "_ _"], Float[np.ndarray, "_ _"]]],
    index: Sequence[Int[np.ndarray, " _"]],
    generator: np.random.Generator,
) -> PairedTest:
    """The difference of the means over the tasks, from values and baseline of each task."""
    means = _bootstrap([np.concatenate(pair) for pair in pairs], index, generator)
    seeds = [len(values) for values, _ in pairs]
    ours = [mean[:, :count] for mean, count in zip(means, seeds, strict=True)]
    theirs = [mean[:, count:] for mean, count in zip(means, seeds, strict=True)]
    gaps = _mean_over_tasks(ours, generator) - _mean_over_tasks(theirs, generator)  # (R,)
    tail = min((gaps <= 0).sum(), (gaps >= 0).sum())
    return PairedTest(
        difference=float(np.mean([values.mean() - other.mean() for values, other in pairs])),
        interval=_quantiles(gaps),
        p=min(1.0, 2.0 * float(tail + 1) / (RESAMPLES + 1)),
    )


def _mean_over_seeds(
    means: Float[np.ndarray, "R S"], generator: np.random.Generator
) -> Float[np.ndarray, " R"]:
    """The mean over seeds drawn with replacement, in each resample anew."""
    drawn = generator.integers(means.shape[1], size=means.shape)
    mean: Float[np.ndarray, " R"] = np.take_along_axis(means, drawn, axis=1).mean(axis=1)
    return mean


def _mean_over_tasks(
    means: Sequence[Float[np.ndarray, "R _"]], generator: np.random.Generator
) -> Float[np.ndarray, " R"]:
    mean: Float[np.ndarray, " R"] = np.mean(
        [_mean_over_seeds(of_task, generator) for of_task in means], axis=0
    )
    return mean


def _quantiles(draws: Float[np.ndarray, " R"]) -> tuple[float, float]:
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(low), float(high)
