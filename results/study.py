"""Try ideas against a recipe, one change at a time, without a look at the test videos.

    python results/study.py --store lsa64_store --recipe recipes/lsa64.toml --out studies/lsa64
    python results/study.py ... --only mixed fourier --fold 1    # a part of it; the rest later
    python results/study.py ... --only recipe mixed --seed 1     # the same with another seed
    python results/study.py ... --name lsa64                     # also writes results/studies/
    python results/study.py ... --test --only recipe paper --seed 0 --seed 1    # the last word

The training videos are divided into folds by whole groups (or by class, where there are no groups).
Each fold is judged by a model and probes that learned from the others; an idea is then compared
with the recipe itself on all of these videos. Intervals count the chance of training, too, by how
far the seeds of a cell lie apart (`chance.py`). What is finished is not run again.

With `--test`, all training videos are learned from and the test videos are judged: once, at the
end, for what was chosen before. Nothing may be chosen by that.
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
from chance import Scores, Spread, compare_scores, mean_score, score_interval, spread_of
from collect import MODEL_ROWS, names_only
from records import HERE, Claim, Idea, IdeaRow, Study, write_study
from sklearn.model_selection import StratifiedKFold
from tables import CLAIMS

from clipset.config import fingerprint, near_names, read_json, to_mapping, write_json
from clipset.data.catalog import Catalog
from clipset.errors import ClipsetError, ConfigError
from clipset.evaluation.results import ProbeKey, read_predictions
from clipset.evaluation.suite import ROW_OF, run_suite
from clipset.evaluation.task import make_task
from clipset.features.store import FeatureStore, open_store
from clipset.progress import say
from clipset.recipe import Recipe, read_recipe
from clipset.runs import environment
from clipset.training.pretrain import pretrain

BASE = "recipe"  # what ideas are compared with
SEED = 0  # of the folds, and of trainings unless others are asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The recipe with one change."""

    name: str
    what: str
    recipe: Recipe
    changes: tuple[str, ...] = ()
    store: Path


