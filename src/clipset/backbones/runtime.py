"""How a frozen network runs: torch on any device, or OpenVINO on a CPU.

Every clip goes through the same shapes whatever its batch: one by one on a CPU, in full chunks on a
GPU (the last one is padded). So a clip's feature is the same to the bit in any batch. Torch's bits
may change with its number of threads; OpenVINO's did not in our tests.
"""

from __future__ import annotations

import sys
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, Literal

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from clipset.backbones.registry import BackboneSpec
from clipset.config import near_names
from clipset.devices import find_device
from clipset.errors import BackboneError, error_line

ENGINES = ("auto", "torch", "openvino")
MAX_CHUNK = 32  # clips that a GPU takes at once, if they fit
NOT_INSTALLED = "openvino is not installed; pip install 'clipset[openvino]'"
WAIT_SECONDS = 30.0  # after which the queue of openvino is asked for errors
MAX_ERROR = 1e-3  # relative error of a converted network

PendingFeatures = Callable[[], Float[Tensor, "B ..."]]
"""Waits for the features of some clips."""


class Engine(ABC):
    """A frozen network, ready to run; `features` maps uint8 clips to float32 features."""

    name: str
    device: str

    def __init__(self, spec: BackboneSpec) -> None:
        self.spec = spec

    def features(self, clips: UInt8[Tensor, "B T 3 S S"]) -> Float[Tensor, "B D"]:
        """The features of the clips, on the CPU; one that is not finite is an error."""
        return self.start(clips)()

    def start(self, clips: UInt8[Tensor, "B T 3 S S"]) -> PendingFeatures:
        """Start to encode some clips; the result is called for their features.

        Starting further clips before that call leaves no core idle in between.
        """
        spec = self.spec
        if clips.shape[1:] != (spec.frames, 3, spec.size, spec.size):
            raise BackboneError(
                f"{spec.name} takes clips of {(spec.frames, 3, spec.size, spec.size)} "
                f"(frames, RGB, height, width), got {tuple(clips.shape[1:])}"
            )
        if len(clips) == 0:
            return lambda: torch.zeros(0, spec.dim)
        pending = self._start(clips)
        return lambda: self._check_features(pending())

    def _check_features(self, features: Float[Tensor, "B ..."]) -> Float[Tensor, "B D"]:
        spec = self.spec
        if features.shape[1:] != (spec.dim,):
            shape = tuple(features.shape[1:])
            raise BackboneError(f"{spec.name} must give ({spec.dim},) for a clip, got {shape}")
        broken = (~torch.isfinite(features)).any(dim=1).nonzero().flatten().tolist()
        if broken:
            raise BackboneError(
                f"{spec.name} gave features that are not finite, "
                f"for clip {', '.join(map(str, broken))} of a batch of {len(features)}"
            )
        return features

    @abstractmethod
    def _start(self, clips: UInt8[Tensor, "B T 3 S S"]) -> PendingFeatures: ...


