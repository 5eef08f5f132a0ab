"""How a frozen network runs: torch on any device, or OpenVINO on a CPU.

Every clip goes through the same shapes whatever clips stand beside it: one by one on a CPU, in full
chunks on a card (the last one filled up). So a clip's feature is the same to the bit in any batch.
Torch's bits may change with its number of threads; OpenVINO's were not seen to.
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
from clipset.errors import BackboneError

ENGINES = ("auto", "torch", "openvino")
LARGEST_CHUNK = 32  # clips that a card takes at once, if they fit
NOT_INSTALLED = "openvino is not installed; pip install 'clipset[openvino]'"
PATIENCE = 30.0  # seconds after which it is looked whether openvino is still at work
AGREEMENT = 1e-3  # relative error at which a converted network is no longer the same network

Answer = Callable[[], Float[Tensor, "B ..."]]
"""Waits until the features of some clips are there."""


class Engine(ABC):
    """A frozen network that is ready to run; `features` maps uint8 clips to float32 features."""

    name: str
    device: str

    def __init__(self, spec: BackboneSpec) -> None:
        self.spec = spec

    def features(self, clips: UInt8[Tensor, "B T 3 S S"]) -> Float[Tensor, "B D"]:
        """The features of the clips, on the CPU; one that is not finite is an error."""
        return self.start(clips)()

    def start(self, clips: UInt8[Tensor, "B T 3 S S"]) -> Answer:
        """Begin with some clips; call the answer for their features.

        Whoever begins with further clips before that leaves no core idle in between.
        """
        spec = self.spec
        if clips.shape[1:] != (spec.frames, 3, spec.size, spec.size):
            raise BackboneError(
                f"{spec.name} takes clips of {(spec.frames, 3, spec.size, spec.size)} "
                f"(frames, RGB, height, width), got {tuple(clips.shape[1:])}"
            )
        if len(clips) == 0:
            return lambda: torch.zeros(0, spec.dim)
        answer = self._start(clips)
        return lambda: self._checked(answer())

    def _checked(self, features: Float[Tensor, "B ..."]) -> Float[Tensor, "B D"]:
        spec = self.spec
        if features.shape[1:] != (spec.dim,):
            shape = tuple(features.shape[1:])
            raise BackboneError(f"{spec.name} should give ({spec.dim},) for a clip, gave {shape}")
        broken = (~torch.isfinite(features)).any(dim=1).nonzero().flatten().tolist()
        if broken:
            raise BackboneError(
                f"{spec.name} gave features that are not finite, "
                f"for clip {', '.join(map(str, broken))} of a batch of {len(features)}"
            )
        return features

    def _start(self, clips: UInt8[Tensor, "B T 3 S S"]) -> Answer:
        return lambda: self._run(clips)

    @abstractmethod
    def _run(self, clips: UInt8[Tensor, "B T 3 S S"]) -> Float[Tensor, "B ..."]: ...


class NormalisedNetwork(nn.Module):
    """The network with the spec's mean and std before it: the only place where they are applied."""

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
    """A network that torch does not know from the inside: OpenVINO runs it."""


class TorchEngine(Engine):
    """The network in torch: float32, or half precision on a CUDA card that computes in it."""

    name = "torch"

    def __init__(self, spec: BackboneSpec, network: nn.Module, device: torch.device) -> None:
        super().__init__(spec)
        self.device = str(device)
        self.network = NormalisedNetwork(spec, network).eval().to(device)
        if device.type != "mps":
            _lay_channels_last(self.network)
        self.half = _half_precision(device)
        self.chunk = 1 if device.type == "cpu" else find_chunk(self._run_chunk, spec)

    def _run(self, clips: UInt8[Tensor, "B T 3 S S"]) -> Float[Tensor, "B ..."]:
        parts = []
        for chunk in clips.split(self.chunk):
            filler = chunk[-1:].expand(self.chunk - len(chunk), -1, -1, -1, -1)
            parts.append(self._run_chunk(torch.cat([chunk, filler]))[: len(chunk)])
        return torch.cat(parts)

    @torch.no_grad()
    def _run_chunk(self, clips: UInt8[Tensor, "B T 3 S S"]) -> Float[Tensor, "B ..."]:
        with torch.autocast(
            torch.device(self.device).type, dtype=self.half, enabled=self.half is not None
        ):
            features: Tensor = self.network(clips.to(self.device))
        return features.float().cpu()


