"""How a frozen network runs: torch on any device, or OpenVINO on a CPU.

Every clip goes through the same shapes whatever its batch: one by one on a CPU, in full chunks on a
GPU (the last one is padded). So a clip's feature is the same to the bit in any batch. Torch's bits
may change with its number of threads; OpenVINO's did not in our tests.
"""

from __future__ import annotations

import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from clipset.backbones.registry import BackboneSpec, ClipShape
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
            return partial(torch.zeros, 0, spec.dim)
        return partial(self._finish, self._start(clips))

    def _finish(self, pending: PendingFeatures) -> Float[Tensor, "B D"]:
        spec, features = self.spec, pending()
        if features.shape[1:] != (spec.dim,):
            shape = tuple(features.shape[1:])
            raise BackboneError(f"{spec.name} must give ({spec.dim},) for a clip, got {shape}")
        broken_clips = (~torch.isfinite(features)).any(dim=1).nonzero().flatten().tolist()
        if broken_clips:
            raise BackboneError(
                f"{spec.name} gave features that are not finite, "
                f"for clip {', '.join(map(str, broken_clips))} of a batch of {len(features)}"
            )
        return features

    @abstractmethod
    def _start(self, clips: UInt8[Tensor, "B T 3 S S"]) -> PendingFeatures: ...


def open_engine(
    spec: BackboneSpec, network: nn.Module, *, device: str = "auto", engine: str = "auto"
) -> Engine:
    """The engine for a network: OpenVINO on a CPU if it is installed and fits, else torch.

    The engine owns the network and moves it to the device. A network from a file of OpenVINO or
    ONNX always runs in OpenVINO, on the CPU.
    """
    if engine not in ENGINES:
        raise BackboneError(f"unknown engine {engine!r}; {near_names(engine, ENGINES)}")
    if isinstance(network, OpenVinoFile):
        if engine == "torch" or device not in ("auto", "cpu"):
            raise BackboneError(
                f"{spec.name} is a file that only openvino runs, on the cpu; "
                f"got engine {engine!r} and device {device!r}"
            )
        return TorchEngine(spec, network, torch.device("cpu"), name="openvino")
    target_device = find_device("cpu" if (device, engine) == ("auto", "openvino") else device)
    if engine == "openvino" and target_device.type != "cpu":
        raise BackboneError(f"openvino runs on the cpu, got device {device!r}; use engine 'torch'")
    if engine == "openvino":
        return OpenVinoEngine(spec, network)
    if engine == "auto" and target_device.type == "cpu" and import_openvino() is not None:
        try:
            return OpenVinoEngine(spec, network)
        except BackboneError as error:
            warnings.warn(f"{error}; running {spec.name} in torch", stacklevel=2)
    return TorchEngine(spec, network, target_device)


