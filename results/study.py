"""Try ideas against a recipe, one change at a time, without a look at the test videos.

    python results/study.py --store lsa64_store --recipe recipes/lsa64.toml --out studies/lsa64
    python results/study.py ... --only mixed fourier --fold 1    # a part of it; the rest later
    python results/study.py ... --name lsa64                     # also writes results/studies/

The training videos are divided into folds by whole groups (or by class, where there are no groups).
Each fold is judged once, by a model and probes that learned from the others; an idea is then
compared with the recipe itself on all of these videos. What is finished is not run again.
"""

from __future__ import annotations

import argparse
import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from collect import MODEL_ROWS, names_only
from records import HERE, Idea, IdeaRow, Study, write_study
from sklearn.model_selection import StratifiedKFold

from clipset.config import fingerprint, read_json, to_mapping, write_json
from clipset.errors import ClipsetError, ConfigError
from clipset.features.store import FeatureStore, open_store
from clipset.probes.metrics import compare_values, interval
from clipset.probes.problem import pose_problem
from clipset.probes.results import Predictions, Row, read_predictions
from clipset.probes.suite import run_suite
from clipset.progress import say
from clipset.recipe import Recipe, change_recipe, read_recipe
from clipset.runs import environment
from clipset.training.pretrain import pretrain
from clipset.videos.catalog import Catalog

BASE = "recipe"  # what ideas are compared with
SEED = 0  # of folds, trainings and resamples


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The recipe with one change."""

    name: str
    what: str
    recipe: Recipe
    changes: tuple[str, ...] = ()
    store: Path


def read_trials(ideas: Path, recipe: Recipe, stores: dict[str, Path]) -> list[Trial]:
    """The recipe itself, and every idea whose features are there."""
    trials = [Trial(name=BASE, what="the recipe", recipe=recipe, store=stores[""])]
    for name, idea in tomllib.loads(ideas.read_text("utf-8")).items():
        if idea.get("store", "") in stores:
            trials.append(
                Trial(
                    name=name,
                    what=idea["what"],
                    recipe=change_recipe(recipe, idea["changes"]),
                    changes=tuple(idea["changes"]),
                    store=stores[idea.get("store", "")],
                )
            )
    return trials


def divide(catalog: Catalog, count: int) -> list[tuple[str, ...]]:
    """The ids of the videos that each fold judges: whole groups, or a share of every class."""
    videos = list(catalog.split("train"))
    groups = sorted({video.group for video in videos if video.group is not None})
    if len(groups) >= count and all(video.group is not None for video in videos):
        parts = [set(part) for part in np.array_split(groups, count)]
        return [tuple(video.id for video in videos if video.group in part) for part in parts]
    folds = StratifiedKFold(count, shuffle=True, random_state=SEED)
    split = folds.split(videos, [video.label for video in videos])
    return [tuple(videos[place].id for place in judged) for _, judged in split]


def in_fold(catalog: Catalog, judged: Sequence[str]) -> Catalog:
    """The training videos, those of the fold as the split `val`; no test video."""
    held_out = set(judged)
    return catalog.only(
        replace(video, split="val") if video.id in held_out else video
        for video in catalog.split("train")
    )


def run_cell(trial: Trial, store: FeatureStore, folder: Path, models: Path) -> None:
    """Train and judge one trial on one fold, unless that was done."""
    recipe = trial.recipe
    held = replace(store.manifest, made_by={}), store.catalog.fingerprint
    mark = fingerprint(recipe.pretrain, recipe.probe, *held, SEED)
    done = folder / "cell.json"
    if done.is_file() and read_json(done)["mark"] == mark:
        return
    say(f"{trial.name}, {folder.name}")
    where = models / fingerprint(recipe.pretrain, *held)
    model = pretrain(store, where, recipe.pretrain, seed=SEED, device="cpu")
    problem = pose_problem(store, store.catalog, recipe.pretrain.model)
    suite = run_suite(problem, model, recipe.probe, seed=SEED)
    folder.mkdir(parents=True, exist_ok=True)
    suite.write(folder / "results.json")
    seconds = undisturbed_seconds(where / "metrics.jsonl")
    about = {"mark": mark, "seconds": seconds, "environment": environment()}
    write_json(done, about | {"date": datetime.now(UTC).isoformat(timespec="seconds")})


def undisturbed_seconds(metrics: Path) -> float:
    """What pre-training takes if every epoch is as fast as the fastest: others use the machine."""
    lines = [json.loads(line) for line in metrics.read_text("utf-8").splitlines() if line]
    return float(len(lines) * min(line["seconds"] for line in lines))


def gather(trial: Trial, folders: Sequence[Path], base: Sequence[Path]) -> Idea:
    """All folds of an idea together, beside the recipe's."""
    ours, theirs = ([read_predictions(each / "predictions.safetensors") for each in part]
                    for part in (folders, base))  # fmt: skip
    rows = []
    for row in ours[0].outputs:
        values = _values(ours, row)
        known = row in theirs[0].outputs and row in MODEL_ROWS and trial.name != BASE
        gap = compare_values(values, _values(theirs, row), _chance()) if known else None
        rows.append(
            IdeaRow(
                features=row[0],
                probe=row[1],
                value=float(values.mean()),
                interval=interval(values, _chance()),
                difference=gap.value if gap else None,
                difference_interval=gap.interval if gap else None,
                p=gap.p if gap else None,
            )
        )
    seconds = [read_json(each / "cell.json")["seconds"] for each in folders]
    return Idea(
        name=trial.name,
        what=trial.what,
        changes=names_only(list(trial.changes)),
        store=trial.store.name,
        training_seconds=float(sum(seconds)),
        rows=rows,
    )


