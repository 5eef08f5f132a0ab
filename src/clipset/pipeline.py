"""The whole walk, from videos to a report, in one folder that can be run again and goes on."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from clipset.backbones.registry import digest_of
from clipset.checksums import find_damage
from clipset.config import (
    check_output,
    fingerprint,
    to_mapping,
    write_atomic,
    write_json,
    writing,
)
from clipset.data.catalog import Catalog, describe_catalog, write_catalog
from clipset.data.leaks import check_leaks
from clipset.data.tasks import Task, join_tasks, read_tasks
from clipset.demo.dataset import render_demo
from clipset.devices import find_device
from clipset.errors import ClipsetError, OutputError, ProbeError, RunError
from clipset.evaluation.results import (
    Comparison,
    ProbeResult,
    read_predictions,
    read_records,
)
from clipset.evaluation.statistics import (
    MEAN,
    compare_over_tasks,
    intervals_over_tasks,
    join_results,
    mean_results,
)
from clipset.evaluation.suite import run_suite
from clipset.features.extract import extract, plan_store
from clipset.features.store import FeatureStore, Manifest, check_any_read, open_store
from clipset.features.store_check import check_store
from clipset.features.verify import verify_store
from clipset.locks import exclusive
from clipset.probes.task import make_task
from clipset.progress import bar, say
from clipset.recipe import Recipe, find_recipe, read_recipe
from clipset.report.collect import collect_content
from clipset.report.page import write_report
from clipset.report.table_page import describe_comparisons, scores_page, write_table_page
from clipset.report.wording import row_name
from clipset.representation import embed_store, read_vectors, write_vectors
from clipset.runs import Run, check_run_folder, read_run
from clipset.text import name_text
from clipset.training.checkpoint import MODEL_FILE, ScaleModel, load_model, read_card
from clipset.training.pretrain import check_pretraining, is_trained, pretrain, ssl_videos

RESULT_FILES = ("results.json", "comparisons.json", "predictions.safetensors")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What came out of a walk, and where it lies."""

    folder: Path
    report: Path
    videos: int
    failed: int
    records: list[ProbeResult]
    comparisons: list[Comparison]
    seconds: dict[str, float]
    note: str = ""
    damaged: int = 0


def run(
    videos: Path | Catalog,
    out: Path,
    recipe: Recipe | None = None,
    *,
    seed: int = 0,
    device: str = "auto",
    allow_leaks: bool = False,
) -> RunResult:
    """Catalog, extract, pre-train, represent, probe, report; nothing is done twice.

    Where the data has several parts (official splits, tasks), features are extracted once for all
    of them, and what follows is done for each in a folder of its own. Splits that share files or
    groups are refused unless they are a dataset's own, or `allow_leaks` says so.
    """
    recipe, began = recipe or Recipe(), time.perf_counter()
    named, source = _names(videos, recipe)
    parts = read_tasks(videos, recipe.data)
    catalog = join_tasks(parts)
    allow_leaks = allow_leaks or recipe.data.official
    leaks = check_leaks([part.catalog for part in parts], allow_leaks=allow_leaks)
    planned = plan_store(recipe.extract)
    chosen = str(find_device(device))
    with ExitStack() as locks:
        for folder in (out, out / "store", out / "model"):
            if folder == out or (folder.is_dir() and not folder.is_symlink()):
                locks.enter_context(exclusive(folder))
        settled = _check(out, catalog, parts, recipe, planned[0], seed=seed, device=device)
        told = to_mapping(recipe)
        run = Run(
            out, name=named, recipe=told, seed=seed, device=chosen, source=source, leaks=leaks
        )
        with run.step("catalog", began=began):
            write_catalog(catalog, out / "catalog.csv")
            say(describe_catalog(catalog))
        with run.step("extract") as step:
            step.skipped = settled
            if not (settled and (out / "store").is_symlink()):  # a linked store is only read
                extract(catalog, out / "store", recipe.extract, device=device, plan=planned)
            check_any_read(FeatureStore(out / "store", catalog))
            store = open_store(out / "store", catalog)
        if len(parts) == 1:
            note = _learn(run, store, catalog, recipe, device)
        else:
            note = _learn_parts(run, parts, recipe, device)
    return RunResult(
        folder=out,
        report=out / "report.html",
        videos=len(store),
        failed=len(store.failed),
        records=read_results(out),
        comparisons=read_records(out / "comparisons.json", Comparison),
        seconds={step.name: step.seconds for step in run.steps.values()},
        note=note,
        damaged=sum(entry.damage is not None for entry in store.entries),
    )


