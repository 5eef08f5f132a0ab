"""Ablations of a recipe, one change at a time, by cross-validation on the training videos.

    python results/study.py --store lsa64_store --recipe recipes/lsa64.toml --out studies/lsa64
    python results/study.py ... --only mixed warm --fold 1    # some cells; the others later
    python results/study.py ... --only recipe mixed --seed 1     # the same with another seed
    python results/study.py ... --name lsa64                     # also writes results/studies/
    python results/study.py ... --test --only recipe paper --seed 0 --seed 1    # final test

Folds of the training videos are whole groups (or stratified by class without groups). Each fold is
evaluated by a model and probes that were trained on the others; an ablation is compared with the
recipe on all of these videos. Intervals include the variance of training seeds
(`significance.py`). Finished cells are not run again.

With `--test`, models are trained on all training videos and evaluated on the test videos: once, at
the end, with settings that were fixed before. Nothing may be selected by it.
"""

from __future__ import annotations

import argparse
import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from collect import MODEL_ROWS, names_only
from records import HERE, Ablation, ProbeDifference, ProbeScore, Study, write_study
from significance import (
    Scores,
    SeedVariance,
    compare_scores,
    estimate_seed_variance,
    mean_score,
    score_interval,
)
from sklearn.model_selection import StratifiedKFold
from tables import COMPARED

from clipset.config import fingerprint, near_names, read_json, to_mapping
from clipset.data.catalog import Catalog
from clipset.errors import ClipsetError, ConfigError
from clipset.evaluation.results import read_predictions
from clipset.evaluation.suite import run_suite
from clipset.features.store import FeatureStore, open_store
from clipset.files import write_json
from clipset.probes.config import ProbeKey
from clipset.probes.registry import probe_key
from clipset.probes.task import make_task
from clipset.progress import say
from clipset.recipe import Recipe, read_recipe
from clipset.runs import environment
from clipset.training.pretrain import pretrain

BASE = "recipe"  # the baseline of all ablations
SEED = 0  # of the folds, and the default of trainings


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The recipe with one change."""

    name: str
    description: str
    recipe: Recipe
    changes: tuple[str, ...] = ()
    store: Path


def read_trials(
    ablations: Path, recipe: Path, changes: Sequence[str], stores: dict[str, Path]
) -> list[Trial]:
    """The recipe itself, and the ablations whose features exist."""
    base = read_recipe(recipe, changes)
    trials = [Trial(name=BASE, description="the recipe", recipe=base, store=stores[""])]
    for name, ablation in tomllib.loads(ablations.read_text("utf-8")).items():
        if ablation.get("store", "") in stores:
            trials.append(
                Trial(
                    name=name,
                    description=ablation["description"],
                    recipe=read_recipe(recipe, (*changes, *ablation["changes"])),
                    changes=tuple(ablation["changes"]),
                    store=stores[ablation.get("store", "")],
                )
            )
    return trials


def split_folds(catalog: Catalog, count: int) -> list[tuple[str, ...]]:
    """The ids of the videos of each fold: whole groups, or stratified by class."""
    videos = list(catalog.split("train"))
    groups = sorted({video.group for video in videos if video.group is not None})
    if len(groups) >= count and all(video.group is not None for video in videos):
        parts = [set(part) for part in np.array_split(groups, count)]
        return [tuple(video.id for video in videos if video.group in part) for part in parts]
    folds = StratifiedKFold(count, shuffle=True, random_state=SEED)
    split = folds.split(videos, [video.label for video in videos])
    return [tuple(videos[index].id for index in indices) for _, indices in split]


def list_folds(catalog: Catalog, folds: int) -> dict[str, Catalog]:
    """The catalogs to evaluate: each fold of the training videos, or the test without folds."""
    if not folds:
        return {"test": catalog}
    parts = split_folds(catalog, folds)
    return {f"fold-{n}": in_fold(catalog, part) for n, part in enumerate(parts, start=1)}


def in_fold(catalog: Catalog, fold: Sequence[str]) -> Catalog:
    """The training videos, with those of the fold as the split `val`; no test video."""
    held_out = set(fold)
    return catalog.only(
        replace(video, split="val") if video.id in held_out else video
        for video in catalog.split("train")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One training and evaluation of a trial on a fold."""

    trial: Trial
    catalog: Catalog
    folder: Path
    seed: int

    def open(self) -> FeatureStore:
        """The features of the fold's videos."""
        return open_store(self.trial.store, self.catalog)

    def fingerprint(self, store: FeatureStore) -> str:
        """Of everything that the cell's scores depend on."""
        recipe = self.trial.recipe
        return fingerprint(recipe.pretrain, recipe.evaluate, *_store_identity(store), self.seed)

    def model_name(self, store: FeatureStore) -> str:
        """Of everything that the cell's model depends on."""
        return fingerprint(self.trial.recipe.pretrain, *_store_identity(store), self.seed)

    def read(self) -> dict[str, Any] | None:
        """The cell's record if it was run with these settings, else None."""
        path = self.folder / "cell.json"
        record = read_json(path) if path.is_file() else None
        if record and record["fingerprint"] == self.fingerprint(self.open()):
            return dict(record)
        return None