class NormalisedNetwork(nn.Module):
    """The network after the spec's normalisation: the only place where it is applied."""

    mean: Tensor
    std: Tensor

    def __init__(self, spec: BackboneSpec, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("mean", torch.tensor(spec.mean).view(3, 1, 1))
        self.register_buffer("std", torch.tensor(spec.std).view(3, 1, 1))

    def forward(self, clips: UInt8[Tensor, "B T 3 S S"]) -> Float[Tensor, "B ..."]:
        """The features of uint8 clips."""
        features: Tensor = self.network((clips.float() - self.mean) / self.std)
        return features


class OpenVinoNetwork(nn.Module):
    """A network that only OpenVINO can run."""


class TorchEngine(Engine):
    """The network in torch: float32, or half precision on a CUDA GPU that supports it."""

    name = "torch"

    def __init__(self, spec: BackboneSpec, network: nn.Module, device: torch.device) -> None:
        super().__init__(spec)
        self.device = str(device)
        self.network = NormalisedNetwork(spec, network).eval().to(device)
        if device.type != "mps":
            _to_channels_last(self.network)
        self.half = _half_precision(device)
        self.chunk = 1 if device.type == "cpu" else find_chunk(self._run_chunk, spec)

    def _start(self, clips: UInt8[Tensor, "B T 3 S S"]) -> PendingFeatures:
        return lambda: self._run(clips)

    def _run(self, clips: UInt8[Tensor, "B T 3 S S"]) -> Float[Tensor, "B ..."]:
        features = []
        for chunk in clips.split(self.chunk):
            padding = chunk[-1:].expand(self.chunk - len(chunk), -1, -1, -1, -1)
            features.append(self._run_chunk(torch.cat([chunk, padding]))[: len(chunk)])
        return torch.cat(features)

    @torch.no_grad()
    def _run_chunk(self, clips: UInt8[Tensor, "B T 3 S S"]) -> Float[Tensor, "B ..."]:
        with torch.autocast(
            torch.device(self.device).type, dtype=self.half, enabled=self.half is not None
        ):
            features: Tensor = self.network(clips.to(self.device))
        return features.float().cpu()


class OpenVinoEngine(Engine):
    """The network converted to OpenVINO: one clip per request, several requests at once."""

    name = "openvino"
    device = "cpu"

    def __init__(self, spec: BackboneSpec, network: nn.Module) -> None:
        super().__init__(spec)
        openvino = import_openvino()
        if openvino is None:
            raise BackboneError(NOT_INSTALLED)
        torch_network = NormalisedNetwork(spec, network.cpu()).eval()
        compiled = _convert(openvino, torch_network, spec)
        # A plain compiled model runs one request at a time; the queue keeps all cores busy.
        self._queue = openvino.AsyncInferQueue(compiled)
        self._queue.set_callback(lambda request, store: store(request.get_output_tensor(0).data))
        _check_conversion(self, torch_network)

    def _start(self, clips: UInt8[Tensor, "B T 3 S S"]) -> PendingFeatures:
        features: dict[int, Tensor] = {}
        complete = threading.Event()

        def store(index: int, feature: Any) -> None:
            features[index] = torch.tensor(feature)
            if len(features) == len(clips):
                complete.set()

        for index, clip in enumerate(clips.split(1)):  # waits while all requests are busy
            self._queue.start_async({0: clip.contiguous().numpy()}, partial(store, index))

        def wait() -> Tensor:
            if not complete.wait(WAIT_SECONDS):
                self._queue.wait_all()  # raises the error of a request
            missing = len(clips) - len(features)
            if missing:
                raise BackboneError(f"openvino lost {missing} of {len(clips)} clips")
            return torch.cat([features[index] for index in range(len(clips))])

        return wait


def open_engine(
    spec: BackboneSpec, network: nn.Module, *, device: str = "auto", engine: str = "auto"
) -> Engine:
    """The engine for a network: OpenVINO on a CPU if it is installed and fits, else torch.

    The engine owns the network and moves it to the device. A network from a file of OpenVINO or
    ONNX always runs in OpenVINO, on the CPU.
    """
    if engine not in ENGINES:
        raise BackboneError(f"unknown engine {engine!r}; {near_names(engine, ENGINES)}")
    if isinstance(network, OpenVinoNetwork):
        return _open_file(spec, network, device, engine)
    target = find_device("cpu" if (device, engine) == ("auto", "openvino") else device)
    if engine == "openvino" and target.type != "cpu":
        raise BackboneError(f"openvino runs on the cpu, got device {device!r}; use engine 'torch'")
    if engine == "torch" or target.type != "cpu":
        return TorchEngine(spec, network, target)
    if engine == "openvino":
        return OpenVinoEngine(spec, network)
    return _open_for_cpu(spec, network)


def find_chunk(run: Callable[[Tensor], Tensor], spec: BackboneSpec) -> int:
    """Clips that a GPU takes at once: the largest power of two that fits its memory."""
    chunk = MAX_CHUNK
    while chunk > 1:
        try:
            run(torch.zeros(chunk, spec.frames, 3, spec.size, spec.size, dtype=torch.uint8))
        except RuntimeError as error:
            if "out of memory" not in str(error):
                raise
            chunk //= 2
        else:
            break
    return chunk


def _open_file(spec: BackboneSpec, network: OpenVinoNetwork, device: str, engine: str) -> Engine:
    if engine == "torch" or device not in ("auto", "cpu"):
        raise BackboneError(
            f"{spec.name} is a file that only openvino runs, on the cpu; "
            f"got engine {engine!r} and device {device!r}"
        )
    opened = TorchEngine(spec, network, torch.device("cpu"))
    opened.name = "openvino"
    return opened


def _open_for_cpu(spec: BackboneSpec, network: nn.Module) -> Engine:
    if import_openvino() is not None:
        try:
            return OpenVinoEngine(spec, network)
        except BackboneError as error:
            warnings.warn(f"{error}; running {spec.name} in torch", stacklevel=3)
    return TorchEngine(spec, network, torch.device("cpu"))


def _half_precision(device: torch.device) -> torch.dtype | None:
    if device.type != "cuda":
        return None  # float32 everywhere else: half precision is slow or missing on most CPUs
    with torch.cuda.device(device):
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return torch.bfloat16
    return torch.float16 if torch.cuda.get_device_capability(device) >= (7, 0) else None


def _to_channels_last(network: nn.Module) -> None:
    """Faster for 2D convolutions; 3D ones are not affected."""
    for parameter in network.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)


