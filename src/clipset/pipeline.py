"""run(): catalog → features → model → vectors → scores → report, in one folder. Resumable.

A step whose inputs and outputs are as recorded is skipped, and what it needs is not imported: a
finished run loads no network and decodes no video. So heavy modules are imported where they are
used.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from clipset.config import fingerprint, to_mapping
from clipset.data.catalog import Catalog, describe_catalog, write_catalog
from clipset.data.leaks import check_leaks
from clipset.data.tasks import Task, join_tasks, read_tasks
from clipset.devices import check_device_name, find_device
from clipset.errors import ClipsetError, ConfigError, OutputError, ProbeError, RunError
from clipset.evaluation.results import (
    Comparison,
    ProbeResult,
    read_predictions,
    read_records,
    read_results,
)
from clipset.evaluation.statistics import (
    compare_over_tasks,
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
from clipset.process.locks import exclusive
from clipset.progress import bar, log
from clipset.recipe import Recipe, find_recipe, read_recipe
from clipset.runs import (
    RunFolder,
    StepRecord,
    check_run_folder,
    digest_file,
    read_steps,
    watch_file,
)
from clipset.text import name_text, path_text
from clipset.time_budget import DataSize, RunClock
from clipset.training.config import weight_settings

if TYPE_CHECKING:
    from clipset.features.config import ExtractConfig
    from clipset.training.checkpoint import ScaleModel

MODEL_FILES = ("model.safetensors", "model.json", "metrics.jsonl")
VECTOR_FILES = ("vectors/vectors.safetensors", "vectors/videos.csv")
RESULT_FILES = ("results.json", "comparisons.json", "predictions.safetensors")
REPORT_INPUTS = (
    *(f"model/{name}" for name in MODEL_FILES), *VECTOR_FILES, *RESULT_FILES, "low_shot.json",
)  # fmt: skip
NO_EFFECT_ON_FEATURES = ("preset", "workers", "timeout", "retry_failed")  # settings of extraction


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
    leaks = check_leaks([task.catalog for task in tasks], allow_leaks=allow_leaks)
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
        size = DataSize.of(tasks, extraction.manifest.backbone.dim, recipe)
        clock = RunClock(recipe, size, device, started_at=started_at, minutes=minutes)
        if extraction.has_all_videos:
            planned = clock.recorded_recipe(out)
            _check_pretraining(out, tasks, planned, seed=seed, device=device)
        name, source = _name_data(videos, recipe)
        folder = RunFolder(
            out,
            name=name,
            recipe=to_mapping(recipe),
            seed=seed,
            device=device,
            source=source,
            leaks=leaks,
        )
        _write_catalog(folder, catalog, time.perf_counter() - listing_seconds)
        folder.step(
            "extract",
            lambda: extraction.run(clock),
            fingerprint=extraction.fingerprint,
            skip=extraction.is_current,
            started_at=extraction.started_at,
        )
        store = open_store(out / "store", catalog)
        folder.decide("clips", store.manifest.made_by.get("clips", ""))
        if extraction.is_current and store.failed:
            log(retry_hint(len(store.failed)))
        recipe = clock.limit(folder)
        if len(tasks) == 1:
            note = _TaskRun(folder, store, recipe, device, clock).run()
        else:
            note = _run_tasks(folder, tasks, recipe, device, clock)
        note = "; ".join(filter(None, (note, folder.content["decisions"].get("time limit"))))
    return RunResult(
        folder=out,
        report=out / "report.html",
        vectors=out / "vectors",
        videos=len(store),
        failed=len(store.failed),
        damaged=sum(entry.damage is not None for entry in store.entries),
        scores=read_results(out),
        comparisons=read_records(out / "comparisons.json", Comparison),
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
    out: str | Path, *, videos: int = 240, seed: int = 0, device: str = "auto"
) -> RunResult:
    """Render the demo's videos into `out/videos` and run the pipeline on them in `out/run`."""
    from clipset.demo_videos.dataset import render_demo

    began, recipe, out = time.perf_counter(), read_recipe(find_recipe("demo")), Path(out)
    with exclusive(out):
        with bar("rendering videos", videos, "videos") as advance:
            catalog = render_demo(out / "videos", seed=seed, videos=videos, on_video=advance)
        rendering = time.perf_counter() - began
        result = run(catalog, out / "run", recipe, seed=seed, device=device)
    return replace(result, seconds={"render": rendering} | result.seconds)