def _check(
    out: Path,
    catalog: Catalog,
    parts: Sequence[Task],
    recipe: Recipe,
    manifest: Manifest,
    *,
    seed: int,
    device: str,
) -> bool:
    """Refuse what would fail later, before a file of a finished run is touched.

    Returns whether the store has every video already.
    """
    check_run_folder(out)
    where = out / "store"
    if not (where / "manifest.json").is_file():
        return False
    found = check_store(where, manifest, catalog)
    linked = where.is_symlink()
    if linked and found.changed:
        raise RunError(
            f"{where} is a link to a store that was made of other files: {len(found.changed)} of "
            f"{len(catalog)} videos differ; remove the link"
        )
    if found.pending or found.changed:
        return False
    for part in parts:
        model = out / part.name / "model"
        store = FeatureStore(where, part.catalog)
        if len(ssl_videos(store, recipe.pretrain.ssl_split)) >= 2:
            _refuse_other_link(store, model, recipe, seed)
            check_pretraining(store, model, recipe.pretrain, seed=seed, device=device)
    return linked or not found.transient


def _learn(run: Run, store: FeatureStore, catalog: Catalog, recipe: Recipe, device: str) -> str:
    """Pre-train, represent, probe, report; what there is to say about it."""
    out, seed = run.folder, int(run.content["seed"])
    with run.step("pretrain") as step:
        step.skipped = is_trained(store, out / "model", recipe.pretrain, seed=seed)
        model, note = _pretrain(store, out, recipe, seed, device)
        step.fingerprint = _fingerprint_of_model(out / "model")
    with run.step("represent") as step:
        rows = [entry.checksum for entry in store.entries]
        mark = fingerprint(run.steps["pretrain"].fingerprint, rows, catalog.fingerprint)
        step.skipped = step.fingerprint == mark and _is_whole(out / "representation")
        if not step.skipped:
            encoder = None if model is None else model.encoder
            table = embed_store(store, encoder, device=find_device(device))
            write_vectors(table, out / "representation")
            step.fingerprint = mark
    with run.step("probe") as step:
        before = run.steps["represent"].fingerprint
        settings = (recipe.evaluate, before, seed)
        step.skipped = step.fingerprint == fingerprint(*settings, _digest_results(out))
        if not step.skipped:
            note = _probe(store, catalog, model, out, recipe, seed) or note
            step.fingerprint = fingerprint(*settings, _digest_results(out))
    with run.step("report"):
        report_run(out)
    return note


def _learn_parts(run: Run, parts: Sequence[Task], recipe: Recipe, device: str) -> str:
    """The same for each part in a folder of its own, then all of them side by side."""
    notes, content = [], run.content
    for part in parts:
        with run.step(part.name):
            say(f"{part.name}: {describe_catalog(part.catalog)}")
            within = Run(
                run.folder / part.name,
                name=f"{content['name']}, {part.name}",
                recipe=content["recipe"],
                seed=content["seed"],
                device=content["device"],
                source=content["source"],
                leaks=content.get("allowed_leaks", ()),
            )
            write_catalog(part.catalog, within.folder / "catalog.csv")
            store = open_store(run.folder / "store", part.catalog)
            _share_model(within, store, [run.folder / other.name for other in parts], recipe)
            note = _learn(within, store, part.catalog, recipe, device)
            notes += [f"{part.name}: {note}"] if note else []
    found = {part.name: read_results(run.folder / part.name) for part in parts}
    results: list[ProbeResult] = join_results(found)
    comparisons: list[Comparison] = []
    if recipe.data.averaged and results:
        files = [run.folder / name / "predictions.safetensors" for name in found]
        predictions = [read_predictions(path) for path in files]
        results = mean_results(found, intervals_over_tasks(predictions, seed=content["seed"]))
        comparisons = compare_over_tasks(predictions, seed=content["seed"])
    with run.step("report"):
        write_json(run.folder / "results.json", to_mapping(results))
        write_json(run.folder / "comparisons.json", to_mapping(comparisons))
        report_parts(run.folder, str(content["name"]), found, results)
    return "; ".join(notes)


def _share_model(run: Run, store: FeatureStore, others: Sequence[Path], recipe: Recipe) -> None:
    """Tasks on the same videos have the same model, as no label is looked at: train it once."""
    where, seed = run.folder / "model", int(run.content["seed"])
    if where.exists():
        return
    for other in others:
        if is_trained(store, other / "model", recipe.pretrain, seed=seed):
            with writing(where):  # model.json comes last and makes it whole
                shutil.copytree(other / "model", where, ignore=lambda *_: ["model.json"])
            write_atomic(where / "model.json", (other / "model" / "model.json").read_bytes())
            return


def verify_run(folder: Path, *, videos: bool = False) -> list[tuple[str, str]]:
    """What of a run is not as it was written: its store, models, heads, vectors, predictions."""
    problems = verify_store(folder / "store", videos=videos)
    for path in sorted(folder.rglob("*.safetensors")):
        damage = _find_model_damage(path) if path.name == MODEL_FILE else find_damage(path)
        if damage is not None:
            problems.append((name_text(path.relative_to(folder)), damage))
    return problems


def _find_model_damage(path: Path) -> str | None:
    try:
        load_model(path.parent)
    except ClipsetError as error:
        return str(error)
    return None


