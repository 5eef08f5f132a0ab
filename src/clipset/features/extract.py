"""Extraction: catalog + sampling + backbone → feature store, on one machine.

Worker processes decode, the backbone runs in this process, and a writer commits the videos in the
order of the catalog. Committed rows never change, so a killed extraction resumes where it stopped
and ends with the same bytes as an uninterrupted one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch import nn

from clipset.backbones.custom import absolute_name, is_installed
from clipset.backbones.registry import load_backbone, load_recorded_backbone
from clipset.backbones.runtime import open_engine
from clipset.clips.decode import DecodeRequest
from clipset.config import check_values
from clipset.data.catalog import Catalog, Video
from clipset.errors import StoreError
from clipset.features.config import ExtractConfig
from clipset.features.decode_pool import decode_videos
from clipset.features.encode import encode_videos
from clipset.features.fit_clips import describe_fit, fit_clips, has_open_settings, median_duration
from clipset.features.store import (
    IMPORTED,
    FeatureStore,
    Manifest,
    manifest_difference,
    read_manifest,
)
from clipset.features.writer import StoreWriter


def extract(
    catalog: Catalog,
    out: str | Path,
    config: ExtractConfig | None = None,
    *,
    device: str = "auto",
    plan: tuple[Manifest, nn.Module] | None = None,
) -> FeatureStore:
    """Store the clip features of every video of the catalog; resumes an interrupted extraction.

    `plan` is the result of `plan_store`, if the backbone is loaded already.
    """
    config = config or ExtractConfig()
    manifest, network = plan or plan_store(config, catalog.videos, Path(out))
    with StoreWriter(
        Path(out), manifest, catalog, sources=catalog.videos, retry_failed=config.retry_failed
    ) as writer:
        if writer.pending:
            engine_name = choose_engine(writer, config)
            with decode_videos(
                writer.pending_videos, decode_request(manifest, sprite=True), config
            ) as results:  # workers start while the engine is opened
                engine = open_engine(manifest.backbone, network, device=device, engine=engine_name)
                writer.record_provenance(engine.name, absolute_name(config.backbone.strip()))
                title = f"extracting ({engine.name} on {engine.device})"
                writer.write_all(encode_videos(engine, results), title)
    return FeatureStore(out)


def plan_store(
    config: ExtractConfig, videos: Sequence[Video] = (), store_folder: Path | None = None
) -> tuple[Manifest, nn.Module]:
    """The manifest of a store and the network that makes it.

    Settings that are left open are fitted to the videos, or taken from the store in the folder.
    """
    backbone_name = config.backbone.strip()
    check_values(absolute_name(backbone_name), "the backbone")  # it is written to the manifest
    spec, network = load_backbone(
        backbone_name,
        frames=config.frames or None,
        stride=config.stride or None,
        size=config.size,
        layers=config.layer_indices,
    )
    sampling, made_by = config.sampling, {}
    if has_open_settings(config):
        started = None
        if store_folder is not None and (store_folder / "manifest.json").is_file():
            started = read_manifest(store_folder).made_by.get("duration")
        # More videos do not change the clips of a store that was started.
        median_seconds = median_duration(videos, config) if started is None else float(started)
        spec, sampling = fit_clips(config, spec, median_seconds)
        made_by = {
            "duration": f"{median_seconds:.3f}",
            "clips": describe_fit(spec, sampling, median_seconds),
        }
    manifest = Manifest(
        backbone=spec, sampling=sampling, seed=config.seed, dtype=config.dtype, made_by=made_by
    )
    return manifest, network


def decode_request(manifest: Manifest, *, sprite: bool = False) -> DecodeRequest:
    """How the videos of a store are decoded; with `sprite`, a sprite is made of each."""
    spec = manifest.backbone
    return DecodeRequest(
        sampling=manifest.sampling,
        span=spec.span,
        frames=spec.frames,
        size=spec.size,
        seed=manifest.seed,
        sprite=sprite,
    )


def choose_engine(writer: StoreWriter, config: ExtractConfig) -> str:
    """The engine that started a store also finishes it: engines agree, but not bit for bit."""
    first_engine = writer.manifest.made_by.get("engine")
    if first_engine is not None and config.engine not in ("auto", first_engine):
        raise StoreError(f"{writer.folder} was started with {first_engine}, not {config.engine}")
    return first_engine or config.engine


def name_to_load(manifest: Manifest, backbone: str | None = None) -> str:
    """The name to load a store's backbone by; `backbone` is the name that the user gives.

    A store may come from somebody else: code and hub names in its manifest are shown, never used. A
    registered or installed backbone is loaded by its name; any other must be named by the user.
    """
    if manifest.backbone.name == IMPORTED:
        raise StoreError("the features were imported: no backbone is known that could make more")
    if backbone is not None:
        return backbone.strip()
    recorded_name = manifest.made_by.get("backbone", manifest.backbone.name)
    if not is_installed(recorded_name):
        digest = manifest.backbone.weights.sha256 or "unknown"
        example = "hf:FOLDER" if recorded_name.startswith("hf:") else "FILE.py:make"
        raise StoreError(
            f"the features were made with the backbone {recorded_name!r} (sha256 {digest[:12]}…): "
            f"name it yourself with --backbone {example}; clipset neither runs nor downloads what "
            f"a store or run names"
        )
    return recorded_name


def load_network(manifest: Manifest, backbone_name: str) -> nn.Module:
    """Load a store's network by a name; an error if it is not the same one."""
    recorded = manifest.backbone
    spec, network = load_recorded_backbone(recorded, backbone_name)
    spec = replace(spec, weights=recorded.weights)  # the hash is the same, the rest are words
    if recorded.name.startswith("hf:") and spec.name.startswith("hf:"):
        spec = replace(spec, name=recorded.name)  # the folder may have moved
    if spec != recorded:
        difference = manifest_difference(manifest, replace(manifest, backbone=spec))
        raise StoreError(f"the features were made {difference} as it is here")
    return network
