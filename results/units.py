"""The units of a study: a study file, folds of whole groups, and the files of each training."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from clipset.config import build, fingerprint, flatten, near_names, read_json, read_toml, to_mapping
from clipset.data.catalog import Catalog
from clipset.data.leaks import check_leaks
from clipset.data.tasks import read_tasks
from clipset.errors import ConfigError
from clipset.pipeline import NO_EFFECT_ON_FEATURES
from clipset.recipe import Recipe, resolve_recipe, set_value

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Videos of a study."""

    catalog: str
    """a folder or table, relative to --data"""
    folds: int | None = None
    """folds of whole groups (the catalog's own train and test split if not given)"""
    num_classes: int | None = None
    """only the first classes, in the order of the catalog"""
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Equal pre-training of all variants; without a budget, each variant's own epochs."""

    seconds: float | None = None
    """wall time on this machine; the number of steps follows from the measured speed"""
    steps: int | None = None
    """optimiser steps, to the nearest epoch"""

    def __post_init__(self) -> None:
        values = [value for value in (self.seconds, self.steps) if value is not None]
        if len(values) > 1 or not all(value > 0 for value in values):
            raise ConfigError("a budget is {seconds = 300} or {steps = 480}, more than 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A study file. `settings` are tables of a recipe; later ones win, those of variants last."""

    recipe: str = ""
    """the recipe that settings are applied to, relative to the repository"""
    num_trainings: int = 1
    """trainings (seeds) in each fold"""
    label_fractions: tuple[float, ...] = (1.0,)
    """fractions of the training labels that probes use"""
    budget: Budget = field(default_factory=Budget)
    settings: dict[str, Any] = field(default_factory=dict)
    datasets: dict[str, Dataset]
    backbones: dict[str, dict[str, Any]] = field(default_factory=lambda: {"default": {}})
    variants: dict[str, dict[str, Any]]

    def __post_init__(self) -> None:
        if self.num_trainings < 1 or not (self.datasets and self.variants):
            raise ConfigError("a study needs a dataset, a variant and at least 1 training")
        if not all(0 < fraction <= 1 for fraction in self.label_fractions):
            raise ConfigError(f"label_fractions lie in (0, 1], got {self.label_fractions}")
        for name in (*self.datasets, *self.backbones, *self.variants):
            if not re.fullmatch(r"\w[\w.+-]*", name):
                raise ConfigError(f"the name {name!r} is not a plain word; it names a folder")

    def select(self, names: Sequence[str]) -> Study:
        """The study on some of its datasets, or on all if none is named."""
        for name in names:
            if name not in self.datasets:
                raise ConfigError(f"unknown dataset {name!r}; {near_names(name, self.datasets)}")
        return replace(
            self, datasets={name: self.datasets[name] for name in names or self.datasets}
        )

    def resolve(self, *layers: Mapping[str, Any], where: str) -> Recipe:
        """The recipe with all settings of the study and the given layers."""
        tables = read_toml(ROOT / self.recipe) if self.recipe else {}
        for layer in (self.settings, *layers):
            for name, value in flatten(layer).items():
                set_value(tables, name, value)
        return resolve_recipe(tables, where)


def read_study(path: Path) -> Study:
    """A study file; unknown keys are refused."""
    tables = read_toml(path)
    for name, dataset in tables.get("datasets", {}).items():
        build(Dataset, dataset, f"{path.name}: dataset {name}")
    return build(Study, tables, path.name)


@dataclass(frozen=True, kw_only=True, eq=False)
class Unit:
    """One training and its evaluation."""

    dataset: str
    backbone: str
    variant: str
    fold: str
    seed: int
    recipe: Recipe
    catalog: Catalog
    label_fractions: tuple[float, ...]
    budget: Budget
    store: Path
    out: Path

    def __str__(self) -> str:
        return " ".join([*self.row, self.fold, f"seed-{self.seed}"])

    @property
    def row(self) -> tuple[str, str, str]:
        """What all folds and seeds have in common."""
        return self.dataset, self.backbone, self.variant

    @property
    def folder(self) -> Path:
        """The files of the unit."""
        return self.out.joinpath("units", *self.row, self.fold, f"seed-{self.seed}")

    @cached_property
    def fingerprint(self) -> str:
        """Of everything that the scores depend on, except the fraction of labels."""
        inputs = (self.recipe.pretrain, self.recipe.evaluate, self.budget)
        return fingerprint(*inputs, self.store.name, self.catalog.fingerprint, self.seed)

    def read(self) -> dict[str, Any]:
        """The record of the unit; empty if it was not started."""
        path = self.folder / "unit.json"
        record = dict(read_json(path)) if path.is_file() else {}
        if record and record["fingerprint"] != self.fingerprint:
            raise ConfigError(f"{self.folder} has other settings; use another --out, or delete it")
        return record

    def scores_folder(self, label_fraction: float) -> Path:
        """The scores with a fraction of the labels."""
        return self.folder / f"labels-{100 * label_fraction:g}"

    @property
    def pending_fractions(self) -> list[float]:
        """The fractions of labels without scores."""
        folders = {each: self.scores_folder(each) for each in self.label_fractions}
        return [each for each, path in folders.items() if not (path / "results.json").is_file()]


def plan_units(study: Study, data: Path, out: Path, features: Path) -> list[Unit]:
    """All units; the first training of every fold and variant comes first."""
    units = []
    for name, dataset in study.datasets.items():
        data_recipe = study.resolve(dataset.settings, where=f"dataset {name}")
        folds = list_folds(read_videos(data / dataset.catalog, dataset, data_recipe), dataset)
        check_leaks(list(folds.values()))
        for backbone, backbone_settings in study.backbones.items():
            for variant, settings in study.variants.items():
                recipe = study.resolve(
                    dataset.settings, backbone_settings, settings, where=f"variant {variant}"
                )
                store = features / store_name(data / dataset.catalog, recipe)
                for index in range(study.num_trainings):
                    seed = index * recipe.evaluate.num_seeds  # no seed of probes is used twice
                    units += [
                        Unit(
                            dataset=name,
                            backbone=backbone,
                            variant=variant,
                            fold=fold,
                            seed=seed,
                            recipe=recipe,
                            catalog=catalog,
                            label_fractions=study.label_fractions if catalog.classes else (1.0,),
                            budget=study.budget,
                            store=store,
                            out=out,
                        )
                        for fold, catalog in folds.items()
                    ]
    order = {row: index for index, row in enumerate(dict.fromkeys(unit.row for unit in units))}
    return sorted(units, key=lambda unit: (unit.seed, unit.dataset, unit.fold, order[unit.row]))


def read_videos(path: Path, dataset: Dataset, recipe: Recipe) -> Catalog:
    """The videos of a dataset, perhaps only those of its first classes."""
    tasks = read_tasks(path, recipe.data)
    if len(tasks) > 1:
        names = ", ".join(task.name for task in tasks)
        raise ConfigError(f"{path} has several tasks: set data.task to one of {names}")
    catalog = tasks[0].catalog
    if dataset.num_classes is None:
        return catalog
    labels = dict.fromkeys(video.label for video in catalog if video.label is not None)
    selected = list(labels)[: dataset.num_classes]
    return catalog.only(video for video in catalog if video.label in selected)


def list_folds(catalog: Catalog, dataset: Dataset) -> dict[str, Catalog]:
    """The catalogs of the folds: all videos, with the groups of the fold as the test split."""
    if dataset.folds is None:
        return {"test": catalog}
    without = sum(video.group is None for video in catalog)
    if without:
        raise ConfigError(
            f"folds need the group of every video; {without} of {len(catalog)} videos of "
            f"{catalog.name} have none (the column group of the catalog)"
        )
    groups = sorted({video.group or "" for video in catalog})
    if not 2 <= dataset.folds <= len(groups):
        raise ConfigError(
            f"{catalog.name} has {len(groups)} groups: from 2 to {len(groups)} folds are possible, "
            f"got {dataset.folds}"
        )
    return {
        f"fold-{number}": catalog.only(
            replace(video, split="test" if video.group in test_groups else "train")
            for video in catalog
        )
        for number, test_groups in enumerate(np.array_split(groups, dataset.folds), start=1)
    }


def store_name(catalog: Path, recipe: Recipe) -> str:
    """The folder of the features: the same for all recipes that extract the same."""
    settings = to_mapping(recipe.extract)
    rows = {name: value for name, value in settings.items() if name not in NO_EFFECT_ON_FEATURES}
    is_common = catalog.stem in ("labels", "videos")  # then the folder around it says more
    name = catalog.absolute().parent.name if is_common else catalog.stem
    return f"{name}-{Path(recipe.extract.backbone).stem}-{fingerprint(rows)[:8]}"
