"""The whole walk, from videos to a report, in one folder that can be run again and goes on."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clipset.clips.config import Sampling
from clipset.config import fingerprint, read_json, to_mapping, write_json
from clipset.demo.render import render_demo
from clipset.devices import find_device
from clipset.errors import ProbeError, RunError
from clipset.features.config import ExtractConfig
from clipset.features.extract import extract
from clipset.features.store import FeatureStore, open_store
from clipset.model.scale import ScaleModel
from clipset.probes.config import FitConfig, ProbeConfig
from clipset.probes.problem import pose_problem
from clipset.probes.suite import run_suite
from clipset.progress import bar, say
from clipset.recipe import Recipe
from clipset.report.gather import gather_content
from clipset.report.page import write_report
from clipset.representation import represent, write_representations
from clipset.runs import Run
from clipset.training.checkpoint import read_card
from clipset.training.config import PretrainConfig
from clipset.training.pretrain import pretrain, ssl_videos
from clipset.videos.catalog import Catalog, describe, write_catalog
from clipset.videos.datasets import read_videos
from clipset.videos.splits import assign_splits

# The demo is about what happens when: clips of half a second fall inside one event, and none of
# them is mirrored, because a mirrored movement is another movement.
DEMO = Recipe(
    extract=ExtractConfig(frames=4, stride=4, sampling=Sampling(flip=False)),
    pretrain=PretrainConfig(epochs=150, min_steps=150, learning_rate=5e-4),
    probe=ProbeConfig(fit=FitConfig(epochs=30, rates=(3e-4, 1e-3))),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkSummary:
    """What came out of a walk, and where it lies."""

    folder: Path
    report: Path
    videos: int
    failed: int
    records: list[dict[str, Any]]
    comparisons: list[dict[str, Any]]
    seconds: dict[str, float]
    note: str = ""


def walk(
    videos: Path | Catalog,
    out: Path,
    recipe: Recipe | None = None,
    *,
    seed: int = 0,
    device: str = "auto",
) -> WalkSummary:
    """Catalog, extract, pre-train, represent, probe, report; nothing is done twice."""
    recipe = recipe or Recipe()
    chosen = find_device(device)
    named = videos.name if isinstance(videos, Catalog) else videos.resolve().stem
    run = Run(out, name=named, recipe=to_mapping(recipe), seed=seed, device=str(chosen))
    with run.step("catalog"):
        catalog = videos if isinstance(videos, Catalog) else read_videos(videos)
        catalog = assign_splits(catalog, test_fraction=recipe.test_fraction, seed=seed)
        write_catalog(catalog, out / "catalog.csv")
        say(describe(catalog))
    with run.step("extract") as step:
        step.skipped = _is_extracted(out / "store", catalog)
        extract(catalog, out / "store", recipe.extract, seed=seed, device=device)
        store = open_store(out / "store")
    with run.step("pretrain") as step:
        before = _fingerprint_of_model(out / "model")
        model, note = _pretrain(store, out, recipe, seed, device)
        step.fingerprint = _fingerprint_of_model(out / "model")
        step.skipped = step.fingerprint != "" and step.fingerprint == before
    with run.step("represent") as step:
        rows = [entry.checksum for entry in store.entries]
        mark = fingerprint(run.steps["pretrain"].fingerprint, rows, catalog.fingerprint)
        step.skipped = step.fingerprint == mark
        if not step.skipped:
            encoder = None if model is None else model.encoder
            table = represent(store, encoder, device=chosen)
            write_representations(table, out / "representation")
            step.fingerprint = mark
    with run.step("probe") as step:
        mark = fingerprint(recipe.probe, run.steps["represent"].fingerprint, seed)
        step.skipped = step.fingerprint == mark and (out / "results.json").is_file()
        if not step.skipped:
            note = _probe(store, catalog, model, out, recipe, seed) or note
            step.fingerprint = mark
    records, comparisons = (
        read_json(out / name) if (out / name).is_file() else []
        for name in ("results.json", "comparisons.json")
    )
    with run.step("report"):
        write_report(gather_content(out), out / "report.html")
    return WalkSummary(
        folder=out,
        report=out / "report.html",
        videos=len(store),
        failed=len(store.failed),
        records=records,
        comparisons=comparisons,
        seconds={step.name: step.seconds for step in run.steps.values()},
        note=note,
    )


def walk_demo(out: Path, *, videos: int = 240, seed: int = 0, device: str = "auto") -> WalkSummary:
    """Render the demo's videos into `out/videos` and walk over them into `out/run`."""
    began = time.perf_counter()
    with bar("rendering videos", videos, "videos") as advance:
        catalog = render_demo(out / "videos", seed=seed, videos=videos, on_video=advance)
    rendering = time.perf_counter() - began
    summary = walk(catalog, out / "run", DEMO, seed=seed, device=device)
    return replace(summary, seconds={"render": rendering} | summary.seconds)


def _is_extracted(folder: Path, catalog: Catalog) -> bool:
    if not (folder / "ledger.sqlite").is_file():
        return False
    store = FeatureStore(folder)
    settled = {entry.id for entry in (*store.entries, *store.failed)}
    return settled >= {video.id for video in catalog}


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
    return pretrain(store, out / "model", recipe.pretrain, seed=seed, device=device), ""


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
        problem = pose_problem(store, catalog, model.config if model else None)
    except ProbeError as reason:
        say(f"not probed: {reason}")
        for name in ("results.json", "comparisons.json"):
            write_json(out / name, [])
        return f"not probed: {reason}"
    run_suite(problem, model, recipe.probe, seed=seed).write(out / "results.json")
    return ""


def read_results(folder: Path) -> list[dict[str, Any]]:
    """The records of a run."""
    path = folder / "results.json"
    if not path.is_file():
        raise RunError(f"{folder} has no results.json; run `clipset run` or `clipset probe` first")
    records = read_json(path)
    if not isinstance(records, list):
        raise RunError(f"{path} is not a list of records")
    return records
