"""Compare trainings over folds of whole groups: one command, resumable, results as files.

    python results/study.py results/studies/defaults_folds.toml --data DATA --out DIR
    python results/study.py ... --list         # finished and pending units, and the time left
    python results/study.py ... --summarise    # the summary of the finished units

A study file names datasets, backbones and variants (settings of a recipe). Each unit is one
training: dataset × backbone × variant × fold × seed. Every group is in the test split of one fold;
hyper-parameters are selected inside the training groups. Finished units are skipped, so the same
command resumes a study, and two processes may work on one folder.

    DIR/features/         one store for each dataset and extraction (--features: of several studies)
    DIR/speed/            measured speed of each variant, for budgets in seconds
    DIR/baselines/        probes without a model; variants that do not change them share them
    DIR/units/DATASET/BACKBONE/VARIANT/FOLD/SEED/
        unit.json         settings, steps, seconds, commit, date, machine
        model/
        labels-100/       results.json, comparisons.json, predictions.safetensors
    DIR/summary.json, summary.md
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from summary import write_summary
from units import Unit, plan_units, read_study

from clipset.config import fingerprint, read_json, to_mapping
from clipset.errors import ClipsetError, LockError
from clipset.evaluation.results import ProbeResult, read_predictions, read_records
from clipset.evaluation.statistics import compare_probes
from clipset.evaluation.suite import SuiteResult, run_suite
from clipset.features.extract import extract, plan_store
from clipset.features.store import FeatureStore, check_store, open_store
from clipset.files import write_json
from clipset.probes.config import EvaluateConfig
from clipset.probes.registry import probe_key
from clipset.probes.task import EvaluationTask, make_task
from clipset.process.locks import exclusive
from clipset.progress import log
from clipset.report.wording import format_duration
from clipset.runs import environment
from clipset.training.checkpoint import ScaleModel, read_card
from clipset.training.config import PretrainConfig
from clipset.training.pretrain import open_clip_source, pretrain, ssl_videos

MEASURED_STEPS = 24  # of a training to measure the speed
NO_EFFECT_ON_BASELINES = (
    "preset", "seeds", "epochs", "batch_size", "batch_from", "mask_ratio", "mask_rule",
    "learning_rate", "weight_decay", "max_grad_norm", "precision",
    "validate_every",
)  # fmt: skip  # settings of pre-training that probes without a model do not depend on


def extract_features(units: Sequence[Unit], device: str) -> None:
    """Extract the pending videos of every store."""
    for path in dict.fromkeys(unit.store for unit in units):
        own = [unit for unit in units if unit.store == path]
        videos = {video.id: video for unit in own for video in unit.catalog}
        catalog, config = own[0].catalog.only(videos.values()), own[0].recipe.extract
        began, plan = time.perf_counter(), plan_store(config, catalog.videos, path)
        is_new = not (path / "manifest.json").is_file()
        if is_new or not check_store(path, plan[0], catalog).is_complete:
            extract(catalog, path, config, device=device, plan=plan)
            seconds = time.perf_counter() - began
            record = {"videos": len(catalog), "seconds": seconds, **run_facts()}
            write_json(path.with_name(f"{path.name}.json"), record)


def measure_speed(unit: Unit, device: str) -> float:
    """Seconds of a training step of the unit's variant, measured once and recorded."""
    path = unit.out / "speed" / f"{'-'.join(unit.row)}.json"
    config = unit.recipe.pretrain
    settings = fingerprint(config, unit.store.name)
    if path.is_file() and (record := read_json(path))["fingerprint"] == settings:
        return float(record["seconds_per_step"])
    log(f"{' '.join(unit.row)}: measuring the speed of training")
    store = open_store(unit.store, unit.catalog)
    num_steps = steps_per_epoch(store, config)
    with tempfile.TemporaryDirectory() as folder:
        epochs = max(3, -(-MEASURED_STEPS // num_steps))
        short = replace(config, epochs=epochs, validate_every=0)
        pretrain(store, Path(folder), short, device=device)
        seconds = epoch_seconds(Path(folder))[1:]  # the first one is slower
    speed = min(seconds) / num_steps
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {"fingerprint": settings, "seconds_per_step": speed, "epoch_seconds": seconds}
    write_json(path, record | run_facts())
    return speed


def steps_per_epoch(store: FeatureStore, config: PretrainConfig) -> int:
    """Optimiser steps of an epoch."""
    videos = ssl_videos(store, config.ssl_split)
    return open_clip_source(store, videos, config, in_memory=False).batches_in_epoch(config)


def apply_budget(unit: Unit, store: FeatureStore, device: str) -> PretrainConfig:
    """The settings of pre-training with the epochs of the budget."""
    config, budget = unit.recipe.pretrain, unit.budget
    num_steps = steps_per_epoch(store, config)
    target = budget.steps
    if budget.seconds is not None:
        target = round(budget.seconds / measure_speed(unit, device))
    if target is not None:
        config = replace(config, epochs=max(1, round(target / num_steps)))
    return config


def run_unit(unit: Unit, device: str) -> None:
    """Train, and evaluate with each fraction of the labels; what was done before is skipped."""
    store = open_store(unit.store, unit.catalog)
    config = apply_budget(unit, store, device)
    record = unit.read() or {
        "fingerprint": unit.fingerprint,
        **{name: getattr(unit, name) for name in ("dataset", "backbone", "variant", "fold")},
        "seed": unit.seed,
        "budget": to_mapping(unit.budget),
        "recipe": to_mapping(replace(unit.recipe, pretrain=config)),
        "steps": None,
        "seconds": {},
        **run_facts(),
    }
    write_json(unit.folder / "unit.json", record)
    model = pretrain(store, unit.folder / "model", config, seed=unit.seed, device=device)
    record["steps"] = read_card(unit.folder / "model").steps
    record["seconds"]["pretrain"] = sum(epoch_seconds(unit.folder / "model"))
    task = make_task(store, store.catalog, training=config)
    for fraction in unit.pending_fractions:
        began, folder = time.perf_counter(), unit.scores_folder(fraction)
        suite = evaluate_unit(unit, task, model, fraction)
        folder.mkdir(exist_ok=True)
        record["seconds"][f"evaluate {folder.name}"] = time.perf_counter() - began
        write_json(unit.folder / "unit.json", record | run_facts())
        suite.write(folder / "results.json")


def evaluate_unit(
    unit: Unit, task: EvaluationTask, model: ScaleModel, label_fraction: float
) -> SuiteResult:
    """All probes; those without a model are read if another variant has run them."""
    config = replace(
        unit.recipe.evaluate, label_fraction=None if label_fraction == 1 else label_fraction
    )
    baselines = tuple(name for name in config.probes if probe_key(name).features == "backbone")
    others = tuple(name for name in config.probes if name not in baselines)
    suites = []
    if baselines:
        suites.append(run_baselines(unit, task, model, replace(config, probes=baselines)))
    if others:
        suites.append(run_suite(task, model, config, seed=unit.seed, probes=others))
    return merge_suites(suites, config)


def run_baselines(
    unit: Unit, task: EvaluationTask, model: ScaleModel, config: EvaluateConfig
) -> SuiteResult:
    """The probes without a model, from the folder that all variants share."""
    training = to_mapping(unit.recipe.pretrain)
    training = {k: v for k, v in training.items() if k not in NO_EFFECT_ON_BASELINES}
    inputs = (training, config, unit.store.name, unit.catalog.fingerprint, unit.seed)
    folder = unit.out / "baselines" / fingerprint(*inputs)
    path = folder / "results.json"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        run_suite(task, model, config, seed=unit.seed).write(path)
    return SuiteResult(
        results=read_records(path, ProbeResult),
        comparisons=[],
        predictions=read_predictions(folder / "predictions.safetensors"),
    )


def merge_suites(suites: Sequence[SuiteResult], config: EvaluateConfig) -> SuiteResult:
    """The results of several suites on one task, in the order of the settings."""
    results = {result.key: result for suite in suites for result in suite.results}
    seeds = {key: own for suite in suites for key, own in suite.predictions.seeds.items()}
    outputs = {key: own for suite in suites for key, own in suite.predictions.outputs.items()}
    keys = [probe_key(name) for name in config.probes]
    predictions = replace(
        suites[0].predictions,
        seeds={key: seeds[key] for key in keys},
        outputs={key: outputs[key] for key in keys},
    )
    return SuiteResult(
        results=[results[key] for key in keys],
        comparisons=compare_probes(predictions),
        predictions=predictions,
    )


def epoch_seconds(model: Path) -> list[float]:
    """The seconds of each epoch of pre-training."""
    lines = (model / "metrics.jsonl").read_text("utf-8").splitlines()
    return [float(json.loads(line)["seconds"]) for line in lines if line]


def run_facts() -> dict[str, Any]:
    """Date, commit and machine."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": environment(),
    }


def describe_progress(units: Sequence[Unit], among: Sequence[Unit]) -> str:
    """`3 of 20 units finished, about 1 h 5 min left`, by the mean time of finished units."""
    seconds = {
        unit: sum(unit.read()["seconds"].values()) for unit in among if not unit.pending_fractions
    }
    pending = [unit for unit in units if unit not in seconds]
    text = f"{len(units) - len(pending)} of {len(units)} units finished"
    if not pending or not seconds:
        return f"{text}, time unknown" if pending else text
    left = 0.0
    for unit in pending:
        same = [own for other, own in seconds.items() if other.row == unit.row]
        left += float(np.mean(same or list(seconds.values())))
    return f"{text}, about {format_duration(left)} left"


def list_units(units: Sequence[Unit]) -> list[str]:
    """One line for each variant, and the total."""
    lines = []
    for row in dict.fromkeys(unit.row for unit in units):
        own = [unit for unit in units if unit.row == row]
        store = "" if (own[0].store / "manifest.json").is_file() else "; features to extract"
        lines.append(f"{' '.join(row)}: {describe_progress(own, units)}{store}")
    return [*lines, f"total: {describe_progress(units, units)}"]


def run_study(units: Sequence[Unit], device: str) -> None:
    """Run the pending units; other settings than before are refused first."""
    pending = [unit for unit in units if not unit.read() or unit.pending_fractions]
    extract_features(pending, device)
    for unit in {unit.row: unit for unit in reversed(pending)}.values():
        if unit.budget.seconds is not None:
            measure_speed(unit, device)
    for unit in pending:
        if not unit.pending_fractions:
            continue  # finished by another process
        log(f"{describe_progress(units, units)}: {unit}")
        try:
            with exclusive(unit.folder):
                run_unit(unit, device)
        except LockError as error:
            log(f"{unit} is skipped: {error}")
    log(describe_progress(units, units))


def main() -> None:
    """Run a study, list it, or summarise it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("study", type=Path, metavar="STUDY.toml")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--data", type=Path, default=Path(), help="folder of the datasets")
    parser.add_argument("--features", type=Path, help="folder of feature stores (DIR/features)")
    parser.add_argument("--dataset", action="append", metavar="NAME", help="only this one")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--list", action="store_true", help="only list units and the time left")
    parser.add_argument("--summarise", action="store_true", help="only summarise finished units")
    options = parser.parse_args()
    try:
        study = read_study(options.study).select(options.dataset or ())
        features = options.features or options.out / "features"
        units = plan_units(study, options.data, options.out, features)
        if options.list:
            print("\n".join(list_units(units)))
            return
        if not options.summarise:
            run_study(units, options.device)
        print(write_summary(units, options.study.stem, options.out))
    except ClipsetError as error:
        raise SystemExit(f"study.py: {error}") from None


if __name__ == "__main__":
    main()
