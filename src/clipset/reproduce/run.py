"""Run a table of the paper, cell by cell; what is finished is not run again."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from clipset.backbones.registry import find_backbone, how_to_get_weights
from clipset.config import fingerprint, to_mapping
from clipset.data.leaks import check_leaks
from clipset.data.tasks import Task, join_tasks, read_tasks
from clipset.errors import ClipsetError, ConfigError
from clipset.evaluation.results import ProbeKey
from clipset.evaluation.suite import run_probes
from clipset.evaluation.task import EvaluationTask, make_task
from clipset.features.extract import extract
from clipset.features.store import FeatureStore, open_store
from clipset.locks import exclusive
from clipset.model.scale import ScaleModel
from clipset.pipeline import protocol_facts
from clipset.progress import say
from clipset.recipe import Recipe, change_recipe
from clipset.reproduce.plan import (
    Plan,
    Trial,
    backbone_title,
    dataset_title,
    find_plan,
    read_base,
    task_title,
)
from clipset.reproduce.render import write_renderings
from clipset.reproduce.table import Cell, TableFile, claim, write_table
from clipset.runs import environment
from clipset.text import name_text
from clipset.training.pretrain import pretrain

ALONE = ("knn", "linear", "mlp")  # probes that need no model where features are the backbone's
FAILURES = (ClipsetError, MemoryError, RuntimeError)  # torch runs out of memory by the last one


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is asked for, beside the table."""

    data: Path | None = None
    store: Path | None = None
    backbones: tuple[str, ...] = ()
    recipe: Path | None = None
    changes: tuple[str, ...] = ()
    seed: int = 0
    device: str = "auto"
    allow_leaks: bool = False

    def __post_init__(self) -> None:
        if (self.data is None) == (self.store is None):
            raise ConfigError("say what to run on: --data FOLDER, or --store STORE, not both")
        if self.store is not None and self.backbones:
            raise ConfigError("a store has its backbone already; give --backbone with --data")


def reproduce(name: str, out: Path, order: Order) -> TableFile:
    """Run what is missing of a table into a folder, and write the table in all its forms."""
    plan = find_plan(name)
    base = read_base(plan, order.recipe, order.changes)
    wanted = _backbones(plan, order)
    with exclusive(out):
        table = claim(out, empty_table(plan))
        table.data = name_text((order.data or order.store or out).resolve().name)
        table.missing = {title: where for title, where in wanted.items() if where}
        write_table(table, out)
        for backbone in (backbone for backbone, where in wanted.items() if not where):
            _run_backbone(plan, table, out, base, order, backbone)
        write_renderings(table, out)
    return table


def empty_table(plan: Plan) -> TableFile:
    """The table with the paper's numbers alone."""
    paper = plan.table
    return TableFile(
        table=paper.name,
        number=paper.number,
        title=paper.title,
        columns=list(paper.columns),
        rows=list(paper.rows),
        quoted=list(paper.quoted),
        paper=[(row, column, text) for (row, column), text in paper.cells.items()],
    )


def _backbones(plan: Plan, order: Order) -> dict[str, str]:
    """The backbones to run; with each that is not here, where to get it."""
    if order.store is not None:
        return {open_store(order.store).manifest.backbone.name: ""}
    found = {}
    for name in order.backbones or plan.backbones:
        entry = find_backbone(name)
        here = entry.find_weights() is not None
        found[name] = "" if here else how_to_get_weights(entry)
    return found


def _run_backbone(
    plan: Plan, table: TableFile, out: Path, base: Recipe, order: Order, backbone: str
) -> None:
    recipe = replace(base, extract=replace(base.extract, backbone=backbone))
    folder = out / _slug(backbone_title(backbone))
    try:
        legs = _open(plan, folder, recipe, order, backbone)
    except FAILURES as error:
        say(f"{backbone}: {error}")
        for row, column, trial in _places(plan, recipe, order, backbone):
            if all(cell.status == "failed" for cell in table.find(row, column)):
                table.put(_failed(row, column, "", trial, order, error))
        write_table(table, out)
        return
    for leg in legs:
        for trial in plan.trials:
            _run_cell(table, out, leg, trial)


def _places(
    plan: Plan, recipe: Recipe, order: Order, backbone: str
) -> Iterator[tuple[str, str, Trial]]:
    """Where the cells of a backbone stand if its parts are not known."""
    title = backbone_title(backbone)
    for trial in plan.trials:
        if plan.columns == "tasks":
            for column in plan.table.columns:
                yield f"{title}, {trial.row}", column, trial
        elif plan.columns == "datasets":
            yield trial.row, f"{_dataset(recipe, order)}, {title}", trial
        else:
            yield trial.row, title, trial


def _open(plan: Plan, folder: Path, recipe: Recipe, order: Order, backbone: str) -> list[_Leg]:
    """The features of all videos, once, and a leg for each part."""
    if order.store is not None:
        source: Any = open_store(order.store).catalog
        parts = read_tasks(source, recipe.data)
        _check_leaks(parts, recipe, order)
        where = order.store
    else:
        assert order.data is not None
        parts = read_tasks(order.data, recipe.data)
        _check_leaks(parts, recipe, order)
        where = folder / "store"
        folder.mkdir(exist_ok=True)
        extract(join_tasks(parts), where, recipe.extract, seed=order.seed, device=order.device)
    title, names = backbone_title(backbone), tuple(part.name for part in parts)
    return [
        _Leg(
            plan=plan,
            part=part,
            folder=folder / part.name if part.name else folder,
            store=open_store(where, part.catalog),
            recipe=recipe,
            order=order,
            backbone=title,
            dataset=_dataset(recipe, order),
            parts=() if plan.columns == "tasks" or len(parts) == 1 else names,
        )
        for part in parts
    ]


