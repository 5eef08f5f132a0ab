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
from clipset.errors import VideoError
from clipset.features.config import ExtractConfig
from clipset.features.decode_pool import MAX_AHEAD, DecodeWorker
from clipset.features.encode import EncodeResult, encode_chunks, join_chunks
from clipset.features.extract import choose_engine, decode_request, load_network, plan_store
from clipset.features.store import FeatureStore, Manifest
from clipset.features.writer import StoreWriter
from clipset.process.ray_cluster import actor_resources, connect_ray, get_result

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
    config = replace(config, backbone=absolute_name(config.backbone.strip()))
    with StoreWriter(
        Path(out), manifest, catalog, sources=catalog.videos, retry_failed=config.retry_failed
    ) as writer:
        if writer.pending:
            with connect_ray(address) as ray:
                actors, engine_name = _start_actors(ray, writer, config, device)
                writer.record_provenance(engine_name, config.backbone)
                title = f"extracting ({engine_name} on {len(actors)} Ray actors)"
                writer.write_all(_encode_all(ray, actors, writer.pending_videos), title)
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

    def encode(self, video_index: int, video: Video) -> EncodeResult:
        """Decode and encode one video."""
        if not hasattr(self.local, "worker"):
            request = decode_request(self.manifest, sprite=True)
            self.local.worker = DecodeWorker(request, timeout=self.config.timeout_seconds)
        chunks: list[EncodeResult] = []
        for result in self.local.worker.decode(video_index, video):
            with self.lock:
                chunks += encode_chunks(self._open_engine(), [result])
        [encoded] = join_chunks(chunks)
        return encoded

    def _open_engine(self) -> Engine:
        if self.engine is None:
            torch.set_num_threads(self.threads)
            network = load_network(self.manifest, self.config.backbone)
            options = {"device": self.device, "engine": self.requested_engine}
            self.engine = open_engine(self.manifest.backbone, network, **options)
        return self.engine


def _start_actors(
    ray: Any, writer: StoreWriter, config: ExtractConfig, device: str
) -> tuple[list[Any], str]:
    """As many actors as the cluster has room for, all with the engine of the first one."""
    max_actors, resources = actor_resources(ray, device)
    actor_class = ray.remote(EncodeActor).options(
        max_restarts=-1,
        max_task_retries=MAX_RETRIES,
        max_concurrency=CONCURRENT_VIDEOS,
        **resources,
    )
    num_threads, engine_name = torch.get_num_threads(), choose_engine(writer, config)
    actors = [actor_class.remote(writer.manifest, config, engine_name, device, num_threads)]
    engine_name = get_result(ray, actors[0].engine_name.remote())
    for _ in range(min(max_actors, len(writer.pending)) - 1):
        actors.append(actor_class.remote(writer.manifest, config, engine_name, device, num_threads))
    return actors, engine_name


def _encode_all(ray: Any, actors: Sequence[Any], videos: Sequence[Video]) -> Iterator[EncodeResult]:
    """Give each free actor the next video; results come as they are ready."""
    idle_actors = deque(list(actors) * CONCURRENT_VIDEOS)
    running_calls: dict[Any, tuple[Any, int]] = {}
    next_index = 0
    while next_index < len(videos) or running_calls:
        first_unfinished = min((index for _, index in running_calls.values()), default=next_index)
        if idle_actors and next_index < len(videos) and next_index - first_unfinished <= MAX_AHEAD:
            actor, video = idle_actors.popleft(), videos[next_index]
            video = replace(video, path=video.path.absolute())
            running_calls[actor.encode.remote(next_index, video)] = (actor, next_index)
            next_index += 1
            continue
        [ready_call], _ = ray.wait(list(running_calls), num_returns=1)
        actor, video_index = running_calls.pop(ready_call)
        idle_actors.append(actor)
        try:
            yield get_result(ray, ready_call)
        except ray.exceptions.RayActorError:
            reason = f"its machine was lost {MAX_RETRIES + 1} times"
            yield video_index, VideoError(reason, transient=True)
