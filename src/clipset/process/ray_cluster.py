"""Ray: connects to a cluster, or starts one in this process that no other machine can reach."""

from __future__ import annotations

import os
import socket
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from typing import Any

import torch

from clipset.errors import ClipsetError, ConfigError
from clipset.process.isolation import isolated_environment

LOOPBACK = "127.0.0.1"  # where the cluster within this process listens
CONNECT_SECONDS = 5.0  # how long an address may take to answer


@contextmanager
def connect_ray(address: str) -> Iterator[Any]:
    """Ray, connected to a cluster ("local": one within this process), disconnected at the end."""
    with warnings.catch_warnings(action="ignore"):
        try:
            import ray
        except ImportError:
            raise ConfigError("ray is not installed; pip install 'clipset[ray]'") from None
        started_here = not ray.is_initialized()
        if started_here:
            _connect(ray, address)
        try:
            yield ray
        finally:
            if started_here:
                ray.shutdown()


def _connect(ray: Any, address: str) -> None:
    _check_address(address)
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address == "local":
        options |= {"num_cpus": os.cpu_count() or 1, "include_dashboard": False}
    loopback = _loopback_only() if address == "local" else nullcontext()
    with isolated_environment(), loopback, tempfile.TemporaryDirectory() as empty:
        options["runtime_env"] = {
            "working_dir": empty
        }  # actors import nothing from the current one
        try:
            ray.init(address, **options)
        except (ConnectionError, ValueError, RuntimeError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ConfigError(f"no Ray cluster at {address!r}: {reason}") from None
    if address == "local" and (listens := ray.util.get_node_ip_address()) != LOOPBACK:
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


def actor_resources(ray: Any, device: str) -> tuple[int, dict[str, int]]:
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


def get_result(ray: Any, reference: Any) -> Any:
    """The result of a call; an error of clipset is raised as it was."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, ClipsetError):
            raise cause from None
        raise
