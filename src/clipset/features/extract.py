"""Catalog + sampling + backbone → store, on one machine.

Worker processes decode and cut, the backbone runs here, and a writer commits the videos in the
order of the catalog. What is committed is never touched again, so a killed extraction goes on where
it stopped and ends with the same bytes as one that ran through.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

from clipset.backbones.engine import Engine, open_engine
from clipset.backbones.registry import load_backbone
from clipset.errors import StoreError
from clipset.features.config import ExtractConfig
from clipset.features.cutting import CutRequest
from clipset.features.pool import Outcome, cut_videos
from clipset.features.store import FeatureStore, Manifest
from clipset.features.writer import ClipRows, StoreWriter
from clipset.progress import bar
from clipset.videos.catalog import Catalog


def extract(
    catalog: Catalog,
    folder: Path,
    config: ExtractConfig | None = None,
    *,
    seed: int = 0,
    device: str = "auto",
) -> FeatureStore:
    """Store the clip features of every video of the catalog; goes on where it stopped before."""
    config = config or ExtractConfig()
    spec, network = load_backbone(
        config.backbone, frames=config.frames, stride=config.stride, size=config.size
    )
    manifest = Manifest(
        backbone=spec,
        sampling=config.sampling,
        seed=seed,
        dtype=config.dtype,
    )
    with StoreWriter(folder, manifest, catalog, retry_failed=config.retry_failed) as writer:
        if writer.todo:
            engine = open_engine(spec, network, device=device, engine=_engine(writer, config))
            writer.sign({"engine": engine.name})
            request = CutRequest(
                sampling=config.sampling,
                span=spec.span,
                frames=spec.frames,
                size=spec.size,
                seed=seed,
            )
            _fill(writer, catalog, engine, request, config)
    return FeatureStore(folder)


def _engine(writer: StoreWriter, config: ExtractConfig) -> str:
    """The engine that began a store also ends it: engines agree closely, but not bit for bit."""
    begun_with = writer.manifest.made_by.get("engine")
    if begun_with is None or config.engine == begun_with:
        return config.engine
    if config.engine != "auto":
        raise StoreError(f"{writer.folder} was begun with {begun_with}, not {config.engine}")
    return begun_with


def _fill(
    writer: StoreWriter,
    catalog: Catalog,
    engine: Engine,
    request: CutRequest,
    config: ExtractConfig,
) -> None:
    by_id = {video.id: video for video in catalog}
    videos = [by_id[entry.id] for entry in writer.todo]
    workers = min(os.cpu_count() or 1, 8) if config.workers is None else config.workers
    title = f"extracting ({engine.name} on {engine.device})"
    with (
        bar(title, len(catalog), "videos", done=len(catalog) - len(videos)) as advance,
        cut_videos(videos, request, workers=workers, timeout=config.timeout) as outcomes,
    ):
        for outcome in outcomes:
            _look(writer, engine, outcome)
            advance(note=f"{writer.failures} failed" if writer.failures else "")


def _look(writer: StoreWriter, engine: Engine, outcome: Outcome) -> None:
    """Show one video's clips to the backbone and hand its features to the writer."""
    entry = writer.todo[outcome.place]
    if outcome.cut is None:
        writer.put(outcome.place, replace(entry, status="failed", reason=outcome.reason), None)
        return
    began = time.perf_counter()
    features = engine.features(outcome.cut.pixels).numpy()  # (V, D)
    facts = outcome.cut.facts
    done = replace(
        entry,
        status="done",
        reason=None,
        random_count=facts.random_clips,
        regular_count=facts.regular_clips,
        duration=facts.duration,
        width=facts.width,
        height=facts.height,
        frames_expected=facts.frames_expected,
        frames_found=facts.frames_found,
        frames_missing=facts.frames_missing,
        seconds=time.perf_counter() - began,
    )
    writer.put(outcome.place, done, ClipRows(features, outcome.cut.boxes, outcome.cut.times))