class OpenVinoEngine(Engine):
    """The network converted to OpenVINO, one clip to a request and as many requests as help."""

    name = "openvino"
    device = "cpu"

    def __init__(self, spec: BackboneSpec, network: nn.Module) -> None:
        super().__init__(spec)
        openvino = import_openvino()
        if openvino is None:
            raise BackboneError(NOT_INSTALLED)
        torch_network = NormalisedNetwork(spec, network.cpu()).eval()
        compiled = _compile(openvino, torch_network, spec)
        # A plain compiled model runs one request at a time; the queue keeps all cores busy.
        self._queue = openvino.AsyncInferQueue(compiled)
        self._queue.set_callback(lambda request, keep: keep(request.get_output_tensor(0).data))
        _refuse_disagreement(self, torch_network)

    def _start(self, clips: UInt8[Tensor, "B T 3 S S"]) -> Answer:
        rows: dict[int, Tensor] = {}
        complete = threading.Event()

        def keep(place: int, feature: Any) -> None:
            rows[place] = torch.tensor(feature)
            if len(rows) == len(clips):
                complete.set()

        for place, clip in enumerate(clips.split(1)):  # waits while all requests are busy
            self._queue.start_async({0: clip.contiguous().numpy()}, partial(keep, place))

        def answer() -> Tensor:
            if not complete.wait(PATIENCE):
                self._queue.wait_all()  # raises what a request may have died of
            if len(rows) < len(clips):
                raise BackboneError(f"openvino lost {len(clips) - len(rows)} of {len(clips)} clips")
            return torch.cat([rows[place] for place in range(len(clips))])

        return answer

    def _run(self, clips: UInt8[Tensor, "B T 3 S S"]) -> Float[Tensor, "B ..."]:
        return self._start(clips)()


def open_engine(
    spec: BackboneSpec, network: nn.Module, *, device: str = "auto", engine: str = "auto"
) -> Engine:
    """The engine for a network: OpenVINO on a CPU if it is installed and fits, else torch.

    The network is moved to the device and belongs to the engine from then on. One that was read
    from a file of OpenVINO or ONNX stays in OpenVINO, on the CPU.
    """
    if engine not in ENGINES:
        raise BackboneError(f"unknown engine {engine!r}; {near_names(engine, ENGINES)}")
    if isinstance(network, OpenVinoNetwork):
        return _open_file(spec, network, device, engine)
    place = find_device("cpu" if (device, engine) == ("auto", "openvino") else device)
    if engine == "openvino" and place.type != "cpu":
        raise BackboneError(f"openvino runs on the cpu, got device {device!r}; use engine 'torch'")
    if engine == "torch" or place.type != "cpu":
        return TorchEngine(spec, network, place)
    if engine == "openvino":
        return OpenVinoEngine(spec, network)
    return _open_for_cpu(spec, network)


def find_chunk(run: Callable[[Tensor], Tensor], spec: BackboneSpec) -> int:
    """How many clips a card takes at once: the largest power of two that fits its memory."""
    chunk = LARGEST_CHUNK
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


def _lay_channels_last(network: nn.Module) -> None:
    """Faster for convolutions over images; over time and space it makes no difference."""
    for parameter in network.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)


def import_openvino() -> ModuleType | None:
    """OpenVINO if it is installed."""
    # Importing it reports that to its makers unless the package that does so is out of reach.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    try:
        with warnings.catch_warnings(action="ignore"):
            import openvino
    except ImportError:
        return None
    module: ModuleType = openvino
    return module


def cpu_options(hint: Literal["THROUGHPUT", "LATENCY"]) -> dict[str, Any]:
    """How OpenVINO compiles for a CPU."""
    return {
        "INFERENCE_PRECISION_HINT": "f32",  # else bfloat16 wherever the CPU has it
        "PERFORMANCE_HINT": hint,
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "ENABLE_CPU_PINNING": False,  # other processes decode on the same cores
    }


def _compile(openvino: Any, network: NormalisedNetwork, spec: BackboneSpec) -> Any:
    shape = [1, spec.frames, 3, spec.size, spec.size]
    example = torch.zeros(shape, dtype=torch.uint8)
    try:
        with torch.no_grad(), warnings.catch_warnings(action="ignore"):
            traced = torch.jit.trace(network, example, check_trace=False)
            model = openvino.convert_model(traced, example_input=example)
        model.reshape(shape)
        return openvino.Core().compile_model(model, "CPU", cpu_options("THROUGHPUT"))
    except Exception as error:  # OpenVINO raises whatever its many parts raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise BackboneError(f"openvino cannot run {spec.name} ({reason})") from error


def _refuse_disagreement(engine: OpenVinoEngine, network: NormalisedNetwork) -> None:
    """Tracing can lose a branch that depends on the data: compare on one clip of noise."""
    spec = engine.spec
    noise = torch.Generator().manual_seed(0)
    shape = (1, spec.frames, 3, spec.size, spec.size)
    clips = torch.randint(0, 256, shape, generator=noise, dtype=torch.uint8)
    with torch.no_grad():
        expected: Tensor = network(clips)
    if not torch.isfinite(expected).all():
        return  # no engine can help; `features` will say so
    error = float((engine._run(clips) - expected).norm() / expected.norm().clamp(min=1e-12))
    if not error < AGREEMENT:
        raise BackboneError(f"openvino and torch disagree on {spec.name} (relative error {error})")
