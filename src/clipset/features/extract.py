"""Catalog + sampling + backbone → store, on one machine.

Worker processes decode and cut, the backbone runs here, and a writer commits the videos in the
order of the catalog. What is committed is never touched again, so a killed extraction goes on where
it stopped and ends with the same bytes as one that ran through.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from torch import nn

from clipset.backbones.custom import absolute_name
from clipset.backbones.registry import load_backbone
from clipset.backbones.runtime import Engine, open_engine
from clipset.config import check_text
from clipset.data.catalog import Catalog, Video
from clipset.errors import StoreError
from clipset.features.child import Outcome
from clipset.features.config import ExtractConfig
from clipset.features.cutting import CutRequest
from clipset.features.decode_pool import cut_videos
from clipset.features.encode import look
from clipset.features.store import FeatureStore, Manifest
from clipset.features.writer import StoreWriter
from clipset.progress import bar


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
    return extract_planned(catalog, folder, config, plan(config, seed), device=device)


def extract_planned(
    catalog: Catalog,
    folder: Path,
    config: ExtractConfig,
    planned: tuple[Manifest, nn.Module],
    *,
    device: str = "auto",
) -> FeatureStore:
    """`extract` with a backbone that is loaded already."""
    manifest, network = planned
    with open_writer(folder, manifest, catalog, config) as writer:
        if writer.todo:
            chosen = choose_engine(writer, config)
            with cutting(writer, catalog, config) as outcomes:  # workers start meanwhile
                engine = open_engine(manifest.backbone, network, device=device, engine=chosen)
                writer.sign(signature(manifest, config, engine.name))
                fill_store(writer, catalog, engine, outcomes)
    return FeatureStore(folder)


def open_writer(
    folder: Path, manifest: Manifest, catalog: Catalog, config: ExtractConfig
) -> StoreWriter:
    """The store to extract a catalog's videos into."""
    return StoreWriter(
        folder, manifest, catalog, sources=catalog.videos, retry_failed=config.retry_failed
    )


def plan(config: ExtractConfig, seed: int) -> tuple[Manifest, nn.Module]:
    """What a store will be, and the network that makes it."""
    name = config.backbone.strip()
    check_text(absolute_name(name), "the backbone")  # the manifest names it
    spec, network = load_backbone(
        name,
        frames=config.frames,
        stride=config.stride,
        size=config.size,
        layers=config.layer_numbers,
    )
    manifest = Manifest(backbone=spec, sampling=config.sampling, seed=seed, dtype=config.dtype)
    return manifest, network


def signature(manifest: Manifest, config: ExtractConfig, engine: str) -> dict[str, str]:
    """What a manifest records about who makes its rows: engine, and a custom backbone's path."""
    name = absolute_name(config.backbone.strip())
    return {"engine": engine} | ({"backbone": name} if name != manifest.backbone.name else {})


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
    if begun_with is not None and config.engine not in ("auto", begun_with):
        raise StoreError(f"{writer.folder} was begun with {begun_with}, not {config.engine}")
    return begun_with or config.engine


def cutting(
    writer: StoreWriter, catalog: Catalog, config: ExtractConfig
) -> AbstractContextManager[Iterator[Outcome]]:
    """Workers at the videos that a store still lacks."""
    return cut_videos(
        videos_to_do(writer, catalog),
        cut_request(writer.manifest),
        workers=count_workers(config),
        timeout=config.seconds_per_video,
    )


def fill_store(
    writer: StoreWriter, catalog: Catalog, engine: Engine, outcomes: Iterable[Outcome]
) -> None:
    """Encode the pending videos of a store, as they are cut."""
    videos = videos_to_do(writer, catalog)
    title = f"extracting ({engine.name} on {engine.device})"
    with bar(title, len(catalog), "videos", done=len(catalog) - len(videos)) as advance:
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
