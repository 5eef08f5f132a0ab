"""Catalog + sampling + backbone → store, on one machine.

Worker processes decode and cut, the backbone runs here, and a writer commits the videos in the
order of the catalog. What is committed is never touched again, so a killed extraction goes on where
it stopped and ends with the same bytes as one that ran through.
"""

from __future__ import annotations

import os
from pathlib import Path

from torch import nn

from clipset.backbones.engine import Engine, open_engine
from clipset.backbones.registry import load_backbone
from clipset.errors import StoreError
from clipset.features.config import ExtractConfig
from clipset.features.cutting import CutRequest
from clipset.features.looking import look
from clipset.features.pool import cut_videos
from clipset.features.store import FeatureStore, Manifest
from clipset.features.writer import StoreWriter
from clipset.progress import bar
from clipset.videos.catalog import Catalog, Video


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
    manifest, network = plan(config, seed)
    with StoreWriter(folder, manifest, catalog, retry_failed=config.retry_failed) as writer:
        if writer.todo:
            engine = open_engine(
                manifest.backbone, network, device=device, engine=choose_engine(writer, config)
            )
            writer.sign({"engine": engine.name})
            _fill(writer, catalog, engine, config)
    return FeatureStore(folder)


def plan(config: ExtractConfig, seed: int) -> tuple[Manifest, nn.Module]:
    """What a store will be, and the network that makes it."""
    spec, network = load_backbone(
        config.backbone, frames=config.frames, stride=config.stride, size=config.size
    )
    manifest = Manifest(backbone=spec, sampling=config.sampling, seed=seed, dtype=config.dtype)
    return manifest, network


def cut_request(manifest: Manifest) -> CutRequest:
    """How the videos of a store are cut."""
    spec = manifest.backbone
    return CutRequest(
        sampling=manifest.sampling,
        span=spec.span,
        frames=spec.frames,
        size=spec.size,
        seed=manifest.seed,
    )


def choose_engine(writer: StoreWriter, config: ExtractConfig) -> str:
    """The engine that began a store also ends it: engines agree closely, but not bit for bit."""
    begun_with = writer.manifest.made_by.get("engine")
    if begun_with is None or config.engine == begun_with:
        return config.engine
    if config.engine != "auto":
        raise StoreError(f"{writer.folder} was begun with {begun_with}, not {config.engine}")
    return begun_with


def _fill(writer: StoreWriter, catalog: Catalog, engine: Engine, config: ExtractConfig) -> None:
    videos = videos_to_do(writer, catalog)
    title = f"extracting ({engine.name} on {engine.device})"
    with (
        bar(title, len(catalog), "videos", done=len(catalog) - len(videos)) as advance,
        cut_videos(
            videos,
            cut_request(writer.manifest),
            workers=count_workers(config),
            timeout=config.timeout,
        ) as outcomes,
    ):
        for seen in look(engine, outcomes, [video.id for video in videos]):
            writer.put(seen)
            advance(note=f"{writer.failures} failed" if writer.failures else "")


def count_workers(config: ExtractConfig) -> int:
    """How many processes decode."""
    return min(os.cpu_count() or 1, 8) if config.workers is None else config.workers


def videos_to_do(writer: StoreWriter, catalog: Catalog) -> list[Video]:
    """The videos whose entries are to be filled, in the same order."""
    by_id = {video.id: video for video in catalog}
    return [by_id[entry.id] for entry in writer.todo]
