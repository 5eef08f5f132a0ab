"""run(): catalog → features → model → vectors → scores → report, in one folder. Resumable.

A step whose inputs and outputs are as recorded is skipped, and what it needs is not imported: a
finished run loads no network and decodes no video. So heavy modules are imported where they are
used.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from clipset.config import fingerprint, to_mapping
from clipset.data.catalog import Catalog, describe_catalog, write_catalog
from clipset.data.leaks import check_leaks
from clipset.data.tasks import Task, join_tasks, read_tasks
from clipset.devices import check_device_name, find_device
from clipset.errors import ClipsetError, ConfigError, RunError
from clipset.evaluation.results import (
    Comparison,
    ProbeResult,
    RetrievalResult,
    read_optional,
    read_predictions,
    read_records,
    read_results,
)
from clipset.evaluation.statistics import (
    compare_probes,
    intervals_over_tasks,
    join_results,
    mean_results,
)
from clipset.features.store import (
    FeatureStore,
    check_any_read,
    check_store,
    open_store,
    read_manifest,
    retry_hint,
)
from clipset.files import write_atomic, write_json, writing
from clipset.planning.time_budget import RunClock
from clipset.process.locks import exclusive
from clipset.progress import bar, log, set_later_work
from clipset.recipe import Recipe, find_recipe, read_recipe
from clipset.runs import (
    RunFolder,
    StepRecord,
    check_run_folder,
    digest_file,
    find_damaged_outputs,
    read_steps,
    watch_file,
)
from clipset.task_run import TaskRun, check_task_pretraining, model_names, write_run_report
from clipset.text import name_text, path_text

if TYPE_CHECKING:
    from clipset.features.config import ExtractConfig

NO_EFFECT_ON_FEATURES = ("preset", "workers", "timeout", "retry_failed")  # settings of extraction
MIN_DEMO_VIDEOS = 16  # two of each class


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The scores of a run and the files in its folder."""

    folder: Path
    report: Path
    vectors: Path
    videos: int
    failed: int
    damaged: int
    scores: list[ProbeResult]
    comparisons: list[Comparison]
    retrieval: list[RetrievalResult]
    steps: dict[str, Literal["done", "skipped"]]
    seconds: dict[str, float]
    note: str = ""


