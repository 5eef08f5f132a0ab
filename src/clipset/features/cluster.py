"""The same work units on Ray: actors decode, cut and look; the driver commits in order.

Every machine needs clipset, the backbone's weights and the videos under the same paths. Torch's
bits may change with its number of threads, so actors use as many as the driver has.
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
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from clipset.backbones.custom import absolute_name
from clipset.backbones.runtime import Engine, open_engine
from clipset.data.catalog import Catalog, Video
from clipset.errors import ClipsetError, ConfigError
from clipset.features.child import Cutter
from clipset.features.config import ExtractConfig
from clipset.features.encode import Seen, join_pieces, look_at_pieces
from clipset.features.extract import (
    choose_engine,
    cut_request,
    open_writer,
    plan,
    signature,
    videos_to_do,
)
from clipset.features.provenance import load_network
from clipset.features.store import FeatureStore, Manifest
from clipset.features.writer import StoreWriter
from clipset.isolation import isolated_environment
from clipset.progress import bar

RETRIES = 3  # how often a video is begun again after its machine was lost
LOOPBACK = "127.0.0.1"  # where the cluster within this process listens
KNOCK_SECONDS = 5.0  # how long an address may take to answer
AT_ONCE = 2  # videos of an actor: one is decoded while the backbone sees the other


def extract_on_ray(
    catalog: Catalog,
    folder: Path,
    config: ExtractConfig | None = None,
    *,
    seed: int = 0,
    device: str = "auto",
    address: str = "local",
) -> FeatureStore:
    """`extract` on a Ray cluster ("local": one that lives in this process); the same bytes."""
    config = config or ExtractConfig()
    manifest, _ = plan(config, seed)
    with open_writer(folder, manifest, catalog, config) as writer:
        if writer.todo:
            with _connected(address) as ray:
                _fill(ray, writer, catalog, config, device)
    return FeatureStore(folder)


class Looker:
    """An actor: it has a backbone and cuts and looks at the videos it is given."""

    def __init__(
        self,
        manifest: Manifest,
        backbone: str,
        *,
        engine: str,
        device: str,
        threads: int,
        timeout: float,
    ) -> None:
        self.request = cut_request(manifest)
        self.manifest, self.device, self.timeout = manifest, device, timeout
        self.backbone, self.wanted, self.threads = backbone, engine, threads
        self.engine: Engine | None = None
        self.lock = threading.Lock()
        self.local = threading.local()

    def engine_name(self) -> str:
        """What runs the backbone here."""
        with self.lock:
            return self._open().name

    def look(self, place: int, video: Video) -> Seen:
        """Cut one video and show it to the backbone."""
        if not hasattr(self.local, "cutter"):
            self.local.cutter = Cutter(self.request, timeout=self.timeout)
        pieces: list[Seen] = []
        for outcome in self.local.cutter.cut(0, video):
            with self.lock:
                pieces += look_at_pieces(self._open(), [outcome], [video.id])
        [seen] = join_pieces(pieces)
        return replace(seen, place=place)

    def _open(self) -> Engine:
        if self.engine is None:
            torch.set_num_threads(self.threads)
            network = load_network(self.manifest, self.backbone)
            self.engine = open_engine(
                self.manifest.backbone, network, device=self.device, engine=self.wanted
            )
        return self.engine


@contextmanager
def _connected(address: str) -> Iterator[Any]:
    """Ray, connected to a cluster; one that was started here also ends here."""
    with warnings.catch_warnings(action="ignore"):
        try:
            import ray
        except ImportError:
            raise ConfigError("ray is not installed; pip install 'clipset[ray]'") from None
        ours = not ray.is_initialized()
        if ours:
            _connect(ray, address)
        try:
            yield ray
        finally:
            if ours:
                ray.shutdown()


def _connect(ray: Any, address: str) -> None:
    _knock(address)
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address == "local":
        options |= {"num_cpus": os.cpu_count() or 1, "include_dashboard": False}
    on_loopback = _loopback() if address == "local" else nullcontext()
    with isolated_environment(), on_loopback, tempfile.TemporaryDirectory() as empty:
        options["runtime_env"] = {"working_dir": empty}  # else actors import from the current one
        try:
            ray.init(address, **options)
        except (ConnectionError, ValueError, RuntimeError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ConfigError(f"there is no Ray cluster at {address!r}: {reason}") from None
    if address == "local" and (listens := ray.util.get_node_ip_address()) != LOOPBACK:
        ray.shutdown()
        raise ConfigError(f"Ray {ray.__version__} listens on {listens}, not only on {LOOPBACK}")


@contextmanager
def _loopback() -> Iterator[None]:
    """Within, Ray starts no servers for other machines, as on systems where it has no clusters."""
    constants: Any = import_module("ray._private.ray_constants")
    before, constants.ENABLE_RAY_CLUSTER = constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


def _knock(address: str) -> None:
    """Refuse an address at which nothing speaks Ray's protocol: Ray itself would try for minutes.

    Its servers speak HTTP/2, and answer the preface of a client with their settings.
    """
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        return  # "local", "auto", or something that Ray refuses at once
    try:
        with socket.create_connection((host.strip("[]"), int(port)), KNOCK_SECONDS) as server:
            server.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
            answer = server.recv(4)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error) or "no answer"
        raise ConfigError(f"there is no Ray cluster at {address!r}: {reason.lower()}") from None
    if answer[3:] != b"\x04":
        raise ConfigError(f"there is no Ray cluster at {address!r}: another program answers")


def _fill(
    ray: Any, writer: StoreWriter, catalog: Catalog, config: ExtractConfig, device: str
) -> None:
    videos = videos_to_do(writer, catalog)
    actors, engine = _start_actors(ray, writer, config, device, len(videos))
    writer.sign(signature(writer.manifest, config, engine))
    title = f"extracting ({engine} on {len(actors)} Ray actors)"
    with bar(title, len(catalog), "videos", done=len(catalog) - len(videos)) as advance:
        for seen in _look_everywhere(ray, actors, videos):
            writer.put(seen)
            advance(note=f"{writer.failures} failed" if writer.failures else "")


def _start_actors(
    ray: Any, writer: StoreWriter, config: ExtractConfig, device: str, most: int
) -> tuple[list[Any], str]:
    """As many actors as the cluster holds, all with the engine that the first one chose."""
    count, share = _room(ray, device)
    actor = ray.remote(Looker).options(
        max_restarts=-1, max_task_retries=RETRIES, max_concurrency=AT_ONCE, **share
    )

    def start(engine: str) -> Any:
        return actor.remote(
            writer.manifest,
            absolute_name(config.backbone.strip()),
            engine=engine,
            device=device,
            threads=torch.get_num_threads(),
            timeout=config.seconds_per_video,
        )

    first = start(choose_engine(writer, config))
    name: str = _result(ray, first.engine_name.remote())
    return [first, *(start(name) for _ in range(min(count, most) - 1))], name


def _room(ray: Any, device: str) -> tuple[int, dict[str, int]]:
    """How many actors there is room for, and what each one takes."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    cards = sum(int(node.get("GPU", 0)) for node in nodes)
    if cards and device != "cpu":
        return cards, {"num_cpus": 1, "num_gpus": 1}
    cores = [int(node["CPU"]) for node in nodes if node.get("CPU", 0) >= 1]
    if not cores:
        raise ConfigError("the Ray cluster has no CPU to work on")
    share = min(torch.get_num_threads(), *cores)
    return sum(count // share for count in cores), {"num_cpus": share}


def _look_everywhere(ray: Any, actors: Sequence[Any], videos: Sequence[Video]) -> Iterator[Seen]:
    """Hand videos to actors as they get free; what they saw comes as it is ready."""
    free = deque(list(actors) * AT_ONCE)
    todo = iter(enumerate(videos))
    under_way: dict[Any, tuple[Any, int]] = {}
    while True:
        while free and (job := next(todo, None)):
            place, video = job
            actor = free.popleft()
            video = replace(video, path=video.path.absolute())
            under_way[actor.look.remote(place, video)] = (actor, place)
        if not under_way:
            return
        [ready], _ = ray.wait(list(under_way), num_returns=1)
        actor, place = under_way.pop(ready)
        free.append(actor)
        try:
            yield _result(ray, ready)
        except ray.exceptions.RayActorError:
            yield Seen(place, reason=f"its machine was lost {RETRIES + 1} times", transient=True)


def _result(ray: Any, reference: Any) -> Any:
    """What a call gave; an error of ours comes as it was raised."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, ClipsetError):
            raise cause from None
        raise