def _values(folds: Sequence[Predictions], row: Row) -> np.ndarray:
    return np.concatenate([fold.values(row) for fold in folds], axis=1)


def _chance() -> np.random.Generator:
    return np.random.default_rng(SEED)


def main() -> None:
    """Run what the command line names, and write what is finished."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--store", action="append", required=True, metavar="[NAME=]FOLDER")
    parser.add_argument("--recipe", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[], dest="changes", metavar="KEY=VALUE")
    parser.add_argument("--ideas", type=Path, default=HERE / "ideas.toml")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--folds", type=int, default=4)
    parser.add_argument("--fold", type=int, action="append", help="only this one, from 1 on")
    parser.add_argument("--only", nargs="+", metavar="IDEA", help=f"names of ideas, or {BASE}")
    parser.add_argument("--name", help="write results/studies/NAME.json from all that is finished")
    parser.add_argument("--results", type=Path, default=HERE, help=argparse.SUPPRESS)
    given = parser.parse_args()
    try:
        study(given)
    except ClipsetError as error:
        parser.error(str(error))


def study(given: argparse.Namespace) -> None:
    """Run what is missing of the ideas asked for."""
    pairs = [word.rpartition("=") for word in given.store]
    stores = {name: Path(folder) for name, _, folder in pairs}
    if "" not in stores:
        raise ConfigError("say which store the recipe itself uses: --store FOLDER")
    recipe = read_recipe(given.recipe, given.changes)
    trials = read_trials(given.ideas, recipe, stores)
    catalog = open_store(stores[""]).catalog
    folds = divide(catalog, given.folds)
    numbers = given.fold or range(1, given.folds + 1)
    for trial in trials:
        for number in numbers if not given.only or trial.name in given.only else ():
            part = in_fold(catalog, folds[number - 1])
            folder = given.out / trial.name / f"fold-{number}"
            run_cell(trial, open_store(trial.store, part), folder, given.out / "models")
    if given.name:
        collect_study(given, trials, len(folds), sum(map(len, folds)))


def collect_study(
    given: argparse.Namespace, trials: Sequence[Trial], folds: int, videos: int
) -> None:
    """Write the ideas of which all folds are finished."""

    def cells(trial: Trial) -> list[Path]:
        return [given.out / trial.name / f"fold-{number + 1}" for number in range(folds)]

    finished = [t for t in trials if all((each / "cell.json").is_file() for each in cells(t))]
    if not finished or finished[0].name != BASE:
        raise ConfigError("the recipe itself has to be finished before ideas can be compared")
    base = trials[0]
    about = [read_json(each / "cell.json") for each in cells(base)]
    machine = dict(about[-1]["environment"])
    content = Study(
        name=given.name,
        dataset=base.recipe.data.name or base.store.name,
        backbone=names_only(base.recipe.extract.backbone),
        recipe_file=f"recipes/{given.recipe.name}",
        recipe=names_only(to_mapping(base.recipe)),
        changes=names_only(list(given.changes)),
        stores=[f"{name}={Path(path).name}".lstrip("=") for name, path in _named(given.store)],
        folds=folds,
        videos=videos,
        seeds=base.recipe.probe.seeds,
        date=about[-1]["date"],
        commit=machine.pop("commit", "unknown"),
        machine=machine,
        ideas=[gather(trial, cells(trial), cells(base)) for trial in finished],
    )
    print(f"→ {write_study(content, given.results)}")


def _named(stores: Sequence[str]) -> list[tuple[str, str]]:
    return [(name, folder) for name, _, folder in (word.rpartition("=") for word in stores)]


if __name__ == "__main__":
    main()
