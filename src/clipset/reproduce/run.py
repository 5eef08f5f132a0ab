"""Run a table of the paper, cell by cell; finished cells are not run again."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from clipset.backbones.registry import find_backbone, how_to_get_weights
from clipset.config import fingerprint, to_mapping
from clipset.data.leaks import check_leaks
from clipset.data.tasks import Task, join_tasks, read_tasks
from clipset.errors import ClipsetError, ConfigError
from clipset.evaluation.results import ProbeResult
from clipset.evaluation.suite import run_suite
from clipset.features.extract import extract
from clipset.features.store import FeatureStore, open_store
from clipset.pipeline import model_names, protocol_facts
from clipset.probes.config import ProbeKey
from clipset.probes.registry import find_name
from clipset.probes.task import EvaluationTask, make_task
from clipset.process.locks import exclusive
from clipset.progress import log
from clipset.recipe import Recipe, change_recipe
from clipset.reproduce.plan import (
    RowPlan,
    TablePlan,
    backbone_title,
    dataset_title,
    find_plan,
    read_table_recipe,
    task_title,
)
from clipset.reproduce.render import write_renderings
from clipset.reproduce.table import Cell, TableFile, open_table, write_table
from clipset.runs import environment
from clipset.text import name_text
from clipset.training.checkpoint import ScaleModel
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
        if self.store is not None and self.backbones:
            raise ConfigError("a store has its backbone already; give --backbone with --data")

    @property
    def source(self) -> Path:
        """The folder of the data, or the store."""
        return (self.data or self.store or Path()).resolve()

    def dataset_name(self, recipe: Recipe) -> str:
        """The name of the data in a table."""
        if recipe.data.format in ("ucf101", "hmdb51"):
            return dataset_title(recipe.data.format)
        if recipe.data.name:
            return recipe.data.name
        return name_text(
            self.source.parent.name if self.source.name == "store" else self.source.stem
        )


def reproduce(name: str, out: Path, request: ReproduceRequest) -> TableFile:
    """Run the pending cells of a table into a folder, and write the table in all formats."""
    plan = find_plan(name)
    recipe = read_table_recipe(plan, request.recipe, request.changes)
    backbones = _find_backbones(plan, request)
    with exclusive(out):
        table = open_table(out, empty_table(plan))
        table.data = name_text(request.source.name)
        table.missing = {backbone: advice for backbone, advice in backbones.items() if advice}
        write_table(table, out)
        for backbone in (backbone for backbone, advice in backbones.items() if not advice):
            own_recipe = replace(recipe, extract=replace(recipe.extract, backbone=backbone))
            _run_backbone(plan, table, out, own_recipe, request, backbone)
        write_renderings(table, out)
    return table


def empty_table(plan: TablePlan) -> TableFile:
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


def _find_backbones(plan: TablePlan, request: ReproduceRequest) -> dict[str, str]:
    """The backbones to run; those without weights with the place to get them."""
    if request.store is not None:
        return {open_store(request.store).manifest.backbone.name: ""}
    backbones = {}
    for name in request.backbones or plan.backbones:
        entry = find_backbone(name)
        available = entry.find_weights() is not None
        backbones[name] = "" if available else how_to_get_weights(entry)
    return backbones


def _run_backbone(
    plan: TablePlan,
    table: TableFile,
    out: Path,
    recipe: Recipe,
    request: ReproduceRequest,
    backbone: str,
) -> None:
    folder = out / _slug(backbone_title(backbone))
    try:
        runners = _open_tasks(plan, folder, recipe, request, backbone)
    except FAILURES as error:
        log(f"{backbone}: {error}")
        for row, column, row_plan in _planned_cells(plan, recipe, request, backbone):
            if all(cell.status == "failed" for cell in table.find(row, column)):
                table.put(_failed_cell(row, column, row_plan, request.seed, error))
        write_table(table, out)
        return
    for runner in runners:
        for row_plan in plan.rows:
            _run_cell(table, out, runner, row_plan)


def _planned_cells(
    plan: TablePlan, recipe: Recipe, request: ReproduceRequest, backbone: str
) -> Iterator[tuple[str, str, RowPlan]]:
    """The cells of a backbone whose tasks are unknown."""
    title = backbone_title(backbone)
    for row_plan in plan.rows:
        if plan.columns == "tasks":
            for column in plan.table.columns:
                yield f"{title}, {row_plan.row}", column, row_plan
        elif plan.columns == "datasets":
            yield row_plan.row, f"{request.dataset_name(recipe)}, {title}", row_plan
        else:
            yield row_plan.row, title, row_plan


def _open_tasks(
    plan: TablePlan, folder: Path, recipe: Recipe, request: ReproduceRequest, backbone: str
) -> list[_TaskRunner]:
    """Extract the features of all videos once; a runner for each task."""
    if request.store is not None:
        store = request.store
        tasks = read_tasks(open_store(store).catalog, recipe.data)
        _check_task_leaks(tasks, recipe, request)
    else:
        assert request.data is not None
        store = folder / "store"
        tasks = read_tasks(request.data, recipe.data)
        _check_task_leaks(tasks, recipe, request)
        folder.mkdir(exist_ok=True)
        catalog = join_tasks(tasks)
        extract(catalog, store, recipe.extract, device=request.device)
    averaged = plan.columns != "tasks" and len(tasks) > 1
    return [
        _TaskRunner(
            plan=plan,
            task=task,
            tasks=tuple(task.name for task in tasks) if averaged else (),
            folder=folder / task.name if task.name else folder,
            store=open_store(store, task.catalog),
            recipe=recipe,
            request=request,
            backbone=backbone_title(backbone),
        )
        for task in tasks
    ]


def _check_task_leaks(tasks: Sequence[Task], recipe: Recipe, request: ReproduceRequest) -> None:
    allow_leaks = request.allow_leaks or recipe.data.official
    check_leaks([task.catalog for task in tasks], allow_leaks=allow_leaks)


@dataclass(kw_only=True)
class _TaskRunner:
    """One task with one backbone: the data that its cells share."""

    plan: TablePlan
    task: Task
    tasks: tuple[str, ...]
    folder: Path
    store: FeatureStore
    recipe: Recipe
    request: ReproduceRequest
    backbone: str
    task_cache: dict[str, EvaluationTask] = field(default_factory=dict)

    def locate(self, row_plan: RowPlan) -> tuple[str, str, str]:
        """Row, column and task of a cell."""
        if self.plan.columns == "tasks":
            column = task_title(self.task.name or self.recipe.data.task)
            return f"{self.backbone}, {row_plan.row}", column, ""
        if self.plan.columns == "datasets":
            dataset = self.request.dataset_name(self.recipe)
            return row_plan.row, f"{dataset}, {self.backbone}", self.task.name
        return row_plan.row, self.backbone, self.task.name

    def fingerprint(self, row_plan: RowPlan, recipe: Recipe) -> str:
        """Of everything that the score of a row depends on."""
        return fingerprint(
            *(recipe.data, recipe.pretrain, recipe.evaluate, row_plan, self.request.seed),
            replace(self.store.manifest, made_by={}),
            self.task.catalog.fingerprint,
            [entry.checksum for entry in self.store.entries],
        )

    def score(self, row_plan: RowPlan, recipe: Recipe) -> ProbeResult:
        """Run the probe of a row."""
        models = self._pretrain(row_plan, recipe)
        name = find_name(ProbeKey(row_plan.features, row_plan.probe))
        task, seed = self._evaluation_task(recipe), self.request.seed
        model = models[0] if models else None
        suite = run_suite(
            task, model, recipe.evaluate, seed=seed, probes=[name], more_models=models[1:]
        )
        facts = protocol_facts(recipe)
        return replace(suite.results[0], **facts, per_class={}, confusion=None)

    def _pretrain(self, row_plan: RowPlan, recipe: Recipe) -> list[ScaleModel]:
        """The models of a row, if its probe needs some; rows with the same settings share them."""
        if row_plan.features == "backbone" and row_plan.probe in PROBES_WITHOUT_MODEL:
            return []
        folder = self.folder / _slug(row_plan.row) if row_plan.changes else self.folder
        config, device = recipe.pretrain, self.request.device
        return [
            pretrain(self.store, folder / name, config, seed=seed, device=device)
            for name, seed in model_names(recipe, self.request.seed).items()
        ]

    def _evaluation_task(self, recipe: Recipe) -> EvaluationTask:
        """Read once for rows with the same settings."""
        key = fingerprint(recipe.data, recipe.pretrain)
        if key not in self.task_cache:
            task = make_task(self.store, self.task.catalog, training=recipe.pretrain)
            self.task_cache = {key: task}
        return self.task_cache[key]


def _run_cell(table: TableFile, out: Path, runner: _TaskRunner, row_plan: RowPlan) -> None:
    row, column, task = runner.locate(row_plan)
    start = time.perf_counter()
    try:
        recipe = change_recipe(runner.recipe, row_plan.changes)
        cell_fingerprint = runner.fingerprint(row_plan, recipe)
        if table.is_done(row, column, task, cell_fingerprint):
            return
        log(" · ".join(filter(None, (row, column, task))))
        result = runner.score(row_plan, recipe)
    except FAILURES as error:
        log(f"failed: {error}")
        seed, tasks = runner.request.seed, runner.tasks
        table.put(_failed_cell(row, column, row_plan, seed, error, task=task, tasks=tasks))
    else:
        settings, machine = to_mapping(recipe), environment()
        table.recipes[fingerprint(settings)] = settings
        table.environments[fingerprint(machine)] = machine
        table.put(
            Cell(
                row=row,
                column=column,
                task=task,
                tasks=runner.tasks,
                status="done",
                fingerprint=cell_fingerprint,
                result=result,
                recipe=fingerprint(settings),
                environment=fingerprint(machine),
                seed=runner.request.seed,
                date=datetime.now(UTC).isoformat(timespec="seconds"),
                seconds=time.perf_counter() - start,
            )
        )
        log(f"{row} · {column}: {result.metric} {result.value:.4f}")  # also on a full disk
    write_table(table, out)


def _failed_cell(
    row: str,
    column: str,
    row_plan: RowPlan,
    seed: int,
    error: BaseException,
    *,
    task: str = "",
    tasks: tuple[str, ...] = (),
) -> Cell:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return Cell(
        row=row,
        column=column,
        task=task,
        tasks=tasks,
        status="failed",
        fingerprint=fingerprint(row_plan),
        reason=lines[0],
        seed=seed,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _slug(name: str) -> str:
    """A valid file name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name.replace("ρ", "r")).strip("-") or "column"