def read_trials(
    ideas: Path, recipe: Path, changes: Sequence[str], stores: dict[str, Path]
) -> list[Trial]:
    """The recipe itself, and every idea whose features are there."""
    base = read_recipe(recipe, changes)
    trials = [Trial(name=BASE, what="the recipe", recipe=base, store=stores[""])]
    for name, idea in tomllib.loads(ideas.read_text("utf-8")).items():
        if idea.get("store", "") in stores:
            trials.append(
                Trial(
                    name=name,
                    what=idea["what"],
                    recipe=read_recipe(recipe, (*changes, *idea["changes"])),
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


def judged_parts(catalog: Catalog, folds: int) -> dict[str, Catalog]:
    """What is judged, by name: each fold of the training videos, or, without folds, the test."""
    if not folds:
        return {"test": catalog}
    parts = divide(catalog, folds)
    return {f"fold-{n}": in_fold(catalog, part) for n, part in enumerate(parts, start=1)}


def in_fold(catalog: Catalog, judged: Sequence[str]) -> Catalog:
    """The training videos, those of the fold as the split `val`; no test video."""
    held_out = set(judged)
    return catalog.only(
        replace(video, split="val") if video.id in held_out else video
        for video in catalog.split("train")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One training and judgement of a trial on a fold, and where it lies."""

    trial: Trial
    catalog: Catalog
    folder: Path
    seed: int

    def open(self) -> FeatureStore:
        """The features of the fold's videos."""
        return open_store(self.trial.store, self.catalog)

    def mark(self, store: FeatureStore) -> str:
        """A name for all that the cell's scores depend on."""
        recipe = self.trial.recipe
        return fingerprint(recipe.pretrain, recipe.evaluate, *_held(store), self.seed)

    def model_name(self, store: FeatureStore) -> str:
        """A name for all that the cell's model depends on."""
        return fingerprint(self.trial.recipe.pretrain, *_held(store), self.seed)

    def read(self) -> dict[str, Any] | None:
        """What is known of the cell if it was run with these settings, else None."""
        path = self.folder / "cell.json"
        found = read_json(path) if path.is_file() else None
        return found if found and found["mark"] == self.mark(self.open()) else None


def _held(store: FeatureStore) -> tuple[object, str]:
    return replace(store.manifest, made_by={}), store.catalog.fingerprint


def run_cell(cell: Cell, models: Path) -> None:
    """Train and judge one trial on one fold, unless that was done."""
    if cell.read() is not None:
        return
    say(f"{cell.trial.name}, {cell.folder.parent.name}, {cell.folder.name}")
    store, recipe = cell.open(), cell.trial.recipe
    where = models / cell.model_name(store)
    model = pretrain(store, where, recipe.pretrain, seed=cell.seed, device="cpu")
    task = make_task(store, store.catalog, training=recipe.pretrain)
    rows = tuple(ROW_OF[name] for name in recipe.evaluate.probes)
    if cell.trial.name != BASE:  # rows without a model are not what an idea is judged by
        rows = tuple(row for row in rows if row in MODEL_ROWS)
    suite = run_suite(task, model, recipe.evaluate, seed=cell.seed, rows=rows)
    cell.folder.mkdir(parents=True, exist_ok=True)
    suite.write(cell.folder / "results.json")
    about = {
        "mark": cell.mark(store),
        "seconds": undisturbed_seconds(where / "metrics.jsonl"),
        "environment": environment(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    write_json(cell.folder / "cell.json", about)


def undisturbed_seconds(metrics: Path) -> float:
    """What pre-training takes if every epoch is as fast as the fastest: others use the machine."""
    lines = [json.loads(line) for line in metrics.read_text("utf-8").splitlines() if line]
    return float(len(lines) * min(line["seconds"] for line in lines))


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """All that was run of a trial: each fold with the same seeds."""

    trial: Trial
    seeds: list[int]
    known: list[dict[str, Any]]
    scores: dict[ProbeKey, Scores]

    def shares_models(self, other: Found) -> bool:
        """Whether only probes differ."""
        ours, theirs = self.trial, other.trial
        return ours.recipe.pretrain == theirs.recipe.pretrain and ours.store == theirs.store

    def beside(self, other: Found, row: ProbeKey) -> Scores | None:
        """The row's scores to set beside another trial's: of its seeds, if models are the same."""
        scores, shared = self.scores.get(row), set(self.seeds) & set(other.seeds)
        if scores is None or not (shared and self.shares_models(other)):
            return scores
        places = [place for place, seed in enumerate(self.seeds) if seed in shared]
        return [fold[places] for fold in scores]


def read_trial(cells: list[list[Cell]]) -> Found | None:
    """What the cells (fold by fold, seed by seed) came to; None if no seed has all folds."""
    known = [[cell.read() for cell in fold] for fold in cells]
    seeds = [place for place, each in enumerate(zip(*known, strict=True)) if all(each)]
    if not seeds:
        return None
    said = [
        [read_predictions(fold[place].folder / "predictions.safetensors") for place in seeds]
        for fold in cells
    ]
    return Found(
        trial=cells[0][0].trial,
        seeds=[cells[0][place].seed for place in seeds],
        known=[each for fold in known for place in seeds if (each := fold[place])],
        scores={
            row: [np.stack([each.values(row).mean(axis=0) for each in fold]) for fold in said]
            for row in said[0][0].outputs
        },
    )


def gather(found: Found, base: Found, spreads: dict[ProbeKey, Spread]) -> Idea:
    """All folds and seeds of an idea together, beside the recipe's."""
    rows = []
    for row, scores in found.scores.items():
        compared = found is not base and row in MODEL_ROWS
        other = base.beside(found, row) if compared else None
        gap = compare_scores(scores, other, spreads[row]) if other else None
        rows.append(
            IdeaRow(
                features=row.features,
                probe=row.probe,
                value=mean_score(scores),
                interval=score_interval(scores, spreads[row]),
                difference=gap.value if gap else None,
                difference_interval=gap.interval if gap else None,
                p=gap.p if gap else None,
            )
        )
    trial, seeds = found.trial, len(found.seeds)
    return Idea(
        name=trial.name,
        what=trial.what,
        changes=names_only(list(trial.changes)),
        store=trial.store.name,
        training_seconds=float(sum(each["seconds"] for each in found.known)) / seeds,
        seeds=seeds,
        rows=rows,
    )


def claims_of(found: Found, spreads: dict[ProbeKey, Spread]) -> list[Claim]:
    """SCALE's rows beside their rivals, where both were run and chance is known."""
    claims = []
    for row, other in CLAIMS:
        if row in found.scores and other in found.scores:
            pair = found.scores[row], found.scores[other]
            gap = compare_scores(*pair, spreads[row], spreads[other])
            if gap.interval and gap.p is not None:
                claims.append(
                    Claim(row=row, other=other, value=gap.value, interval=gap.interval, p=gap.p)
                )
    return claims


def main() -> None:
    """Run what the command line names, and write what is finished."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--store", action="append", required=True, metavar="[NAME=]FOLDER")
    parser.add_argument("--recipe", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[], dest="changes", metavar="KEY=VALUE")
    parser.add_argument("--ideas", type=Path, default=HERE / "ideas.toml")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--folds", type=int, default=4)
    parser.add_argument("--test", action="store_true", help="judge the test videos, not folds")
    parser.add_argument("--fold", type=int, action="append", help="only this one, from 1 on")
    parser.add_argument("--seed", type=int, action="append", help=f"of trainings (else {SEED})")
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
    trials = read_trials(given.ideas, given.recipe, given.changes, stores)
    names = [trial.name for trial in trials]
    for unknown in sorted(set(given.only or ()) - set(names)):
        raise ConfigError(
            f"no idea with features is called {unknown!r}; {near_names(unknown, names)}"
        )
    catalog = open_store(stores[""]).catalog
    parts = judged_parts(catalog, 0 if given.test else given.folds)
    wanted = [f"fold-{number}" for number in given.fold or ()] or list(parts)
    if not set(wanted) <= set(parts):
        raise ConfigError(f"what can be judged is {', '.join(parts)}; got --fold {given.fold}")
    seeds = sorted({*(given.seed or [SEED]), *found_seeds(given.out)})
    cells = {
        trial.name: {
            part: [
                Cell(
                    trial=trial,
                    catalog=judged,
                    folder=given.out / trial.name / part / f"seed-{seed}",
                    seed=seed,
                )
                for seed in seeds
            ]
            for part, judged in parts.items()
        }
        for trial in trials
    }
    for seed in given.seed or [SEED]:
        for name in given.only or names:
            for part in wanted:
                run_cell(cells[name][part][seeds.index(seed)], given.out / "models")
    if given.name:
        every = [list(each.values()) for each in cells.values()]
        videos = len(catalog.split("test" if given.test else "train"))
        collect_study(given, stores, every, videos)


def found_seeds(out: Path) -> set[int]:
    """The seeds that something was run with."""
    return {int(path.name.removeprefix("seed-")) for path in out.glob("*/*/seed-*")}


def collect_study(
    given: argparse.Namespace,
    stores: dict[str, Path],
    cells: Sequence[list[list[Cell]]],
    videos: int,
) -> None:
    """Write the ideas of which all folds were run with these settings."""
    everything = [read_trial(folds) for folds in cells]
    base, found = everything[0], [each for each in everything if each]
    if base is None:
        raise ConfigError("the recipe itself has to be finished before ideas can be compared")
    every = [each for one in found for each in one.known]
    commits = dict.fromkeys(each["environment"].get("commit", "unknown") for each in every)
    machine = dict(base.known[-1]["environment"])
    machine.pop("commit", None)
    trained = [base, *(one for one in found if not one.shares_models(base))]  # a model counts once
    spreads = {}
    for row in base.scores:  # without a model, all trials have the same rows
        trials = trained if row in MODEL_ROWS else [base]
        spreads[row] = spread_of([one.scores[row] for one in trials if row in one.scores])
    recipe = base.trial.recipe
    content = Study(
        name=given.name,
        dataset=recipe.data.name or base.trial.store.name,
        backbone=names_only(recipe.extract.backbone),
        recipe_file=f"recipes/{given.recipe.name}",
        recipe=names_only(to_mapping(recipe)),
        changes=names_only(list(given.changes)),
        stores=[f"{name}={path.name}".lstrip("=") for name, path in stores.items()],
        folds=0 if given.test else given.folds,
        videos=videos,
        seeds=recipe.evaluate.num_seeds,
        spreads={
            " ".join(row): spread.deviation for row, spread in spreads.items() if spread.freedom
        },
        date=max(each["date"] for each in every),
        commit=", ".join(commits),
        machine=machine,
        ideas=[gather(each, base, spreads) for each in found],
        claims=claims_of(base, spreads),
        trainings=base.seeds,
    )
    print(f"→ {write_study(content, given.results)}")


if __name__ == "__main__":
    main()
