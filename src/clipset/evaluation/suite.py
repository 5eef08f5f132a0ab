"""Run probes on one task, score them on its test videos and compare them."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from clipset.config import encode_json, to_mapping
from clipset.errors import ProbeError, StoreError
from clipset.evaluation.metrics import ScoredPredictions, score_predictions
from clipset.evaluation.results import (
    Comparison,
    Predictions,
    ProbeResult,
    RetrievalResult,
    encode_predictions,
)
from clipset.evaluation.statistics import compare_probes, has_enough_groups, interval
from clipset.files import write_together
from clipset.probes.base import ProbeSetup, Selection, predict_videos
from clipset.probes.config import EvaluateConfig, ProbeKey, ProbeName
from clipset.probes.registry import PROBES, make_probe, probe_key
from clipset.probes.task import EvaluationTask
from clipset.progress import bar, log
from clipset.representation.encode import check_width
from clipset.text import counted
from clipset.training.checkpoint import ScaleModel


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteResult:
    """The results of all probes, their comparisons and their predictions."""

    results: list[ProbeResult]
    comparisons: list[Comparison]
    predictions: Predictions
    left_out: tuple[ProbeName, ...] = ()
    """probes that the deadline left no time for"""
    retrieval: list[RetrievalResult] | None = None
    """of `score_retrieval`, if it was called"""

    def write(self, path: Path, facts: Mapping[str, Any] | None = None) -> None:
        """Write the results, with `comparisons.json` and `predictions.safetensors` beside them.

        `facts` are fields of every result, such as `ssl_split`.
        """
        result_records = to_mapping([replace(result, **(facts or {})) for result in self.results])
        retrieval = {}
        if self.retrieval is not None:
            retrieval[path.with_name("retrieval.json")] = encode_json(to_mapping(self.retrieval))
        write_together(
            {
                **retrieval,
                path.with_name("predictions.safetensors"): encode_predictions(self.predictions),
                path.with_name("comparisons.json"): encode_json(to_mapping(self.comparisons)),
                path: encode_json(result_records),
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRun:
    """The test predictions of a probe, one for each seed, and its selected settings."""

    outputs: list[Float[Tensor, "M C"]]
    seeds: tuple[int, ...]
    selection: Selection
    settings: dict[str, Any]
    """the selected settings, for the record"""


def run_suite(
    task: EvaluationTask,
    model: ScaleModel | None,
    config: EvaluateConfig | None = None,
    *,
    seed: int = 0,
    probes: Sequence[ProbeName] | None = None,
    more_models: Sequence[ScaleModel] = (),
    deadline: float | None = None,
) -> SuiteResult:
    """Run probes (by default those of the settings) and compare them.

    Without a model, only those on the backbone's features. With `more_models`, of pre-trainings
    with other seeds, SCALE probes are repeated once for each model, not `num_seeds` times. The
    models themselves are not changed. After the `deadline` (`time.perf_counter`), only probes
    without a training are run.
    """
    config = config or EvaluateConfig()
    num_groups = len(set(task.test.groups) - {None})
    if num_groups and not has_enough_groups(task.test.groups):
        log(
            f"the test videos are of {counted(num_groups, 'group')}, too few or of too unequal "
            f"size: intervals are over videos and say nothing about other groups"
        )
    names = config.probes if probes is None else probes
    names = [n for n in names if model is not None or probe_key(n).features == "backbone"]
    if not names:
        raise ProbeError("all probes need a trained model; give one, or other probes")
    model_copies = [] if model is None else [_checked_copy(m, task) for m in (model, *more_models)]
    seeds = tuple(range(seed, seed + config.num_seeds))
    results: list[ProbeResult] = []
    left_out: list[ProbeName] = []
    probe_runs: dict[ProbeKey, ProbeRun] = {}
    test_scores: ScoredPredictions | None = None
    ordered_weights: dict[int | None, float] = {}
    with bar("probing", len(names), "probes") as advance:
        for name in names:
            began, key = time.perf_counter(), probe_key(name)
            if deadline is not None and began > deadline and results and PROBES[name][1].is_seeded:
                left_out.append(name)
                advance()
                continue
            probe_task = select_clips(task, config, name)
            run = _run_probe(name, probe_task, model_copies, config, seeds, ordered_weights)
            probe_runs[key], test_scores = run, score_predictions(task, run.outputs)
            seconds = time.perf_counter() - began
            results.append(_make_result(key, task, run, test_scores, seconds, len(model_copies)))
            advance(note=f"{key.features} {key.probe} {results[-1].value:.3f}")
    assert test_scores is not None  # there is at least one probe
    predictions = Predictions(
        ids=task.test.ids,
        classes=task.classes,
        truth=test_scores.truth,
        seeds={key: run.seeds for key, run in probe_runs.items()},
        outputs={key: torch.stack(run.outputs).numpy() for key, run in probe_runs.items()},
        groups=task.test.groups,
    )
    return SuiteResult(
        results=results,
        comparisons=compare_probes(predictions),
        predictions=predictions,
        left_out=tuple(left_out),
    )


def select_clips(task: EvaluationTask, config: EvaluateConfig, name: ProbeName) -> EvaluationTask:
    """The task with the clips of the settings; clips in order stay the regular ones."""
    train = task.train.train_on_all_clips() if config.training.train_clips == "all" else task.train
    if config.test_clips == "all" and not PROBES[name][1].has_course:
        task = task.predict_from_all_clips()
    return replace(task, train=replace(task.train, random=train.random))


def _checked_copy(model: ScaleModel, task: EvaluationTask) -> ScaleModel:
    """A copy that probes may change, of a model for the backbone of the task."""
    try:
        check_width(model.encoder, task.train.random.read(slice(0, 1)))
    except StoreError as error:
        raise ProbeError(str(error)) from None
    return copy.deepcopy(model)


def _run_probe(
    name: ProbeName, task: EvaluationTask, models: Sequence[ScaleModel], config: EvaluateConfig,
    seeds: tuple[int, ...], ordered_weights: dict[int | None, float],
) -> ProbeRun:  # fmt: skip
    """One probe; each seed has its own search if it has its own model, or its own labels."""
    has_own_models = len(models) > 1 and probe_key(name).features == "scale"
    if has_own_models:
        seeds = tuple(range(seeds[0], seeds[0] + len(models)))
    seed_models = models if has_own_models else [models[0] if models else None] * len(seeds)
    seed_tasks = _label_tasks(task, config, seeds)
    draws_labels = config.label_fraction is not None and config.label_selection == "random"
    probe_setups = [
        ProbeSetup(
            task=seed_task,
            model=model,
            config=config,
            seed=seed,
            labels_seed=seed if draws_labels else None,
            ordered_weights=ordered_weights,
        )
        for seed_task, model, seed in zip(seed_tasks, seed_models, seeds, strict=True)
    ]
    if has_own_models or seed_tasks[0] is not seed_tasks[-1]:
        seed_runs = [_search_and_fit(name, setup, (setup.seed,)) for setup in probe_setups]
        seed_outputs = [probe_run.outputs[0] for probe_run in seed_runs]
        probe_run = replace(seed_runs[0], outputs=seed_outputs, seeds=seeds)
    else:
        probe_run = _search_and_fit(name, probe_setups[0], seeds)
    if config.label_fraction is not None:
        labels = f"{len(seed_tasks[-1].train)} of {len(task.train)} training labels"
        probe_run = replace(probe_run, settings=probe_run.settings | {"labels": labels})
    return probe_run


def _label_tasks(
    task: EvaluationTask, config: EvaluateConfig, seeds: tuple[int, ...]
) -> list[EvaluationTask]:
    """The task with a fraction of the labels: the first, or those that each seed draws."""
    if config.label_fraction is None:
        return [task] * len(seeds)
    if task.is_regression:
        raise ProbeError("label_fraction needs classes; this catalog has targets")
    if config.label_selection == "first":
        return [task.subsample_labels(config.label_fraction, None)] * len(seeds)
    return [task.subsample_labels(config.label_fraction, seed) for seed in seeds]


def _search_and_fit(probe_name: ProbeName, setup: ProbeSetup, seeds: tuple[int, ...]) -> ProbeRun:
    """Select settings on validation videos, then train on all training videos with each seed."""
    task, target_mean, std = setup.task, 0.0, 1.0
    if task.train.targets is not None:
        target_mean = float(task.train.targets.mean())
        std = max(float(task.train.targets.std(correction=0)), 1e-12)
        task = replace(
            task,
            train=task.train.standardise_targets(target_mean, std),
            validation=task.validation and task.validation.standardise_targets(target_mean, std),
        )
    probe = make_probe(probe_name, replace(setup, task=task))
    selection, all_videos = probe.search(), torch.arange(len(task.train))
    seeds = seeds if probe.is_seeded else seeds[:1]
    classifiers = (probe.fit(selection, all_videos, seed) for seed in seeds)
    test_outputs = [
        predict_videos(classifier, task.test.clips, is_regression=task.is_regression)
        for classifier in classifiers
    ]
    if task.is_regression:
        test_outputs = [seed_targets * std + target_mean for seed_targets in test_outputs]
    settings = asdict(selection.settings)
    return ProbeRun(outputs=test_outputs, seeds=seeds, selection=selection, settings=settings)


def _make_result(
    key: ProbeKey, task: EvaluationTask, run: ProbeRun, scores: ScoredPredictions, seconds: float,
    num_models: int,
) -> ProbeResult:  # fmt: skip
    return ProbeResult(
        features=key.features,
        probe=key.probe,
        metric=scores.metric,
        value=float(scores.values.mean()),
        interval=interval(scores.values, task.test.groups),
        n=scores.values.shape[1],
        seeds=run.seeds,
        selected_on=run.selection.selected_on,
        split=task.split,
        chance_level=scores.chance_level,
        learning_rate=run.selection.learning_rate,
        epochs=run.selection.epochs,
        seconds=seconds,
        per_class=scores.per_class,
        confusion=scores.confusion,
        metrics=scores.metrics,
        settings=run.settings,
        num_candidates=run.selection.num_candidates,
        num_pretrainings=num_models if key.features == "scale" else None,
    )
