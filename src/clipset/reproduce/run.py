"""Run a table of the paper, cell by cell; finished cells are not run again."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from clipset.backbones.registry import find_backbone
from clipset.config import fingerprint, to_mapping
from clipset.data.leaks import check_leaks
from clipset.data.tasks import Task, join_tasks, read_tasks
from clipset.errors import ClipsetError, ConfigError
from clipset.evaluation.results import ProbeResult
from clipset.evaluation.suite import run_suite
from clipset.features.extract import extract
from clipset.features.store import FeatureStore, open_store
from clipset.probes.config import ProbeKey
from clipset.probes.registry import find_name
from clipset.probes.task import EvaluationTask, make_task
from clipset.process.locks import exclusive
from clipset.progress import log
from clipset.recipe import Recipe, change_recipe
from clipset.reproduce.plan import RowPlan, TablePlan, find_plan, paper_title, read_table_recipe
from clipset.reproduce.render import write_renderings
from clipset.reproduce.table import Cell, TableFile, open_table, write_table
from clipset.runs import environment
from clipset.task_run import model_names, protocol_facts
from clipset.text import name_text
from clipset.training.pretrain import pretrain

PROBES_WITHOUT_MODEL = ("knn", "linear", "mlp")  # on the features of the backbone
FAILURES = (ClipsetError, MemoryError, RuntimeError)  # torch raises the last one without memory


@dataclass(frozen=True, slots=True, kw_only=True)
class ReproduceRequest:
    """Data, backbones and settings for a table."""

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
            raise ConfigError("give the data: --data FOLDER, or --store STORE, not both")
        if self.data is not None and not self.data.exists():
            raise ConfigError(f"{self.data} not found; --data is the folder of the dataset")
        if self.store is not None and self.backbones:
            raise ConfigError("a store has its backbone already; give --backbone with --data")

    @property
    def source(self) -> Path:
        """The folder of the data, or the store."""
        return (self.data or self.store or Path()).resolve()

    def dataset_name(self, recipe: Recipe) -> str:
        """The name of the data in a table."""
        if recipe.data.format in ("ucf101", "hmdb51"):
            return paper_title(recipe.data.format)
        folder_name = self.source.stem
        if self.source.name == "store":
            folder_name = self.source.parent.name
        return recipe.data.name or name_text(folder_name)


def reproduce(table_name: str, out: Path, request: ReproduceRequest) -> TableFile:
    """Run the pending cells of a table into a folder, and write the table in all formats."""
    plan = find_plan(table_name)
    recipe = read_table_recipe(plan, request.recipe, request.changes)
    missing: dict[str, str] = {}
    backbones = list(request.backbones or plan.backbones)
    if request.store is not None:
        backbones = [open_store(request.store).manifest.backbone.name]
    else:
        entries = {name: find_backbone(name) for name in backbones}
        missing = {
            name: entry.how_to_get_weights()
            for name, entry in entries.items()
            if entry.find_weights() is None
        }
    with exclusive(out):
        table = open_table(out, plan.table)
        table.data = name_text(request.source.name)
        table.missing = missing
        write_table(table, out)
        for name in backbones:
            if name not in missing:
                own_recipe = replace(recipe, extract=replace(recipe.extract, backbone=name))
                _BackboneRun(plan, table, out, own_recipe, request).run()
        write_renderings(table, out)
    return table


@dataclass
class _BackboneRun:
    """The cells of a table with one backbone."""

    plan: TablePlan
    table: TableFile
    out: Path
    recipe: Recipe
    request: ReproduceRequest
    task_cache: dict[str, EvaluationTask] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.title = paper_title(self.recipe.extract.backbone)
        self.folder = self.out / _slug(self.title)

    def run(self) -> None:
        """Run the pending cells; if the features cannot be made, all of them have failed."""
        try:
            stores = self._open_stores()
        except FAILURES as error:
            log(f"{self.recipe.extract.backbone}: {error}")
            column_titles = self.plan.table.columns if self.plan.columns == "tasks" else ("",)
            for row_plan in self.plan.rows:
                for task_title in column_titles:
                    row, column = self._locate(row_plan, task_title)
                    if all(cell.status == "failed" for cell in self.table.find(row, column)):
                        self._put_failure(row_plan, error, row=row, column=column)
            write_table(self.table, self.out)
            return
        is_averaged = self.plan.columns != "tasks" and len(stores) > 1
        task_names = tuple(task.name for task, _ in stores) if is_averaged else ()
        for task, store in stores:
            self.task_cache.clear()
            for row_plan in self.plan.rows:
                self._run_cell(row_plan, task, task_names, store)

    def _open_stores(self) -> list[tuple[Task, FeatureStore]]:
        """The tasks and their features; those of all videos are extracted once."""
        data, store_folder = self.request.data, self.request.store
        video_source = data if data is not None else open_store(self.request.source).catalog
        tasks = read_tasks(video_source, self.recipe.data)
        allow_leaks = self.request.allow_leaks or self.recipe.data.official
        check_leaks([task.catalog for task in tasks], allow_leaks=allow_leaks)
        if store_folder is None:
            store_folder = self.folder / "store"
            self.folder.mkdir(exist_ok=True)
            catalog = join_tasks(tasks)
            extract(catalog, store_folder, self.recipe.extract, device=self.request.device)
        return [(task, open_store(store_folder, task.catalog)) for task in tasks]

    def _locate(self, row_plan: RowPlan, task_title: str) -> tuple[str, str]:
        """Row and column of a cell."""
        if self.plan.columns == "tasks":
            return f"{self.title}, {row_plan.row}", task_title
        if self.plan.columns == "datasets":
            return row_plan.row, f"{self.request.dataset_name(self.recipe)}, {self.title}"
        return row_plan.row, self.title

    def _run_cell(
        self, row_plan: RowPlan, task: Task, task_names: tuple[str, ...], store: FeatureStore
    ) -> None:
        row, column = self._locate(row_plan, paper_title(task.name or self.recipe.data.task))
        task_name = "" if self.plan.columns == "tasks" else task.name
        key: dict[str, Any] = {"row": row, "column": column, "task": task_name, "tasks": task_names}
        seed, start_time = self.request.seed, time.perf_counter()
        try:
            recipe = change_recipe(self.recipe, row_plan.changes)
            cell_fingerprint = fingerprint(
                *(recipe.data, recipe.pretrain, recipe.evaluate, row_plan, seed),
                replace(store.manifest, made_by={}),
                task.catalog.fingerprint,
                [entry.fingerprint for entry in store.entries],
            )
            if self.table.is_done(row, column, task_name, cell_fingerprint):
                return
            log(" · ".join(filter(None, (row, column, task_name))))
            result = self._score(row_plan, recipe, task, store)
        except FAILURES as error:
            log(f"failed: {error}")
            self._put_failure(row_plan, error, **key)
        else:
            settings, machine_facts = to_mapping(recipe), environment()
            self.table.recipes[fingerprint(settings)] = settings
            self.table.environments[fingerprint(machine_facts)] = machine_facts
            self.table.put(
                Cell(
                    **key,
                    status="done",
                    fingerprint=cell_fingerprint,
                    result=result,
                    recipe=fingerprint(settings),
                    environment=fingerprint(machine_facts),
                    seed=seed,
                    date=_now(),
                    seconds=time.perf_counter() - start_time,
                )
            )
            log(f"{row} · {column}: {result.metric} {result.value:.4f}")  # also on a full disk
        write_table(self.table, self.out)

    def _score(
        self, row_plan: RowPlan, recipe: Recipe, task: Task, store: FeatureStore
    ) -> ProbeResult:
        """Run the probe of a row; rows with the same settings share models and task."""
        models, config = [], recipe.pretrain
        if row_plan.features == "scale" or row_plan.probe not in PROBES_WITHOUT_MODEL:
            row_folder = _slug(row_plan.row) if row_plan.changes else ""
            folder = self.folder / task.name / row_folder
            models = [
                pretrain(store, folder / name, config, seed=seed, device=self.request.device)
                for name, seed in model_names(recipe, self.request.seed).items()
            ]
        key = fingerprint(recipe.data, config)
        if key not in self.task_cache:
            self.task_cache = {key: make_task(store, task.catalog, training=config)}
        suite = run_suite(
            self.task_cache[key],
            models[0] if models else None,
            recipe.evaluate,
            seed=self.request.seed,
            probes=[find_name(ProbeKey(row_plan.features, row_plan.probe))],
            more_models=models[1:],
        )
        return replace(suite.results[0], **protocol_facts(recipe), per_class={}, confusion=None)

    def _put_failure(self, row_plan: RowPlan, error: BaseException, **key: Any) -> None:
        error_lines = str(error).strip().splitlines() or [type(error).__name__]
        self.table.put(
            Cell(
                **key,
                status="failed",
                fingerprint=fingerprint(row_plan),
                reason=error_lines[0],
                seed=self.request.seed,
                date=_now(),
            )
        )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _slug(name: str) -> str:
    """A valid file name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name.replace("ρ", "r")).strip("-") or "column"