class NormalisedNetwork(nn.Module):
    """The network after the spec's normalisation: the only place where it is applied."""

    mean: Tensor
    std: Tensor

    def __init__(self, spec: BackboneSpec, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("mean", torch.tensor(spec.mean).view(3, 1, 1))
        self.register_buffer("std", torch.tensor(spec.std).view(3, 1, 1))

    def forward(
        self, clips: UInt8[Tensor, "B T 3 S S"], visible: Int[Tensor, "B K"] | None = None
    ) -> Float[Tensor, "B ..."]:
        """The features of uint8 clips; a video transformer can leave out all but visible tokens."""
        normalised = (clips.float() - self.mean) / self.std
        features: Tensor = self.network(normalised, *(() if visible is None else (visible,)))
        return features


class TorchEngine(Engine):
    """The network in torch: float32, or half precision on a CUDA GPU that supports it."""

    def __init__(
        self, spec: BackboneSpec, network: nn.Module, device: torch.device, name: str = "torch"
    ) -> None:
        super().__init__(spec)
        self.name, self.device = name, str(device)
        self.network = NormalisedNetwork(spec, network).eval().to(device)
        if device.type != "mps":
            for parameter in self.network.parameters():
                if parameter.dim() == 4:  # faster for 2D convolutions; 3D ones are not affected
                    parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
        self.half = _half_precision(device)
        self.chunk = 1 if device.type == "cpu" else find_chunk(self._run_chunk, spec)

    def _start(self, clips: UInt8[Tensor, "B T 3 S S"]) -> PendingFeatures:
        return partial(self._run, clips)

    def _run(self, clips: UInt8[Tensor, "B T 3 S S"]) -> Float[Tensor, "B ..."]:
        chunk_features = []
        for chunk in clips.split(self.chunk):
            padding_clips = chunk[-1:].expand(self.chunk - len(chunk), -1, -1, -1, -1)
            chunk_features.append(self._run_chunk(torch.cat([chunk, padding_clips]))[: len(chunk)])
        return torch.cat(chunk_features)

    @torch.no_grad()
    def _run_chunk(self, clips: UInt8[Tensor, "B T 3 S S"]) -> Float[Tensor, "B ..."]:
        with torch.autocast(
            torch.device(self.device).type, dtype=self.half, enabled=self.half is not None
        ):
            features: Tensor = self.network(clips.to(self.device))
        return features.float().cpu()


def find_chunk(run: Callable[[Tensor], Tensor], spec: BackboneSpec) -> int:
    """Clips that a GPU takes at once: the largest power of two that fits its memory."""
    chunk_size = MAX_CHUNK
    while chunk_size > 1:
        try:
            run(torch.zeros(chunk_size, spec.frames, 3, spec.size, spec.size, dtype=torch.uint8))
            break
        except RuntimeError as error:
            if "out of memory" not in str(error):
                raise
            chunk_size //= 2
    return chunk_size


def _half_precision(device: torch.device) -> torch.dtype | None:
    if device.type != "cuda":
        return None  # float32 everywhere else: half precision is slow or missing on most CPUs
    with torch.cuda.device(device):
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return torch.bfloat16
    return torch.float16 if torch.cuda.get_device_capability(device) >= (7, 0) else None


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
        input_shape = [1, spec.frames, 3, spec.size, spec.size]
        example_clip = torch.zeros(input_shape, dtype=torch.uint8)
        try:
            with torch.no_grad(), warnings.catch_warnings(action="ignore"):
                traced_network = torch.jit.trace(torch_network, example_clip, check_trace=False)
                model = openvino.convert_model(traced_network, example_input=example_clip)
            model.reshape(input_shape)
            compiled_model = _compile_for_cpu(openvino, model, "THROUGHPUT")
        except Exception as error:  # OpenVINO raises many kinds
            raise BackboneError(f"openvino cannot run {spec.name} ({error_line(error)})") from error
        # A plain compiled model runs one request at a time; the queue keeps all cores busy.
        self._queue = openvino.AsyncInferQueue(compiled_model)
        self._queue.set_callback(_set_feature)
        self._check_conversion(torch_network)

    def _start(self, clips: UInt8[Tensor, "B T 3 S S"]) -> PendingFeatures:
        futures: list[Future[Tensor]] = []
        for clip in clips.split(1):  # waits while all requests are busy
            futures.append(Future())
            self._queue.start_async({0: clip.contiguous().numpy()}, futures[-1])
        return partial(self._wait, futures)

    def _wait(self, futures: list[Future[Tensor]]) -> Float[Tensor, "B ..."]:
        try:
            return torch.cat([future.result(WAIT_SECONDS) for future in futures])
        except TimeoutError:
            self._queue.wait_all()  # raises the error of a request
        num_missing = sum(not future.done() for future in futures)
        if num_missing:
            raise BackboneError(f"openvino lost {num_missing} of {len(futures)} clips")
        return torch.cat([future.result() for future in futures])

    def _check_conversion(self, network: NormalisedNetwork) -> None:
        """Tracing can lose a branch that depends on the data: compare the features of noise."""
        spec = self.spec
        noise = torch.Generator().manual_seed(0)
        clip_shape = (1, spec.frames, 3, spec.size, spec.size)
        clips = torch.randint(0, 256, clip_shape, generator=noise, dtype=torch.uint8)
        with torch.no_grad():
            expected: Tensor = network(clips)
        if not torch.isfinite(expected).all():
            return  # an error of the network, which `features` reports
        error = float((self._start(clips)() - expected).norm() / expected.norm().clamp(min=1e-12))
        if not error < MAX_ERROR:
            raise BackboneError(
                f"openvino and torch disagree on {spec.name} (relative error {error})"
            )


class OpenVinoFile(nn.Module):
    """A network in an ONNX file or in OpenVINO's own format, run by OpenVINO on the CPU.

    Its one input is a clip (B, T, 3, S, S) or (B, 3, T, S, S), or an image (B, 3, S, S): then it
    runs on every frame and the features are averaged. Its first output is the feature (B, D).
    `defaults` are frames and size where nothing else sets them.
    """

    def __init__(self, file: Path, shape: ClipShape, defaults: tuple[int, int]) -> None:
        super().__init__()
        openvino = import_openvino()
        if openvino is None:
            raise BackboneError(f"{file} is run by openvino, but {NOT_INSTALLED}")
        if file.suffix == ".xml" and not file.with_suffix(".bin").is_file():
            raise BackboneError(f"the weights of {file}, {file.stem}.bin beside it, not found")
        try:
            model = openvino.Core().read_model(file)
        except Exception as error:  # OpenVINO raises many kinds
            raise BackboneError(f"openvino cannot read {file}: {_last_line(error)}") from None
        input_dims = _input_dims(model, file)
        self.image = len(input_dims) == 4
        self.channels_first = not self.image and input_dims[2] != 3 and input_dims[1] == 3
        native_frames = None if self.image else input_dims[2 if self.channels_first else 1]
        self.frames = shape.frames or native_frames or defaults[0]
        self.size = shape.size or input_dims[-1] or defaults[1]
        channels = [3, self.frames] if self.channels_first else [self.frames, 3]
        input_shape = [1, *([3] if self.image else channels), self.size, self.size]
        native_shape = model.inputs[0].partial_shape
        try:
            model.reshape(input_shape)
            self._compiled = _compile_for_cpu(openvino, model, "LATENCY")
        except Exception as error:  # OpenVINO raises many kinds
            raise BackboneError(
                f"{file} takes {native_shape} and cannot run on {tuple(input_shape)}: "
                f"{_last_line(error)}"
            ) from None

    def forward(self, clips: Float[Tensor, "B T 3 S S"]) -> Float[Tensor, "B D"]:
        """The features of normalised clips, one after the other."""
        if self.image:  # T of (1, 3, S, S)
            frames = [torch.cat([self._infer(frame) for frame in clip.split(1)]) for clip in clips]
            return torch.stack([features.mean(dim=0) for features in frames])
        clips = clips.transpose(1, 2) if self.channels_first else clips
        return torch.cat([self._infer(clip) for clip in clips.split(1)])

    def _infer(self, pixels: Tensor) -> Tensor:
        result = self._compiled([pixels.contiguous().numpy()])
        return torch.from_numpy(result[0].copy())


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


def _compile_for_cpu(openvino: Any, model: Any, hint: str) -> Any:
    options = {
        "INFERENCE_PRECISION_HINT": "f32",  # else bfloat16 wherever the CPU has it
        "PERFORMANCE_HINT": hint,
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "ENABLE_CPU_PINNING": False,  # other processes decode on the same cores
    }
    return openvino.Core().compile_model(model, "CPU", options)


def _set_feature(request: Any, future: Future[Tensor]) -> None:
    future.set_result(torch.tensor(request.get_output_tensor(0).data))


def _input_dims(model: Any, model_file: Path) -> list[int | None]:
    """The shape of the input, None where any number is taken."""
    if len(model.inputs) != 1:
        raise BackboneError(
            f"{model_file} takes {len(model.inputs)} inputs; a backbone takes one, clips"
        )
    [model_input] = model.inputs
    input_type = model_input.element_type.get_type_name()
    input_shape = model_input.partial_shape
    num_axes = input_shape.rank.get_length() if input_shape.rank.is_static else 0
    if num_axes not in (4, 5) or input_type != "f32":
        raise BackboneError(
            f"{model_file} takes {input_type} {input_shape}; a backbone takes float32 clips "
            "(1, T, 3, S, S) or (1, 3, T, S, S), or images (1, 3, S, S)"
        )
    return [dim.get_length() if dim.is_static else None for dim in input_shape]


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
