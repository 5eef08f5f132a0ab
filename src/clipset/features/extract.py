"""Extraction: catalog + sampling + backbone → feature store, on one machine.

Worker processes decode, the backbone runs in this process, and a writer commits the videos in the
order of the catalog. Committed rows never change, so a killed extraction resumes where it stopped
and ends with the same bytes as an uninterrupted one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from torch import nn

from clipset.backbones.custom import absolute_name
from clipset.backbones.registry import load_backbone
from clipset.backbones.runtime import open_engine
from clipset.clips.decode import DecodeRequest
from clipset.config import check_values
from clipset.data.catalog import Catalog, Video
from clipset.errors import StoreError
from clipset.features.config import ExtractConfig
from clipset.features.decode_pool import decode_videos
from clipset.features.encode import EncodedVideo, encode_videos
from clipset.features.fit_clips import describe_fit, fit_clips, has_open_settings, median_duration
from clipset.features.store import FeatureStore, Manifest, read_manifest
from clipset.features.writer import StoreWriter
from clipset.progress import bar, log


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
            videos = pending_videos(writer, catalog)
            with decode_videos(
                videos,
                decode_request(manifest),
                workers=config.num_workers,
                timeout=config.timeout_seconds,
            ) as results:  # workers start while the engine is opened
                engine = open_engine(manifest.backbone, network, device=device, engine=engine_name)
                writer.record_provenance(describe_provenance(manifest, config, engine.name))
                title = f"extracting ({engine.name} on {engine.device})"
                encoded = encode_videos(engine, results, [video.id for video in videos])
                write_videos(writer, encoded, title, total=len(catalog))
    return FeatureStore(out)


def plan_store(
    config: ExtractConfig, videos: Sequence[Video] = (), folder: Path | None = None
) -> tuple[Manifest, nn.Module]:
    """The manifest of a store and the network that makes it.

    Settings that are left open are fitted to the videos, or taken from the store in `folder`.
    """
    name = config.backbone.strip()
    check_values(absolute_name(name), "the backbone")  # it is written to the manifest
    spec, network = load_backbone(
        name,
        frames=config.frames or None,
        stride=config.stride or None,
        size=config.size,
        layers=config.layer_indices,
    )
    sampling, made_by = config.sampling, {}
    if has_open_settings(config):
        started = _read_started(folder)
        if started is None or "duration" not in started.made_by:
            duration = median_duration(videos, config)
        else:  # more videos do not change the clips of a store
            duration = float(started.made_by["duration"])
        spec, sampling = fit_clips(config, spec, duration)
        made_by = {
            "duration": f"{duration:.3f}",
            "clips": describe_fit(spec, sampling, duration),
        }
        log(made_by["clips"])
    manifest = Manifest(
        backbone=spec, sampling=sampling, seed=config.seed, dtype=config.dtype, made_by=made_by
    )
    return manifest, network


def _read_started(folder: Path | None) -> Manifest | None:
    """The manifest of a store that exists already."""
    if folder is None or not (folder / "manifest.json").is_file():
        return None
    return read_manifest(folder)


def decode_request(manifest: Manifest) -> DecodeRequest:
    """How the videos of a store are decoded."""
    spec = manifest.backbone
    return DecodeRequest(
        sampling=manifest.sampling,
        span=spec.span,
        frames=spec.frames,
        size=spec.size,
        seed=manifest.seed,
    )


def describe_provenance(manifest: Manifest, config: ExtractConfig, engine: str) -> dict[str, str]:
    """What a manifest records about its rows: the engine, and the path of a custom backbone."""
    name = absolute_name(config.backbone.strip())
    return {"engine": engine} | ({"backbone": name} if name != manifest.backbone.name else {})


def choose_engine(writer: StoreWriter, config: ExtractConfig) -> str:
    """The engine that started a store also finishes it: engines agree, but not bit for bit."""
    started_with = writer.manifest.made_by.get("engine")
    if started_with is not None and config.engine not in ("auto", started_with):
        raise StoreError(f"{writer.folder} was started with {started_with}, not {config.engine}")
    return started_with or config.engine


def pending_videos(writer: StoreWriter, catalog: Catalog) -> list[Video]:
    """The videos of the pending entries, in the same order."""
    by_id = {video.id: video for video in catalog}
    return [by_id[entry.id] for entry in writer.pending]


def write_videos(
    writer: StoreWriter, encoded: Iterable[EncodedVideo], title: str, *, total: int
) -> None:
    """Write encoded videos as they come, and show progress."""
    with bar(title, total, "videos", done=total - len(writer.pending)) as advance:
        for video in encoded:
            writer.put(video)
            advance(note=f"{writer.num_failed} failed" if writer.num_failed else "")