def import_openvino() -> ModuleType | None:
    """OpenVINO if it is installed."""
    # Without this, importing it sends telemetry.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    try:
        with warnings.catch_warnings(action="ignore"):
            import openvino
    except ImportError:
        return None
    module: ModuleType = openvino
    return module


def cpu_options(hint: Literal["THROUGHPUT", "LATENCY"]) -> dict[str, Any]:
    """Options of OpenVINO for compiling for a CPU."""
    return {
        "INFERENCE_PRECISION_HINT": "f32",  # else bfloat16 wherever the CPU has it
        "PERFORMANCE_HINT": hint,
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "ENABLE_CPU_PINNING": False,  # other processes decode on the same cores
    }


def _convert(openvino: Any, network: NormalisedNetwork, spec: BackboneSpec) -> Any:
    shape = [1, spec.frames, 3, spec.size, spec.size]
    example = torch.zeros(shape, dtype=torch.uint8)
    try:
        with torch.no_grad(), warnings.catch_warnings(action="ignore"):
            traced = torch.jit.trace(network, example, check_trace=False)
            model = openvino.convert_model(traced, example_input=example)
        model.reshape(shape)
        return openvino.Core().compile_model(model, "CPU", cpu_options("THROUGHPUT"))
    except Exception as error:  # OpenVINO raises many kinds
        raise BackboneError(f"openvino cannot run {spec.name} ({error_line(error)})") from error


def _check_conversion(engine: OpenVinoEngine, network: NormalisedNetwork) -> None:
    """Tracing can lose a branch that depends on the data: compare features of one noise clip."""
    spec = engine.spec
    noise = torch.Generator().manual_seed(0)
    shape = (1, spec.frames, 3, spec.size, spec.size)
    clips = torch.randint(0, 256, shape, generator=noise, dtype=torch.uint8)
    with torch.no_grad():
        expected: Tensor = network(clips)
    if not torch.isfinite(expected).all():
        return  # an error of the network, which `features` reports
    error = float((engine._start(clips)() - expected).norm() / expected.norm().clamp(min=1e-12))
    if not error < MAX_ERROR:
        raise BackboneError(f"openvino and torch disagree on {spec.name} (relative error {error})")