def _write_catalog(folder: RunFolder, catalog: Catalog, started_at: float) -> None:
    """The step `catalog`; it includes the time to list the videos and to find leaks."""
    log(describe_catalog(catalog))
    folder.step(
        "catalog",
        lambda: write_catalog(catalog, folder.folder / "catalog.csv"),
        fingerprint=catalog.fingerprint,
        outputs=("catalog.csv",),
        started_at=started_at,
    )


def _name_data(videos: Path | Catalog, recipe: Recipe) -> tuple[str, str]:
    """The name of the data, and its source: a folder's name, or a file and its folder."""
    if isinstance(videos, Catalog):
        return recipe.data.name or videos.name, videos.name
    path = videos.resolve()
    source = path.name if path.is_dir() else f"{path.parent.name}/{path.name}"
    return recipe.data.name or name_text(path.stem), name_text(source)


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
            plan = self.manifest, self.network
            extract(self.catalog, self.folder, self.config, device=self.device, plan=plan)
        check_any_read(FeatureStore(self.folder, self.catalog))
        files = backbone_files(self.config.backbone.strip(), self.manifest.backbone)
        watched = {path_text(path.absolute()): watch_file(path) for path in files}
        return StepRecord("extract", skipped=self.is_complete, watched=watched)

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
        check = check_store(self.folder, self.manifest, self.catalog)
        is_linked = self.folder.is_symlink()
        if is_linked and check.changed:
            raise RunError(
                f"{self.folder} is a link to a store that was made of other files: "
                f"{len(check.changed)} of {len(self.catalog)} videos differ; remove the link"
            )
        self.has_all_videos = not (check.pending or check.changed)
        self.is_complete = self.has_all_videos and (is_linked or not check.transient)


def _check_pretraining(
    out: Path, tasks: Sequence[Task], recipe: Recipe, *, seed: int, device: str
) -> None:
    """Refuse what would fail in pre-training, before a file of a finished run is touched."""
    for task in tasks:
        folder, store = out / task.name, FeatureStore(out / "store", task.catalog)
        record, models = read_steps(folder).get("pretrain"), model_names(recipe, seed)
        inputs = _pretrain_fingerprint(store, recipe, models.values())
        if record is not None and record.is_current(folder, inputs, _model_files(models)):
            continue
        from clipset.training.pretrain import check_pretraining, ssl_videos

        if len(ssl_videos(store, recipe.pretrain.ssl_split)) >= 2:
            for name, own_seed in models.items():
                _refuse_other_link(store, folder / name, recipe, own_seed)
                check_pretraining(
                    store, folder / name, recipe.pretrain, seed=own_seed, device=device
                )


def model_names(recipe: Recipe, seed: int) -> dict[str, int]:
    """The folders of a run's models with their seeds: `model`, then `model-seed1`, …"""
    seeds = range(seed, seed + recipe.pretrain.seeds)
    return {"model" if own == seed else f"model-seed{own}": own for own in seeds}


