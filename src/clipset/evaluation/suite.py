"""All probes on one store and one model, as records for results.json."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clipset.config import encode_json, to_mapping, write_together
from clipset.errors import ProbeError, StoreError
from clipset.evaluation.config import EvaluateConfig, ProbeName
from clipset.evaluation.job import Job, Outcome, default_shape
from clipset.evaluation.metrics import TestScores, score_predictions
from clipset.evaluation.results import (
    Comparison,
    Predictions,
    ProbeKey,
    ProbeResult,
    encode_predictions,
)
from clipset.evaluation.rows import run_row
from clipset.evaluation.statistics import compare_probes, interval
from clipset.evaluation.task import EvaluationTask, LabelledVideos, keep_few
from clipset.progress import bar
from clipset.representation.encode import refuse_others
from clipset.training.checkpoint import ScaleModel

ROW_OF: dict[ProbeName, ProbeKey] = {
    "knn": ProbeKey("backbone", "knn"),
    "scale_knn": ProbeKey("scale", "knn"),
    "linear": ProbeKey("backbone", "linear"),
    "scale_linear": ProbeKey("scale", "linear"),
    "mlp": ProbeKey("backbone", "mlp"),
    "transformer": ProbeKey("backbone", "transformer"),
    "finetune": ProbeKey("scale", "finetune"),
    "ordered": ProbeKey("backbone", "ordered"),
    "attentive": ProbeKey("backbone", "attentive"),
    "scale_attentive": ProbeKey("scale", "attentive"),
}
ROWS: tuple[ProbeKey, ...] = tuple(ROW_OF[name] for name in EvaluateConfig().probes)
ALL_ROWS: tuple[ProbeKey, ...] = tuple(ROW_OF.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteResult:
    """The table, whether its rows really differ, and what every row predicted."""

    results: list[ProbeResult]
    comparisons: list[Comparison]
    predictions: Predictions

    def write(self, results: Path, facts: Mapping[str, Any] | None = None) -> None:
        """Write the records to a file, `comparisons.json` and `predictions.safetensors` beside.

        `facts` are put into every record.
        """
        records = to_mapping([replace(result, **(facts or {})) for result in self.results])
        write_together(
            {
                results.with_name("predictions.safetensors"): encode_predictions(self.predictions),
                results.with_name("comparisons.json"): encode_json(to_mapping(self.comparisons)),
                results: encode_json(records),
            }
        )


def run_probes(
    task: EvaluationTask,
    model: ScaleModel | None,
    config: EvaluateConfig | None = None,
    *,
    seed: int = 0,
    rows: tuple[ProbeKey, ...] | None = None,
) -> list[ProbeResult]:
    """Run the rows of the table; without a model, only those on the backbone's features."""
    return run_suite(task, model, config, seed=seed, rows=rows).results


def run_suite(
    task: EvaluationTask,
    model: ScaleModel | None,
    config: EvaluateConfig | None = None,
    *,
    seed: int = 0,
    rows: tuple[ProbeKey, ...] | None = None,
) -> SuiteResult:
    """Run the rows of the table and compare them."""
    config = config or EvaluateConfig()
    rows = tuple(ROW_OF[name] for name in config.probes) if rows is None else rows
    rows = tuple(row for row in rows if row.features == "backbone" or model is not None)
    if not rows:
        raise ProbeError("all rows asked for need a trained model; give one, or ask for others")
    _refuse_other_backbone(task, model)
    in_order, at_all = _as_seen(task, config)
    seeds = tuple(range(seed, seed + config.num_seeds))
    results: list[ProbeResult] = []
    outputs: dict[ProbeKey, Outcome] = {}
    scores: TestScores | None = None
    with bar("probing", len(rows), "probes") as advance:
        for row in rows:
            began = time.perf_counter()
            seen = in_order if row.probe == "ordered" else at_all
            outcome = _run(seen, model, config, row, seeds)
            result, scores = _result(row, task, outcome, began)
            results.append(result)
            outputs[row] = outcome
            advance(note=f"{row.features} {row.probe} {result.value:.3f}")
    assert scores is not None  # there is at least one probe
    predictions = Predictions(
        ids=task.test.ids,
        classes=task.classes,
        truth=scores.truth,
        seeds={row: outcome.seeds for row, outcome in outputs.items()},
        outputs={row: torch.stack(each.predictions).numpy() for row, each in outputs.items()},
    )
    return SuiteResult(
        results=results, comparisons=compare_probes(predictions, seed=seed), predictions=predictions
    )