def report_run(folder: Path) -> Path:
    """Write the page of a run; where it has several parts, a table of them with links."""
    run, path = read_run(folder), folder / "report.html"
    check_output(path, "file")
    results = read_results(folder) if (folder / "results.json").is_file() else []
    steps = [step["name"] for step in run.get("steps", [])]
    if any(result.task for result in results):
        names = [name for name in steps if (folder / name / "results.json").is_file()]
        found = {name: read_results(folder / name) for name in names}
        report_parts(folder, str(run.get("name", "")), found, results)
    else:
        write_report(collect_content(folder), path)
    return path


def report_parts(
    folder: Path,
    name: str,
    parts: Mapping[str, Sequence[ProbeResult]],
    joined: Sequence[ProbeResult],
) -> None:
    """Write the page of a run with several parts, with a link to the page of each."""
    means = [result for result in joined if result.task == MEAN]
    page = scores_page(name, {**parts, **({MEAN: means} if means else {})})
    notes = describe_comparisons(read_records(folder / "comparisons.json", Comparison))
    links = [(f"{part}: report", f"{quote(part)}/report.html") for part in parts]
    write_table_page(replace(page, links=links, notes=notes), folder / "report.html")


def run_demo(out: Path, *, videos: int = 240, seed: int = 0, device: str = "auto") -> RunResult:
    """Render the demo's videos into `out/videos` and walk over them into `out/run`."""
    began, recipe = time.perf_counter(), read_recipe(find_recipe("demo"))
    with exclusive(out):
        with bar("rendering videos", videos, "videos") as advance:
            catalog = render_demo(out / "videos", seed=seed, videos=videos, on_video=advance)
        rendering = time.perf_counter() - began
        summary = run(catalog, out / "run", recipe, seed=seed, device=device)
    return replace(summary, seconds={"render": rendering} | summary.seconds)


def _names(videos: Path | Catalog, recipe: Recipe) -> tuple[str, str]:
    """What the data is called, and what was given: a folder's name, or a file in its folder."""
    if isinstance(videos, Catalog):
        return recipe.data.name or videos.name, videos.name
    where = videos.resolve()
    given = where.name if where.is_dir() else f"{where.parent.name}/{where.name}"
    return recipe.data.name or name_text(where.stem), name_text(given)


def _is_whole(folder: Path) -> bool:
    """Whether a table of vectors is there as it was written."""
    try:
        read_vectors(folder)
    except (ClipsetError, OSError):
        return False
    return True


def _digest_results(folder: Path) -> list[str]:
    """Hashes of what the probes wrote, so that edited and missing files are made again."""
    paths = [folder / name for name in RESULT_FILES]
    return [digest_of([path]) if path.is_file() else "" for path in paths]


def _fingerprint_of_model(folder: Path) -> str:
    return read_card(folder).fingerprint if (folder / "model.json").is_file() else ""


def _pretrain(
    store: FeatureStore, out: Path, recipe: Recipe, seed: int, device: str
) -> tuple[ScaleModel | None, str]:
    """Two videos are needed to contrast; with fewer the walk goes on with the backbone alone."""
    if len(ssl_videos(store, recipe.pretrain.ssl_split)) < 2:
        note = "not pre-trained: contrast needs at least two videos"
        say(note)
        return None, note
    where = out / "model"
    _refuse_other_link(store, where, recipe, seed)
    return pretrain(store, where, recipe.pretrain, seed=seed, device=device), ""


def _refuse_other_link(store: FeatureStore, model: Path, recipe: Recipe, seed: int) -> None:
    if model.is_symlink() and not is_trained(store, model, recipe.pretrain, seed=seed):
        raise RunError(f"{model} is a link to a model that was trained otherwise; remove the link")


def _probe(
    store: FeatureStore,
    catalog: Catalog,
    model: ScaleModel | None,
    out: Path,
    recipe: Recipe,
    seed: int,
) -> str:
    """Judge the result if the videos have labels that can be told apart; else say why not."""
    try:
        task = make_task(store, catalog, training=recipe.pretrain)
    except ProbeError as reason:
        say(f"not probed: {reason}")
        for name in ("results.json", "comparisons.json"):
            write_json(out / name, [])
        return f"not probed: {reason}"
    suite = run_suite(task, model, recipe.evaluate, seed=seed)
    try:
        suite.write(out / "results.json", protocol_facts(recipe))
    except OutputError:
        for each in suite.results:  # finished probes are said, if they cannot be written
            say(f"{row_name(each.features, each.probe)}: {each.metric} {each.value:.4f}")
        raise
    return ""


def protocol_facts(recipe: Recipe) -> dict[str, Any]:
    """What a score depends on beside the probe itself."""
    low_shot = recipe.evaluate.label_fraction
    facts: dict[str, Any] = {"ssl_split": recipe.pretrain.ssl_split}
    return facts if low_shot is None else facts | {"label_fraction": low_shot}


def read_results(folder: Path) -> list[ProbeResult]:
    """The results of a run."""
    path = folder / "results.json"
    if not path.is_file():
        raise RunError(f"{folder} has no results.json; run `clipset run` or `clipset probe` first")
    return read_records(path, ProbeResult)
