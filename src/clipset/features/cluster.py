"""Extraction on Ray: actors decode and encode videos, the driver commits them in order.

Every machine needs clipset, the backbone's weights and the videos under the same paths. Torch's
results may depend on its number of threads, so actors use as many as the driver has.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from clipset.backbones.custom import absolute_name
from clipset.backbones.runtime import Engine, open_engine
from clipset.data.catalog import Catalog, Video
from clipset.features.config import ExtractConfig
from clipset.features.decode_pool import MAX_AHEAD, DecodeWorker
from clipset.features.encode import EncodedVideo, encode_chunks, join_chunks
from clipset.features.extract import (
    choose_engine,
    decode_request,
    describe_provenance,
    pending_videos,
    plan_store,
    write_videos,
)
from clipset.features.provenance import load_network
from clipset.features.store import FeatureStore, Manifest
from clipset.features.writer import StoreWriter
from clipset.ray_cluster import actor_resources, connect_ray, get_result

MAX_RETRIES = 3  # of a video whose machine was lost
CONCURRENT_VIDEOS = 2  # of an actor: one is decoded while another one is encoded


def extract_on_ray(
    catalog: Catalog,
    out: str | Path,
    config: ExtractConfig | None = None,
    *,
    device: str = "auto",
    address: str = "local",
) -> FeatureStore:
    """`extract` on a Ray cluster ("local": one within this process); the same bytes."""
    config = config or ExtractConfig()
    manifest, _ = plan_store(config, catalog.videos, Path(out))
    with StoreWriter(
        Path(out), manifest, catalog, sources=catalog.videos, retry_failed=config.retry_failed
    ) as writer:
        if writer.pending:
            with connect_ray(address) as ray:
                videos = pending_videos(writer, catalog)
                actors, engine = _start_actors(ray, writer, config, device, len(videos))
                writer.record_provenance(describe_provenance(manifest, config, engine))
                title = f"extracting ({engine} on {len(actors)} Ray actors)"
                write_videos(writer, _encode_all(ray, actors, videos), title, total=len(catalog))
    return FeatureStore(out)


class EncodeActor:
    """A Ray actor with a backbone: it decodes and encodes videos."""

    def __init__(
        self, manifest: Manifest, config: ExtractConfig, engine: str, device: str, threads: int
    ) -> None:
        self.manifest, self.config, self.threads = manifest, config, threads
        self.requested_engine, self.device = engine, device
        self.engine: Engine | None = None
        self.lock = threading.Lock()
        self.local = threading.local()

    def engine_name(self) -> str:
        """The name of the engine that runs the backbone."""
        with self.lock:
            return self._open_engine().name

    def encode(self, index: int, video: Video) -> EncodedVideo:
        """Decode and encode one video."""
        if not hasattr(self.local, "worker"):
            request = decode_request(self.manifest)
            self.local.worker = DecodeWorker(request, timeout=self.config.timeout_seconds)
        chunks: list[EncodedVideo] = []
        for result in self.local.worker.decode(0, video):
            with self.lock:
                chunks += encode_chunks(self._open_engine(), [result], [video.id])
        [encoded] = join_chunks(chunks)
        return replace(encoded, index=index)

    def _open_engine(self) -> Engine:
        if self.engine is None:
            torch.set_num_threads(self.threads)
            network = load_network(self.manifest, self.config.backbone)
            options = {"device": self.device, "engine": self.requested_engine}
            self.engine = open_engine(self.manifest.backbone, network, **options)
        return self.engine


def _start_actors(
    ray: Any, writer: StoreWriter, config: ExtractConfig, device: str, num_videos: int
) -> tuple[list[Any], str]:
    """As many actors as the cluster has room for, all with the engine of the first one."""
    max_actors, resources = actor_resources(ray, device)
    actor = ray.remote(EncodeActor).options(
        max_restarts=-1,
        max_task_retries=MAX_RETRIES,
        max_concurrency=CONCURRENT_VIDEOS,
        **resources,
    )

    config = replace(config, backbone=absolute_name(config.backbone.strip()))
    threads = torch.get_num_threads()

    def start(engine: str) -> Any:
        return actor.remote(writer.manifest, config, engine, device, threads)

    first = start(choose_engine(writer, config))
    engine: str = get_result(ray, first.engine_name.remote())
    return [first, *(start(engine) for _ in range(min(max_actors, num_videos) - 1))], engine


def _encode_all(ray: Any, actors: Sequence[Any], videos: Sequence[Video]) -> Iterator[EncodedVideo]:
    """Give each free actor the next video; results come as they are ready."""
    idle = deque(list(actors) * CONCURRENT_VIDEOS)
    running: dict[Any, tuple[Any, int]] = {}
    next_index = 0
    while next_index < len(videos) or running:
        first = min((index for _, index in running.values()), default=next_index)
        if idle and next_index < len(videos) and next_index - first <= MAX_AHEAD:
            actor, video = idle.popleft(), videos[next_index]
            video = replace(video, path=video.path.absolute())
            running[actor.encode.remote(next_index, video)] = (actor, next_index)
            next_index += 1
            continue
        [ready], _ = ray.wait(list(running), num_returns=1)
        actor, index = running.pop(ready)
        idle.append(actor)
        try:
            yield get_result(ray, ready)
        except ray.exceptions.RayActorError:
            reason = f"its machine was lost {MAX_RETRIES + 1} times"
            yield EncodedVideo(index, reason=reason, transient=True)