def run(
    videos: str | Path | Catalog,
    out: str | Path,
    recipe: str | Path | Recipe | None = None,
    *,
    preset: str | None = None,
    seed: int = 0,
    device: str = "auto",
    allow_leaks: bool = False,
    minutes: float | None = None,
) -> RunResult:
    """Extract features, pre-train, embed, evaluate and report; a finished step is skipped.

    `recipe` is a TOML file or a Recipe; `preset` names settings for all steps; `seed` is that of
    pre-training and evaluation. Several tasks (label sets, official splits) share the features; all
    other steps are done for each task in a folder of its own. Splits that share files or groups are
    refused unless they are official, or `allow_leaks` is True. `minutes` bounds the whole run:
    pre-training and probes are cut to fit, extraction is not.
    """
    started_at, recipe, out = time.perf_counter(), _resolve(recipe, preset), Path(out)
    videos = videos if isinstance(videos, Catalog) else Path(videos)
    tasks = read_tasks(videos, recipe.data)
    catalog = join_tasks(tasks)
    allow_leaks = allow_leaks or recipe.data.official
    leak_lines = check_leaks([task.catalog for task in tasks], allow_leaks=allow_leaks)
    listing_seconds = time.perf_counter() - started_at
    if minutes is not None and not 0 < minutes < math.inf:
        raise ConfigError(f"minutes must be more than 0, got {minutes}")
    check_device_name(device)
    if device not in ("auto", "cpu"):
        find_device(device)  # refused here if this machine does not have it
    with ExitStack() as locks:
        for path in (out, out / "store", *(out / name for name in model_names(recipe, seed))):
            if path == out or (path.is_dir() and not path.is_symlink()):
                locks.enter_context(exclusive(path))
        check_run_folder(out)
        extraction = _Extraction(out, catalog, recipe.extract, device)
        sampling = extraction.manifest.sampling
        run_clock = RunClock(
            recipe, tasks, device, dim=extraction.manifest.backbone.dim,
            regular_clips=sampling.num_times * sampling.num_crops,
            started_at=started_at, minutes=minutes,
        )  # fmt: skip
        if extraction.has_all_videos:
            planned_recipe = run_clock.recorded_recipe(out)
            check_task_pretraining(out, tasks, planned_recipe, seed=seed, device=device)
        name, source = _name_data(videos, recipe)
        folder = RunFolder(
            out,
            name=name,
            recipe=to_mapping(recipe),
            seed=seed,
            device=device,
            source=source,
            leaks=leak_lines,
        )
        _write_catalog(folder, catalog, time.perf_counter() - listing_seconds)
        folder.step(
            "extract",
            lambda: extraction.run(run_clock),
            fingerprint=extraction.fingerprint,
            skip=extraction.is_current,
            started_at=extraction.started_at,
        )
        store = open_store(out / "store", catalog)
        folder.decide("clips", store.manifest.made_by.get("clips", ""))
        if extraction.is_current and store.failed:
            log(retry_hint(len(store.failed)))
        recipe = run_clock.limit(folder, store)
        if len(tasks) == 1:
            note = TaskRun(folder, store, recipe, device, run_clock).run()
        else:
            note = _run_tasks(folder, tasks, recipe, device, run_clock)
        note = "; ".join(filter(None, (note, folder.content["decisions"].get("time limit"))))
        set_later_work(0.0)
    return RunResult(
        folder=out,
        report=out / "report.html",
        vectors=out / "vectors",
        videos=len(store),
        failed=len(store.failed),
        damaged=sum(entry.damage is not None for entry in store.entries),
        scores=read_results(out),
        comparisons=read_records(out / "comparisons.json", Comparison),
        retrieval=read_optional(out / "retrieval.json", RetrievalResult),
        steps={name: "skipped" if s.skipped else "done" for name, s in folder.steps.items()},
        seconds={name: step.seconds for name, step in folder.steps.items()},
        note=note,
    )


def _resolve(recipe: str | Path | Recipe | None, preset: str | None) -> Recipe:
    if not isinstance(recipe, Recipe):
        return read_recipe(None if recipe is None else Path(recipe), (), {"preset": preset})
    if preset is not None:
        raise ConfigError("give a preset or a Recipe, not both")
    return recipe


def run_demo(
    out: str | Path, *, videos: int = 200, seed: int = 0, device: str = "auto"
) -> RunResult:
    """Render the demo's videos into `out/videos` and run the pipeline on them in `out/run`."""
    from clipset.demo_videos.dataset import render_demo

    if videos < MIN_DEMO_VIDEOS:
        raise ConfigError(f"the demo needs at least {MIN_DEMO_VIDEOS} videos, got {videos}")
    started_at, recipe, out = time.perf_counter(), read_recipe(find_recipe("demo")), Path(out)
    with exclusive(out):
        with bar("rendering videos", videos, "videos") as advance:
            catalog = render_demo(out / "videos", seed=seed, videos=videos, on_video=advance)
        render_seconds = time.perf_counter() - started_at
        result = run(catalog, out / "run", recipe, seed=seed, device=device)
    return replace(result, seconds={"render": render_seconds} | result.seconds)


def _write_catalog(folder: RunFolder, catalog: Catalog, started_at: float) -> None:
    """The step `catalog`; it includes the time to list the videos and to find leaks."""
    log(describe_catalog(catalog))
    columns = [video.columns for video in catalog] if catalog.columns else []
    folder.step(
        "catalog",
        lambda: write_catalog(catalog, folder.folder / "catalog.csv"),
        fingerprint=fingerprint(catalog.fingerprint, columns) if columns else catalog.fingerprint,
        outputs=("catalog.csv",),
        started_at=started_at,
    )