def _as_seen(task: EvaluationTask, config: EvaluateConfig) -> tuple[EvaluationTask, EvaluationTask]:
    """The task with the clips that probes see: for clips in order, and for all other rows."""
    more = task.judged_by_all() if config.test_clips == "all" else task
    if config.training.train_clips == "random":
        return task, more
    random = task.train.with_all_clips().random
    first, second = (
        replace(each, train=replace(each.train, random=random)) for each in (task, more)
    )
    return first, second


def _refuse_other_backbone(task: EvaluationTask, model: ScaleModel | None) -> None:
    if model is None:
        return
    try:
        refuse_others(model.encoder, task.train.random)
    except StoreError as error:
        raise ProbeError(str(error)) from None


def _run(
    task: EvaluationTask,
    model: ScaleModel | None,
    config: EvaluateConfig,
    row: ProbeKey,
    seeds: tuple[int, ...],
) -> Outcome:
    """One row; with few labels, once for each seed's own choice of them."""
    if config.label_fraction is None:
        return _run_once(task, model, config, row, seeds)
    if not task.classes:
        raise ProbeError("label_fraction needs classes; this catalog has targets")
    found = []
    for seed in seeds:
        few = keep_few(task, config.label_fraction, seed)
        found.append(_run_once(few, model, config, row, (seed,)))
    labels = f"{len(few.train)} of {len(task.train)} training labels"
    return replace(
        found[0],
        predictions=[each.predictions[0] for each in found],
        seeds=seeds,
        settings=found[0].settings | {"labels": labels},
    )


def _run_once(
    task: EvaluationTask,
    model: ScaleModel | None,
    config: EvaluateConfig,
    row: ProbeKey,
    seeds: tuple[int, ...],
) -> Outcome:
    middle, spread = 0.0, 1.0
    if task.train.targets is not None:
        middle = float(task.train.targets.mean())
        spread = max(float(task.train.targets.std(correction=0)), 1e-12)
        validation = task.validation
        task = replace(
            task,
            train=_standardised(task.train, middle, spread),
            validation=validation and _standardised(validation, middle, spread),
        )
    job = Job(
        task=task,
        trained=model,
        model=default_shape(task.train.random) if model is None else model.config,
        config=config,
        seeds=seeds,
    )
    outcome = run_row(job, row)
    if task.train.targets is None:
        return outcome
    return replace(outcome, predictions=[each * spread + middle for each in outcome.predictions])


def _standardised(videos: LabelledVideos, middle: float, spread: float) -> LabelledVideos:
    if videos.targets is None:
        return videos
    return replace(videos, targets=(videos.targets - middle) / spread)


def _result(
    key: ProbeKey, task: EvaluationTask, outcome: Outcome, began: float
) -> tuple[ProbeResult, TestScores]:
    """The result of a probe, and its scores beside the ground truth."""
    scores = score_predictions(task, outcome.predictions)
    result = ProbeResult(
        features=key.features,
        probe=key.probe,
        metric=scores.metric,
        value=float(scores.values.mean()),
        interval=interval(scores.values, np.random.default_rng(outcome.seeds[0])),
        n=scores.values.shape[1],
        seeds=outcome.seeds,
        selected_on=outcome.selected_on,
        split=task.split,
        chance_level=scores.chance_level,
        learning_rate=outcome.rate,
        epochs=outcome.epochs,
        seconds=time.perf_counter() - began,
        per_class=scores.per_class,
        confusion=scores.confusion,
        metrics=scores.metrics,
        settings=outcome.settings,
        num_candidates=outcome.tried,
    )
    return result, scores