def _check_leaks(parts: Sequence[Task], recipe: Recipe, order: Order) -> None:
    allow_leaks = order.allow_leaks or recipe.data.official
    check_leaks([part.catalog for part in parts], allow_leaks=allow_leaks)


def _dataset(recipe: Recipe, order: Order) -> str:
    """What the data is called in a table."""
    if recipe.data.format in ("ucf101", "hmdb51"):
        return dataset_title(recipe.data.format)
    path = (order.data or order.store or Path()).resolve()
    if recipe.data.name:
        return recipe.data.name
    return name_text(path.parent.name if path.name == "store" else path.stem)


@dataclass(kw_only=True)
class _Leg:
    """One part of the data seen through one backbone: what its cells share."""

    plan: Plan
    part: Task
    folder: Path
    store: FeatureStore
    recipe: Recipe
    order: Order
    backbone: str
    dataset: str
    parts: tuple[str, ...]
    posed: dict[str, EvaluationTask] = field(default_factory=dict)

    def place(self, trial: Trial) -> tuple[str, str, str]:
        """Row, column and part of a trial's cell."""
        if self.plan.columns == "tasks":
            task = self.part.name or self.recipe.data.task
            return f"{self.backbone}, {trial.row}", task_title(task), ""
        if self.plan.columns == "datasets":
            return trial.row, f"{self.dataset}, {self.backbone}", self.part.name
        return trial.row, self.backbone, self.part.name

    def task(self, recipe: Recipe) -> EvaluationTask:
        """What the probes have to solve; read once for rows that ask for the same."""
        key, training = fingerprint(recipe.data, recipe.pretrain), recipe.pretrain
        if key not in self.posed:
            self.posed = {key: make_task(self.store, self.part.catalog, training=training)}
        return self.posed[key]

    def model(self, trial: Trial, recipe: Recipe) -> ScaleModel | None:
        """The model that a trial's probe needs; rows with the same settings share it."""
        if trial.features == "backbone" and trial.probe in ALONE:
            return None
        folder = self.folder / _slug(trial.row) if trial.changes else self.folder
        order = self.order
        return pretrain(
            self.store, folder / "model", recipe.pretrain, seed=order.seed, device=order.device
        )

    def mark(self, trial: Trial, recipe: Recipe) -> str:
        """A name for all that a trial's score depends on."""
        return fingerprint(
            *(recipe.data, recipe.pretrain, recipe.evaluate, trial, self.order.seed),
            replace(self.store.manifest, made_by={}),
            self.part.catalog.fingerprint,
            [entry.checksum for entry in self.store.entries],
        )


def _run_cell(table: TableFile, out: Path, leg: _Leg, trial: Trial) -> None:
    row, column, part = leg.place(trial)
    began = time.perf_counter()
    try:
        recipe = change_recipe(leg.recipe, trial.changes)
        mark = leg.mark(trial, recipe)
        if table.is_done(row, column, part, mark):
            return
        say(f"{row} · {column}{f' · {part}' if part else ''}")
        record = _score(leg, trial, recipe)
    except FAILURES as error:
        say(f"failed: {error}")
        cell = _failed(row, column, part, trial, leg.order, error)
        table.put(replace(cell, parts=leg.parts))
    else:
        told, machine = to_mapping(recipe), environment()
        table.recipes[fingerprint(told)] = told
        table.environments[fingerprint(machine)] = machine
        table.put(
            Cell(
                row=row,
                column=column,
                part=part,
                parts=leg.parts,
                status="done",
                mark=mark,
                record=record,
                recipe=fingerprint(told),
                environment=fingerprint(machine),
                seed=leg.order.seed,
                date=datetime.now(UTC).isoformat(timespec="seconds"),
                seconds=time.perf_counter() - began,
            )
        )
        say(f"{row} · {column}: {record['metric']} {record['value']:.4f}")  # also on a full disk
    write_table(table, out)


def _score(leg: _Leg, trial: Trial, recipe: Recipe) -> dict[str, Any]:
    """The record of a cell."""
    model = leg.model(trial, recipe)
    rows = (ProbeKey(trial.features, trial.probe),)
    [result] = run_probes(leg.task(recipe), model, recipe.evaluate, seed=leg.order.seed, rows=rows)
    record = to_mapping(replace(result, **protocol_facts(recipe)))
    return {name: value for name, value in record.items() if name not in ("confusion", "per_class")}


def _failed(
    row: str, column: str, part: str, trial: Trial, order: Order, error: BaseException
) -> Cell:
    told = str(error).strip().splitlines() or [type(error).__name__]
    return Cell(
        row=row,
        column=column,
        part=part,
        status="failed",
        mark=fingerprint(trial),
        reason=told[0],
        seed=order.seed,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _slug(name: str) -> str:
    """A name that any file system takes."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name.replace("ρ", "r")).strip("-") or "column"