def _model_files(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{name}/{file}" for name in names for file in MODEL_FILES)


def _pretrain_fingerprint(store: FeatureStore, recipe: Recipe, seeds: Iterable[int]) -> str:
    """The inputs of pre-training: settings, features, and the catalog with its splits."""
    rows = [(entry.id, entry.checksum) for entry in store.entries]
    settings, catalog = weight_settings(recipe.pretrain), store.catalog.fingerprint
    return fingerprint(settings, *seeds, store.manifest.fingerprint, rows, catalog)


def _refuse_other_link(store: FeatureStore, model: Path, recipe: Recipe, seed: int) -> None:
    from clipset.training.pretrain import is_trained

    if model.is_symlink() and not is_trained(store, model, recipe.pretrain, seed=seed):
        raise RunError(f"{model} is a link to a model with other settings; remove the link")


class _TaskRun:
    """The steps of one task after extraction: pretrain, embed, evaluate, report."""

    def __init__(
        self,
        folder: RunFolder,
        store: FeatureStore,
        recipe: Recipe,
        device: str,
        clock: RunClock,
    ) -> None:
        self.run_folder, self.store, self.recipe, self.device = folder, store, recipe, device
        self.clock = clock
        self.folder, self.seed = folder.folder, folder.seed
        self.model_names = model_names(recipe, folder.seed)

    def run(self) -> str:
        """Do the steps that are not current; returns why a step did nothing, if one did not."""
        step, recipe, names = self.run_folder.step, self.recipe, self.model_names
        inputs = _pretrain_fingerprint(self.store, recipe, names.values())
        files = _model_files(names)
        trained = step("pretrain", self.pretrain, fingerprint=inputs, outputs=files)
        inputs = fingerprint(inputs, trained.outputs)
        first_model = {file: trained.outputs.get(file) for file in _model_files(["model"])}
        first_inputs = _pretrain_fingerprint(self.store, recipe, [self.seed])
        embedded = step(
            "embed", self.embed, fingerprint=fingerprint(first_inputs, first_model),
            outputs=VECTOR_FILES,
        )  # fmt: skip
        settings = {k: v for k, v in to_mapping(recipe.evaluate).items() if k != "preset"}
        limit = [] if self.clock.minutes is None else [self.clock.minutes]
        inputs = fingerprint(inputs, embedded.outputs, settings, recipe.data.test_split, *limit)
        evaluated = step("evaluate", self.evaluate, fingerprint=inputs, outputs=RESULT_FILES)
        _report(self.run_folder)
        return evaluated.note or trained.note

    @cached_property
    def models(self) -> list[ScaleModel]:
        """The pre-trained models; none if there are fewer than two videos to contrast."""
        from clipset.training.pretrain import pretrain, ssl_videos

        config = self.recipe.pretrain
        if len(ssl_videos(self.store, config.ssl_split)) < 2:
            return []
        self._record_device()
        models = []
        for number, (name, seed) in enumerate(self.model_names.items(), start=1):
            if config.seeds > 1:
                log(f"pre-training {number} of {config.seeds}, seed {seed}")
            folder = self.folder / name
            models.append(pretrain(self.store, folder, config, seed=seed, device=self.device))
        return models

    def pretrain(self) -> StepRecord:
        """Train the models, or load those that are trained already."""
        from clipset.training.batches import choose_batches
        from clipset.training.pretrain import is_trained, ssl_videos

        self.clock.begin("pretrain")
        videos = ssl_videos(self.store, self.recipe.pretrain.ssl_split)
        choice = choose_batches(self.store, videos, self.recipe.pretrain)
        self.run_folder.decide("batches", str(choice))
        trained = []
        for name, seed in self.model_names.items():
            _refuse_other_link(self.store, self.folder / name, self.recipe, seed)
            config = self.recipe.pretrain
            trained.append(is_trained(self.store, self.folder / name, config, seed=seed))
        if self.models:
            return StepRecord("pretrain", skipped=all(trained))
        note = "not pre-trained: contrast needs at least two videos"
        log(note)
        return StepRecord("pretrain", note=note)

    def embed(self) -> None:
        """Write the vectors of all videos."""
        from clipset.representation import embed_store, write_vectors

        self.clock.begin("embed")
        self._record_device()
        encoder = self.models[0].encoder if self.models else None
        table = embed_store(self.store, encoder, device=find_device(self.device))
        write_vectors(table, self.folder / "vectors")

    def evaluate(self) -> StepRecord:
        """Score the features if the videos have at least two labels to tell apart."""
        from clipset.evaluation.suite import run_suite
        from clipset.probes.task import make_task

        self.clock.begin("evaluate")
        try:
            task = make_task(self.store, self.store.catalog, training=self.recipe.pretrain)
        except ProbeError as reason:
            note = f"not evaluated: {reason}"
            log(note)
            for name in ("results.json", "comparisons.json"):
                write_json(self.folder / name, [])
            return StepRecord("evaluate", note=note)
        model = self.models[0] if self.models else None
        suite = run_suite(
            task, model, self.recipe.evaluate, seed=self.seed, more_models=self.models[1:],
            deadline=self.clock.deadline,
        )  # fmt: skip
        try:
            suite.write(self.folder / "results.json", protocol_facts(self.recipe))
        except OutputError:
            from clipset.report.wording import row_name

            for score in suite.results:  # finished probes are printed if they cannot be written
                log(f"{row_name(*score.key)}: {score.metric} {score.value:.4f}")
            raise
        left_out = ", ".join(suite.left_out)
        return StepRecord("evaluate", note=left_out and f"no time left for probes: {left_out}")

    def _record_device(self) -> None:
        """Record the device that the work is done on, once it is known."""
        self.run_folder.content["device"] = str(find_device(self.device))


def protocol_facts(recipe: Recipe) -> dict[str, Any]:
    """What a score depends on beside the probe itself."""
    label_fraction = recipe.evaluate.label_fraction
    facts: dict[str, Any] = {"ssl_split": recipe.pretrain.ssl_split}
    return facts if label_fraction is None else facts | {"label_fraction": label_fraction}


def _run_tasks(
    folder: RunFolder, tasks: Sequence[Task], recipe: Recipe, device: str, clock: RunClock
) -> str:
    """The steps of each task in a folder of its own, then all scores side by side."""
    notes, content = [], folder.content
    for task in tasks:
        log(f"{task.name}: {describe_catalog(task.catalog)}")
        began = time.perf_counter()
        inner = RunFolder(
            folder.folder / task.name,
            name=f"{content['name']}, {task.name}",
            recipe=content["recipe"],
            seed=folder.seed,
            device=device,
            source=content["source"],
            leaks=content.get("allowed_leaks", ()),
        )
        write_catalog(task.catalog, inner.folder / "catalog.csv")
        store = open_store(folder.folder / "store", task.catalog)
        _copy_models(inner, store, [folder.folder / other.name for other in tasks], recipe)
        note = _TaskRun(inner, store, recipe, device, clock).run()
        notes += [f"{task.name}: {note}"] if note else []
        folder.record(
            StepRecord(task.name, seconds=time.perf_counter() - began, skipped=inner.all_skipped)
        )
    _join_tasks(folder, [task.name for task in tasks], recipe)
    _report(folder)
    return "; ".join(notes)


def _join_tasks(folder: RunFolder, names: Sequence[str], recipe: Recipe) -> None:
    """Write the results of all tasks, and their mean where they repeat one problem."""
    by_task = {name: read_results(folder.folder / name) for name in names}
    results: list[ProbeResult] = join_results(by_task)
    comparisons: list[Comparison] = []
    if recipe.data.averaged and results:
        files = [folder.folder / name / "predictions.safetensors" for name in names]
        predictions = [read_predictions(path) for path in files]
        results = mean_results(by_task, intervals_over_tasks(predictions))
        comparisons = compare_over_tasks(predictions)
    write_json(folder.folder / "results.json", to_mapping(results))
    write_json(folder.folder / "comparisons.json", to_mapping(comparisons))


def _copy_models(
    inner: RunFolder, store: FeatureStore, others: Sequence[Path], recipe: Recipe
) -> None:
    """Copy the models of another task on the same videos: no label is used to train them."""
    from clipset.training.pretrain import is_trained

    for name, seed in model_names(recipe, inner.seed).items():
        target = inner.folder / name
        sources = (other / name for other in others if not target.exists())
        for source in sources:
            if is_trained(store, source, recipe.pretrain, seed=seed):
                with writing(target):  # model.json comes last: it says that the model is complete
                    shutil.copytree(source, target, ignore=lambda *_: ["model.json"])
                write_atomic(target / "model.json", (source / "model.json").read_bytes())
                break


def _report(folder: RunFolder) -> None:
    """The step `report`: write the page if anything on it has changed."""
    facts = {k: v for k, v in folder.content.items() if k not in ("started", "environment")}
    files = {name: digest_file(folder.folder / name) for name in REPORT_INPUTS}
    steps = [(step.name, step.fingerprint, step.outputs) for step in folder.steps.values()]
    inputs = fingerprint(facts, files, [step for step in steps if step[0] != "report"])

    def write() -> None:
        from clipset.report.run_page import report_run

        report_run(folder.folder)

    folder.step("report", write, fingerprint=inputs, outputs=("report.html",))


def verify_run(folder: Path, *, videos: bool = False) -> list[tuple[str, str]]:
    """Problems of a run's files: its store, models, classifiers, vectors and predictions."""
    from clipset.checksums import find_damage
    from clipset.features.verify import verify_store
    from clipset.training.checkpoint import MODEL_FILE

    problems = verify_store(folder / "store", videos=videos)
    for path in sorted(folder.rglob("*.safetensors")):
        damage = _find_model_damage(path) if path.name == MODEL_FILE else find_damage(path)
        if damage is not None:
            problems.append((name_text(path.relative_to(folder)), damage))
    return problems


def _find_model_damage(path: Path) -> str | None:
    from clipset.training.checkpoint import load_model

    try:
        load_model(path.parent)
    except ClipsetError as error:
        return str(error)
    return None