def _name_data(videos: Path | Catalog, recipe: Recipe) -> tuple[str, str]:
    """The name of the data, and its source: a folder's name, or a file and its folder."""
    if isinstance(videos, Catalog):
        return recipe.data.name or videos.name, videos.name
    path = videos.resolve()
    source_name = path.name if path.is_dir() else f"{path.parent.name}/{path.name}"
    return recipe.data.name or name_text(path.stem), name_text(source_name)


class _Extraction:
    """The step `extract`: checked, and its backbone loaded if needed, before anything is written.

    `is_current` says that the recorded step is valid: nothing is loaded. `has_all_videos` says that
    no video is pending or has changed.
    """

    def __init__(self, out: Path, catalog: Catalog, config: ExtractConfig, device: str) -> None:
        self.folder, self.catalog = out / "store", catalog
        self.config, self.device = config, device
        self.started_at = time.perf_counter()
        self.has_all_videos = self.is_complete = self.is_current = self._is_current(out)
        if not self.is_current:
            self._plan()

    def run(self, clock: RunClock) -> StepRecord:
        """Extract the pending videos."""
        clock.begin("extract")
        from clipset.backbones.registry import backbone_files
        from clipset.features.extract import extract

        if not (self.is_complete and self.folder.is_symlink()):  # a linked store is only read
            store_plan = self.manifest, self.network
            extract(self.catalog, self.folder, self.config, device=self.device, plan=store_plan)
        check_any_read(FeatureStore(self.folder, self.catalog))
        backbone_paths = backbone_files(self.config.backbone.strip(), self.manifest.backbone)
        watched_files = {path_text(path.absolute()): watch_file(path) for path in backbone_paths}
        return StepRecord("extract", skipped=self.is_complete, watched=watched_files)

    @property
    def fingerprint(self) -> str:
        """The inputs of the step, but for the files of videos and backbone."""
        settings = to_mapping(self.config)
        rows = {name: v for name, v in settings.items() if name not in NO_EFFECT_ON_FEATURES}
        return fingerprint(rows, self.manifest.fingerprint, self.catalog.fingerprint)

    def _is_current(self, out: Path) -> bool:
        record = read_steps(out).get("extract")
        if record is None or not record.watched or not (self.folder / "manifest.json").is_file():
            return False
        self.manifest = replace(read_manifest(self.folder), made_by={})
        if not record.is_current(out, self.fingerprint):
            return False
        if not check_store(self.folder, self.manifest, self.catalog).is_complete:
            return False
        store = FeatureStore(self.folder, self.catalog)
        return bool(store.entries) and not (self.config.retry_failed and store.failed)

    def _plan(self) -> None:
        """Load the backbone and compare the store with it; raises what extraction would raise."""
        from clipset.features.extract import plan_store

        find_device(self.device)
        self.manifest, self.network = plan_store(self.config, self.catalog.videos, self.folder)
        if not (self.folder / "manifest.json").is_file():
            return
        store_check = check_store(self.folder, self.manifest, self.catalog)
        is_linked = self.folder.is_symlink()
        if is_linked and store_check.changed:
            raise RunError(
                f"{self.folder} is a link to a store that was made of other files: "
                f"{len(store_check.changed)} of {len(self.catalog)} videos differ; remove the link"
            )
        self.has_all_videos = not (store_check.pending or store_check.changed)
        self.is_complete = self.has_all_videos and (is_linked or not store_check.transient)