def _store_identity(store: FeatureStore) -> tuple[object, str]:
    return replace(store.manifest, made_by={}), store.catalog.fingerprint


def run_cell(cell: Cell, models: Path) -> None:
    """Train and evaluate one trial on one fold, unless that was done."""
    if cell.read() is not None:
        return
    say(f"{cell.trial.name}, {cell.folder.parent.name}, {cell.folder.name}")
    store, recipe = cell.open(), cell.trial.recipe
    where = models / cell.model_name(store)
    model = pretrain(store, where, recipe.pretrain, seed=cell.seed, device="cpu")
    task = make_task(store, store.catalog, training=recipe.pretrain)
    names = recipe.evaluate.probes
    if cell.trial.name != BASE:  # other probes do not depend on the change
        names = tuple(name for name in names if probe_key(name) in MODEL_ROWS)
    suite = run_suite(task, model, recipe.evaluate, seed=cell.seed, probes=names)
    cell.folder.mkdir(parents=True, exist_ok=True)
    suite.write(cell.folder / "results.json")
    about = {
        "fingerprint": cell.fingerprint(store),
        "seconds": undisturbed_seconds(where / "metrics.jsonl"),
        "environment": environment(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    write_json(cell.folder / "cell.json", about)


def undisturbed_seconds(metrics: Path) -> float:
    """The time of pre-training if every epoch were as fast as the fastest."""
    lines = [json.loads(line) for line in metrics.read_text("utf-8").splitlines() if line]
    return float(len(lines) * min(line["seconds"] for line in lines))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialScores:
    """All scores of a trial: each fold with the same seeds."""

    trial: Trial
    seeds: list[int]
    records: list[dict[str, Any]]
    scores: dict[ProbeKey, Scores]

    def shares_models(self, other: TrialScores) -> bool:
        """Whether only the probes differ."""
        ours, theirs = self.trial, other.trial
        return ours.recipe.pretrain == theirs.recipe.pretrain and ours.store == theirs.store

    def scores_to_compare(self, other: TrialScores, row: ProbeKey) -> Scores | None:
        """Scores of a probe; only of common seeds if both trials share their models."""
        scores, shared = self.scores.get(row), set(self.seeds) & set(other.seeds)
        if scores is None or not (shared and self.shares_models(other)):
            return scores
        indices = [index for index, seed in enumerate(self.seeds) if seed in shared]
        return [fold[indices] for fold in scores]


def read_trial(cells: list[list[Cell]]) -> TrialScores | None:
    """The scores of the cells (by fold and seed); None if no seed has all folds."""
    records = [[cell.read() for cell in fold] for fold in cells]
    seeds = [index for index, each in enumerate(zip(*records, strict=True)) if all(each)]
    if not seeds:
        return None
    predictions = [
        [read_predictions(fold[index].folder / "predictions.safetensors") for index in seeds]
        for fold in cells
    ]
    return TrialScores(
        trial=cells[0][0].trial,
        seeds=[cells[0][index].seed for index in seeds],
        records=[each for fold in records for index in seeds if (each := fold[index])],
        scores={
            row: [
                np.stack([each.values(row).mean(axis=0) for each in fold]) for fold in predictions
            ]
            for row in predictions[0][0].outputs
        },
    )


def summarise(
    trial: TrialScores, base: TrialScores, variances: dict[ProbeKey, SeedVariance]
) -> Ablation:
    """All folds and seeds of an ablation together, compared with the recipe."""
    rows = []
    for key, scores in trial.scores.items():
        compared = trial is not base and key in MODEL_ROWS
        baseline = base.scores_to_compare(trial, key) if compared else None
        gap = compare_scores(scores, baseline, variances[key]) if baseline else None
        rows.append(
            ProbeScore(
                features=key.features,
                probe=key.probe,
                value=mean_score(scores),
                interval=score_interval(scores, variances[key]),
                difference=gap.value if gap else None,
                difference_interval=gap.interval if gap else None,
                p=gap.p if gap else None,
            )
        )
    seconds = sum(record["seconds"] for record in trial.records)
    return Ablation(
        name=trial.trial.name,
        description=trial.trial.description,
        changes=names_only(list(trial.trial.changes)),
        store=trial.trial.store.name,
        training_seconds=float(seconds) / len(trial.seeds),
        num_trainings=len(trial.seeds),
        rows=rows,
    )


def list_differences(
    trial: TrialScores, variances: dict[ProbeKey, SeedVariance]
) -> list[ProbeDifference]:
    """SCALE probes against their baselines, if both were run with several seeds."""
    differences = []
    for probe, baseline in ((ProbeKey(*one), ProbeKey(*two)) for one, two in COMPARED):
        if probe in trial.scores and baseline in trial.scores:
            pair = trial.scores[probe], trial.scores[baseline]
            gap = compare_scores(*pair, variances[probe], variances[baseline])
            if gap.interval and gap.p is not None:
                differences.append(
                    ProbeDifference(
                        probe=(probe.features, probe.probe),
                        baseline=(baseline.features, baseline.probe),
                        value=gap.value,
                        interval=gap.interval,
                        p=gap.p,
                    )
                )
    return differences


def main() -> None:
    """Run the cells of the command line, and write the finished ones."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--store", action="append", required=True, metavar="[NAME=]FOLDER")
    parser.add_argument("--recipe", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[], dest="changes", metavar="KEY=VALUE")
    parser.add_argument("--ablations", type=Path, default=HERE / "ablations.toml")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--folds", type=int, default=4)
    parser.add_argument("--test", action="store_true", help="evaluate the test videos, not folds")
    parser.add_argument("--fold", type=int, action="append", help="only this one, from 1 on")
    parser.add_argument("--seed", type=int, action="append", help=f"of trainings (else {SEED})")
    parser.add_argument("--only", nargs="+", metavar="NAME", help=f"names of ablations, or {BASE}")
    parser.add_argument("--name", help="write results/studies/NAME.json from all finished cells")
    parser.add_argument("--results", type=Path, default=HERE, help=argparse.SUPPRESS)
    options = parser.parse_args()
    try:
        study(options)
    except ClipsetError as error:
        parser.error(str(error))


def study(options: argparse.Namespace) -> None:
    """Run the pending cells."""
    pairs = [word.rpartition("=") for word in options.store]
    stores = {name: Path(folder) for name, _, folder in pairs}
    if "" not in stores:
        raise ConfigError("the recipe needs a store: --store FOLDER")
    trials = read_trials(options.ablations, options.recipe, options.changes, stores)
    names = [trial.name for trial in trials]
    for unknown in sorted(set(options.only or ()) - set(names)):
        raise ConfigError(f"unknown ablation {unknown!r}; {near_names(unknown, names)}")
    catalog = open_store(stores[""]).catalog
    parts = list_folds(catalog, 0 if options.test else options.folds)
    selected = [f"fold-{number}" for number in options.fold or ()] or list(parts)
    if not set(selected) <= set(parts):
        raise ConfigError(f"unknown --fold {options.fold}; known: {', '.join(parts)}")
    seeds = sorted({*(options.seed or [SEED]), *found_seeds(options.out)})
    cells = {
        trial.name: {
            part: [
                Cell(
                    trial=trial,
                    catalog=part_catalog,
                    folder=options.out / trial.name / part / f"seed-{seed}",
                    seed=seed,
                )
                for seed in seeds
            ]
            for part, part_catalog in parts.items()
        }
        for trial in trials
    }
    for seed in options.seed or [SEED]:
        for name in options.only or names:
            for part in selected:
                run_cell(cells[name][part][seeds.index(seed)], options.out / "models")
    if options.name:
        every = [list(each.values()) for each in cells.values()]
        videos = len(catalog.split("test" if options.test else "train"))
        collect_study(options, stores, every, videos)


def found_seeds(out: Path) -> set[int]:
    """The seeds of existing cells."""
    return {int(path.name.removeprefix("seed-")) for path in out.glob("*/*/seed-*")}


def collect_study(
    options: argparse.Namespace,
    stores: dict[str, Path],
    cells: Sequence[list[list[Cell]]],
    videos: int,
) -> None:
    """Write the ablations of which all folds were run with these settings."""
    everything = [read_trial(folds) for folds in cells]
    base, found = everything[0], [each for each in everything if each]
    if base is None:
        raise ConfigError("the recipe itself must be finished before ablations can be compared")
    every = [each for one in found for each in one.records]
    commits = dict.fromkeys(each["environment"].get("commit", "unknown") for each in every)
    machine = dict(base.records[-1]["environment"])
    machine.pop("commit", None)
    trained = [base, *(one for one in found if not one.shares_models(base))]  # a model counts once
    variances = {}
    for row in base.scores:  # probes without a model are the same in all trials
        trials = trained if row in MODEL_ROWS else [base]
        variances[row] = estimate_seed_variance(
            [one.scores[row] for one in trials if row in one.scores]
        )
    recipe = base.trial.recipe
    content = Study(
        name=options.name,
        dataset=recipe.data.name or base.trial.store.name,
        backbone=names_only(recipe.extract.backbone),
        recipe_file=f"recipes/{options.recipe.name}",
        recipe=names_only(to_mapping(recipe)),
        changes=names_only(list(options.changes)),
        stores=[f"{name}={path.name}".lstrip("=") for name, path in stores.items()],
        folds=0 if options.test else options.folds,
        videos=videos,
        num_probe_seeds=recipe.evaluate.num_seeds,
        seed_std={
            " ".join(row): variance.std for row, variance in variances.items() if variance.dof
        },
        date=max(each["date"] for each in every),
        commit=", ".join(commits),
        machine=machine,
        ablations=[summarise(each, base, variances) for each in found],
        differences=list_differences(base, variances),
        training_seeds=base.seeds,
    )
    print(f"→ {write_study(content, options.results)}")


if __name__ == "__main__":
    main()
