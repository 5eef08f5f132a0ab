"""Extraction on Ray: actors decode and encode videos, the driver commits them in order.

Every machine needs clipset, the backbone's weights and the videos under the same paths. Torch's
results may depend on its number of threads, so actors use as many as the driver has. A cluster
within this process ("local") is out of reach of other machines.
"""

from __future__ import annotations

import os
import socket
import tempfile
import threading
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from clipset.backbones.custom import absolute_name
from clipset.backbones.runtime import Engine, open_engine
from clipset.data.catalog import Catalog, Video
from clipset.errors import ClipsetError, ConfigError, VideoError
from clipset.features.config import ExtractConfig
from clipset.features.decode_pool import MAX_AHEAD, DecodeWorker
from clipset.features.encode import EncodeResult, encode_chunks, join_chunks
from clipset.features.extract import choose_engine, decode_request, load_network, plan_store
from clipset.features.store import FeatureStore, Manifest
from clipset.features.writer import StoreWriter
from clipset.process.isolation import isolated_environment

MAX_RETRIES = 3  # of a video whose machine was lost
CONCURRENT_VIDEOS = 2  # of an actor: one is decoded while another one is encoded
LOOPBACK = "127.0.0.1"  # where the cluster within this process listens
CONNECT_SECONDS = 5.0  # how long an address may take to answer


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
            with _connect(address) as ray:
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
        self.lock = threading.Lock()
        self.local = threading.local()

    def engine_name(self) -> str:
        """The name of the engine that runs the backbone."""
        with self.lock:
            return self._engine.name

    def encode(self, video_index: int, video: Video) -> EncodeResult:
        """Decode and encode one video."""
        if not hasattr(self.local, "worker"):
            request = decode_request(self.manifest, sprite=True)
            self.local.worker = DecodeWorker(request, timeout=self.config.timeout_seconds)
        chunks: list[EncodeResult] = []
        for result in self.local.worker.decode(video_index, video):
            with self.lock:
                chunks += encode_chunks(self._engine, [result])
        [encoded] = join_chunks(chunks)
        return encoded

    @cached_property
    def _engine(self) -> Engine:
        torch.set_num_threads(self.threads)
        network = load_network(self.manifest, self.config.backbone)
        options = {"device": self.device, "engine": self.requested_engine}
        return open_engine(self.manifest.backbone, network, **options)


def _start_actors(
    ray: Any, writer: StoreWriter, config: ExtractConfig, device: str
) -> tuple[list[Any], str]:
    """As many actors as the cluster has room for, all with the engine of the first one."""
    max_actors, resources = _actor_resources(ray, device)
    actor_class = ray.remote(EncodeActor).options(
        max_restarts=-1,
        max_task_retries=MAX_RETRIES,
        max_concurrency=CONCURRENT_VIDEOS,
        **resources,
    )
    num_threads, engine_name = torch.get_num_threads(), choose_engine(writer, config)
    actors = [actor_class.remote(writer.manifest, config, engine_name, device, num_threads)]
    engine_name = _get_result(ray, actors[0].engine_name.remote())
    for _ in range(min(max_actors, len(writer.pending)) - 1):
        actors.append(actor_class.remote(writer.manifest, config, engine_name, device, num_threads))
    return actors, engine_name


def _actor_resources(ray: Any, device: str) -> tuple[int, dict[str, int]]:
    """The number of actors that fit, and the resources of each."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    num_gpus = sum(int(node.get("GPU", 0)) for node in nodes)
    if num_gpus and device != "cpu":
        return num_gpus, {"num_cpus": 1, "num_gpus": 1}
    core_counts = [int(node["CPU"]) for node in nodes if node.get("CPU", 0) >= 1]
    if not core_counts:
        raise ConfigError("the Ray cluster has no CPU to work on")
    num_threads = min(torch.get_num_threads(), *core_counts)
    return sum(count // num_threads for count in core_counts), {"num_cpus": num_threads}


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
            yield _get_result(ray, ready_call)
        except ray.exceptions.RayActorError:
            reason = f"its machine was lost {MAX_RETRIES + 1} times"
            yield video_index, VideoError(reason, transient=True)


def _get_result(ray: Any, reference: Any) -> Any:
    """The result of a call; an error of clipset is raised as it was."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, ClipsetError):
            raise cause from None
        raise


@contextmanager
def _connect(address: str) -> Iterator[Any]:
    """Ray, connected to a cluster, which is left at the end if it was entered here."""
    with warnings.catch_warnings(action="ignore"):
        try:
            import ray
        except ImportError:
            raise ConfigError("ray is not installed; pip install 'clipset[ray]'") from None
        started_here = not ray.is_initialized()
        if started_here:
            _start_ray(ray, address)
        try:
            yield ray
        finally:
            if started_here:
                ray.shutdown()


def _start_ray(ray: Any, address: str) -> None:
    _check_address(address)
    is_local = address == "local"
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if is_local:
        options |= {"num_cpus": os.cpu_count() or 1, "include_dashboard": False}
    loopback = _loopback_only() if is_local else nullcontext()
    with isolated_environment(), loopback, tempfile.TemporaryDirectory() as empty:
        options["runtime_env"] = {"working_dir": empty}  # not the current one, to import from
        try:
            ray.init(address, **options)
        except (ConnectionError, ValueError, RuntimeError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ConfigError(f"no Ray cluster at {address!r}: {reason}") from None
    if is_local and (listens := ray.util.get_node_ip_address()) != LOOPBACK:
        ray.shutdown()
        raise ConfigError(f"Ray {ray.__version__} listens on {listens}, not only on {LOOPBACK}")


@contextmanager
def _loopback_only() -> Iterator[None]:
    """Start no servers for other machines, as Ray does on systems where it has no clusters."""
    constants: Any = import_module("ray._private.ray_constants")
    before, constants.ENABLE_RAY_CLUSTER = constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


def _check_address(address: str) -> None:
    """Refuse an address that does not speak Ray's protocol: Ray itself would try for minutes.

    Its servers speak HTTP/2, and answer the preface of a client with their settings.
    """
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        return  # "local", "auto", or something that Ray refuses at once
    try:
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS) as server:
            server.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
            first_bytes = server.recv(4)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error) or "no answer"
        raise ConfigError(f"no Ray cluster at {address!r}: {reason.lower()}") from None
    if first_bytes[3:] != b"\x04":
        raise ConfigError(f"no Ray cluster at {address!r}: another program answers")