def _run_tasks(
    folder: RunFolder, tasks: Sequence[Task], recipe: Recipe, device: str, clock: RunClock
) -> str:
    """The steps of each task in a folder of its own, then all scores side by side."""
    task_notes, run_content = [], folder.content
    for task in tasks:
        log(f"{task.name}: {describe_catalog(task.catalog)}")
        began = time.perf_counter()
        inner = RunFolder(
            folder.folder / task.name,
            name=f"{run_content['name']}, {task.name}",
            recipe=run_content["recipe"],
            seed=folder.seed,
            device=device,
            source=run_content["source"],
            leaks=run_content.get("allowed_leaks", ()),
        )
        write_catalog(task.catalog, inner.folder / "catalog.csv")
        task_store = open_store(folder.folder / "store", task.catalog)
        _copy_models(inner, task_store, [folder.folder / other.name for other in tasks], recipe)
        task_note = TaskRun(inner, task_store, recipe, device, clock).run()
        task_notes += [f"{task.name}: {task_note}"] if task_note else []
        folder.record(
            StepRecord(task.name, seconds=time.perf_counter() - began, skipped=inner.all_skipped)
        )
    names = [task.name for task in tasks]
    folder.step(
        "scores",
        lambda: _join_tasks(folder.folder, names, recipe),
        fingerprint=_scores_fingerprint(folder.folder, names, averaged=recipe.data.averaged),
        outputs=("results.json", "comparisons.json"),
    )
    write_run_report(folder)
    return "; ".join(task_notes)


def _scores_fingerprint(folder: Path, names: Sequence[str], *, averaged: bool) -> str:
    """The inputs of the scores of all tasks: those of each."""
    files = ("results.json", "predictions.safetensors")
    return fingerprint(averaged, {n: [digest_file(folder / n / f) for f in files] for n in names})


def _join_tasks(folder: Path, names: Sequence[str], recipe: Recipe) -> None:
    """Write the results of all tasks, and their mean where they repeat one problem."""
    by_task = {name: read_results(folder / name) for name in names}
    results: list[ProbeResult] = join_results(by_task)
    comparisons: list[Comparison] = []
    if recipe.data.averaged and results:
        predictions = [read_predictions(folder / n / "predictions.safetensors") for n in names]
        results = mean_results(by_task, intervals_over_tasks(predictions))
        comparisons = compare_probes(*predictions)
    write_json(folder / "results.json", to_mapping(results))
    write_json(folder / "comparisons.json", to_mapping(comparisons))


def _copy_models(
    inner: RunFolder, store: FeatureStore, others: Sequence[Path], recipe: Recipe
) -> None:
    """Copy the models of another task on the same videos: no label is used to train them."""
    from clipset.training.pretrain import is_trained

    for model_name, seed in model_names(recipe, inner.seed).items():
        target = inner.folder / model_name
        for source in (other / model_name for other in others):
            if not target.exists() and is_trained(store, source, recipe.pretrain, seed=seed):
                with writing(target):  # model.json comes last: it says that the model is complete
                    shutil.copytree(source, target, ignore=lambda *_: ["model.json"])
                write_atomic(target / "model.json", (source / "model.json").read_bytes())


def verify_run(folder: Path, *, videos: bool = False) -> list[tuple[str, str]]:
    """Problems of a run's files: its store, what its steps wrote, and files with a checksum."""
    from clipset.features.verify import verify_store

    damages: dict[str, str] = {}
    for run_file in (folder / "run.json", *sorted(folder.glob("*/run.json"))):  # also of the tasks
        for name, problem in find_damaged_outputs(run_file.parent).items():
            damages[name_text((run_file.parent / name).relative_to(folder))] = problem
    for path in sorted(folder.rglob("*")):
        name = name_text(path.relative_to(folder))
        if name not in damages and (damage := _find_damage_within(path)) is not None:
            damages[name] = damage
    return verify_store(folder / "store", videos=videos) + sorted(damages.items())


def _find_damage_within(path: Path) -> str | None:
    """The problem that a model, a sealed file or the metrics of a training show by themselves."""
    from clipset.checksums import find_damage
    from clipset.report.run_page import read_curves
    from clipset.training.checkpoint import MODEL_FILE, load_model

    try:
        if path.name == MODEL_FILE:
            load_model(path.parent)
        elif path.suffix == ".safetensors":
            return find_damage(path)
        elif path.name == "metrics.jsonl":
            read_curves(path)
    except ClipsetError as error:
        return str(error)
    return None
