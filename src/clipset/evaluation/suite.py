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
from clipset.evaluation.statistics import MIN_GROUPS, compare_probes, interval
from clipset.files import write_together
from clipset.probes.base import ProbeSetup, Selection, predict_videos
from clipset.probes.config import EvaluateConfig, ProbeKey, ProbeName
from clipset.probes.registry import PROBES, make_probe, probe_key
from clipset.probes.task import EvaluationTask
from clipset.progress import bar, log
from clipset.representation.encode import check_width
from clipset.training.checkpoint import ScaleModel

TIME_COURSES = ("course_knn", "scale_course_knn", "ordered", "scale_ordered")


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
        records = to_mapping([replace(result, **(facts or {})) for result in self.results])
        retrieval = {}
        if self.retrieval is not None:
            retrieval[path.with_name("retrieval.json")] = encode_json(to_mapping(self.retrieval))
        write_together(
            {
                **retrieval,
                path.with_name("predictions.safetensors"): encode_predictions(self.predictions),
                path.with_name("comparisons.json"): encode_json(to_mapping(self.comparisons)),
                path: encode_json(records),
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRun:
    """The test predictions of a probe, one for each seed, and its settings."""

    outputs: list[Float[Tensor, "M C"]]
    seeds: tuple[int, ...]
    selection: Selection
    labels: str | None = None
    """how many training labels were used, if not all"""

    @property
    def settings(self) -> dict[str, Any]:
        """The selected settings, for the record."""
        settings = asdict(self.selection.settings)
        return settings if self.labels is None else settings | {"labels": self.labels}


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
    if 1 < num_groups < MIN_GROUPS:
        log(
            f"the test videos are of {num_groups} groups only: intervals are over videos and say "
            f"nothing about other groups"
        )
    names = [
        name
        for name in (config.probes if probes is None else probes)
        if model is not None or probe_key(name).features == "backbone"
    ]
    if not names:
        raise ProbeError("all probes need a trained model; give one, or other probes")
    models = [] if model is None else [_checked_copy(m, task) for m in (model, *more_models)]
    seeds = tuple(range(seed, seed + config.num_seeds))
    results: list[ProbeResult] = []
    left_out: list[ProbeName] = []
    runs: dict[ProbeKey, ProbeRun] = {}
    scores: ScoredPredictions | None = None
    ordered_weights: dict[int, float] = {}
    with bar("probing", len(names), "probes") as advance:
        for name in names:
            began, key = time.perf_counter(), probe_key(name)
            if deadline is not None and began > deadline and results and PROBES[name][1].is_seeded:
                left_out.append(name)
                advance()
                continue
            own_task = select_clips(task, config, name)
            runs[key] = _run_probe(name, own_task, models, config, seeds, ordered_weights)
            scores = score_predictions(task, runs[key].outputs)
            result = _make_result(key, task, runs[key], scores, time.perf_counter() - began)
            num_pretrainings = len(models) if result.is_scale else None
            results.append(replace(result, num_pretrainings=num_pretrainings))
            advance(note=f"{key.features} {key.probe} {results[-1].value:.3f}")
    assert scores is not None  # there is at least one probe
    predictions = Predictions(
        ids=task.test.ids,
        classes=task.classes,
        truth=scores.truth,
        seeds={key: run.seeds for key, run in runs.items()},
        outputs={key: torch.stack(run.outputs).numpy() for key, run in runs.items()},
        groups=task.test.groups,
    )
    comparisons = compare_probes(predictions)
    return SuiteResult(
        results=results,
        comparisons=comparisons,
        predictions=predictions,
        left_out=tuple(left_out),
    )


def select_clips(task: EvaluationTask, config: EvaluateConfig, name: ProbeName) -> EvaluationTask:
    """The task with the clips of the settings; clips in order stay the regular ones."""
    random = task.train.random
    if config.training.train_clips == "all":
        random = task.train.train_on_all_clips().random
    if config.test_clips == "all" and name not in TIME_COURSES:
        task = task.predict_from_all_clips()
    return replace(task, train=replace(task.train, random=random))


def _checked_copy(model: ScaleModel, task: EvaluationTask) -> ScaleModel:
    """A copy that probes may change, of a model for the backbone of the task."""
    try:
        check_width(model.encoder, task.train.random.read(slice(0, 1)))
    except StoreError as error:
        raise ProbeError(str(error)) from None
    return copy.deepcopy(model)


def _run_probe(
    name: ProbeName,
    task: EvaluationTask,
    models: Sequence[ScaleModel],
    config: EvaluateConfig,
    seeds: tuple[int, ...],
    ordered_weights: dict[int, float],
) -> ProbeRun:
    """One probe; each seed has its own search if it has its own model, or its own labels."""
    model = models[0] if models else None
    has_own_model = len(models) > 1 and probe_key(name).features == "scale"
    if has_own_model:
        seeds = tuple(range(seeds[0], seeds[0] + len(models)))
    tasks, labels = [task] * len(seeds), None
    if config.label_fraction is not None:
        tasks = _label_tasks(task, config, seeds)
        labels = f"{len(tasks[-1].train)} of {len(task.train)} training labels"
    if not has_own_model and tasks[0] is tasks[-1]:
        run = _search_and_fit(name, tasks[0], model, config, seeds, ordered_weights)
        return replace(run, labels=labels)
    own_models = models if has_own_model else [model] * len(seeds)
    runs = [
        _search_and_fit(name, few, own_model, config, (seed,), ordered_weights)
        for few, own_model, seed in zip(tasks, own_models, seeds, strict=True)
    ]
    return ProbeRun(
        outputs=[run.outputs[0] for run in runs],
        seeds=seeds,
        selection=runs[0].selection,
        labels=labels,
    )


def _label_tasks(
    task: EvaluationTask, config: EvaluateConfig, seeds: tuple[int, ...]
) -> list[EvaluationTask]:
    """The task with a fraction of the labels: the first, or those that each seed draws."""
    assert config.label_fraction is not None
    if task.is_regression:
        raise ProbeError("label_fraction needs classes; this catalog has targets")
    if config.label_selection == "first":
        return [task.subsample_labels(config.label_fraction, None)] * len(seeds)
    return [task.subsample_labels(config.label_fraction, seed) for seed in seeds]


def _search_and_fit(
    name: ProbeName,
    task: EvaluationTask,
    model: ScaleModel | None,
    config: EvaluateConfig,
    seeds: tuple[int, ...],
    ordered_weights: dict[int, float],
) -> ProbeRun:
    """Select settings on validation videos, then train on all training videos with each seed."""
    mean, std = 0.0, 1.0
    if task.train.targets is not None:
        mean = float(task.train.targets.mean())
        std = max(float(task.train.targets.std(correction=0)), 1e-12)
        task = replace(
            task,
            train=task.train.standardise_targets(mean, std),
            validation=task.validation and task.validation.standardise_targets(mean, std),
        )
    setup = ProbeSetup(
        task=task, model=model, config=config, seed=seeds[0], ordered_weights=ordered_weights
    )
    probe = make_probe(name, setup)
    selection, every = probe.search(), torch.arange(len(task.train))
    seeds = seeds if probe.is_seeded else seeds[:1]
    outputs = [
        predict_videos(
            probe.fit(selection, every, seed), task.test.clips, is_regression=task.is_regression
        )
        for seed in seeds
    ]
    if task.is_regression:
        outputs = [targets * std + mean for targets in outputs]
    return ProbeRun(outputs=outputs, seeds=seeds, selection=selection)


def _make_result(
    key: ProbeKey,
    task: EvaluationTask,
    run: ProbeRun,
    scores: ScoredPredictions,
    seconds: float,
) -> ProbeResult:
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
    )
