"""A network in an ONNX file or in OpenVINO's own format, run by OpenVINO on the CPU.

Its one input is a clip (B, T, 3, S, S) or (B, 3, T, S, S), or an image (B, 3, S, S): then it runs
on every frame and the features are averaged. Its first output is the feature (B, D).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from clipset.backbones.runtime import NOT_INSTALLED, OpenVinoNetwork, cpu_options, import_openvino
from clipset.errors import BackboneError


class OpenVinoFile(OpenVinoNetwork):
    """The network of a file; `defaults` are frames and size where nothing else sets them."""

    def __init__(
        self, file: Path, *, frames: int | None, size: int | None, defaults: tuple[int, int]
    ) -> None:
        super().__init__()
        model = _read_model(file)
        dims = _input_dims(model, file)
        self.image = len(dims) == 4
        self.channels_first = not self.image and dims[2] != 3 and dims[1] == 3
        native_frames = None if self.image else dims[2 if self.channels_first else 1]
        self.frames = frames or native_frames or defaults[0]
        self.size = size or dims[-1] or defaults[1]
        self._compiled = _compile_file(model, self._input_shape(), file)

    def forward(self, clips: Float[Tensor, "B T 3 S S"]) -> Float[Tensor, "B D"]:
        """The features of normalised clips, one after the other."""
        return torch.cat([self._feature(clip) for clip in clips.split(1)])

    def _feature(self, clip: Float[Tensor, "1 T 3 S S"]) -> Float[Tensor, "1 D"]:
        if self.image:
            frames = clip[0].split(1)  # T of (1, 3, S, S)
            return torch.cat([self._infer(frame) for frame in frames]).mean(dim=0, keepdim=True)
        return self._infer(clip.transpose(1, 2) if self.channels_first else clip)

    def _infer(self, pixels: Tensor) -> Tensor:
        result = self._compiled([pixels.contiguous().numpy()])
        return torch.from_numpy(result[0].copy())

    def _input_shape(self) -> list[int]:
        side = [self.size, self.size]
        if self.image:
            return [1, 3, *side]
        return [1, 3, self.frames, *side] if self.channels_first else [1, self.frames, 3, *side]


def _read_model(file: Path) -> Any:
    openvino = import_openvino()
    if openvino is None:
        raise BackboneError(f"{file} is run by openvino, but {NOT_INSTALLED}")
    if file.suffix == ".xml" and not file.with_suffix(".bin").is_file():
        raise BackboneError(f"the weights of {file}, {file.stem}.bin beside it, not found")
    try:
        return openvino.Core().read_model(file)
    except Exception as error:  # OpenVINO raises many kinds
        raise BackboneError(f"openvino cannot read {file}: {_last_line(error)}") from None


def _input_dims(model: Any, file: Path) -> list[int | None]:
    """The shape of the input, None where any number is taken."""
    if len(model.inputs) != 1:
        raise BackboneError(f"{file} takes {len(model.inputs)} inputs; a backbone takes one, clips")
    [model_input] = model.inputs
    dtype = model_input.element_type.get_type_name()
    shape = model_input.partial_shape
    rank = shape.rank
    length = rank.get_length() if rank.is_static else 0
    if length not in (4, 5) or dtype != "f32":
        raise BackboneError(
            f"{file} takes {dtype} {shape}; a backbone takes float32 clips "
            "(1, T, 3, S, S) or (1, 3, T, S, S), or images (1, 3, S, S)"
        )
    return [dim.get_length() if dim.is_static else None for dim in shape]


def _compile_file(model: Any, shape: list[int], file: Path) -> Any:
    openvino = import_openvino()
    assert openvino is not None
    native = model.inputs[0].partial_shape
    try:
        model.reshape(shape)
        return openvino.Core().compile_model(model, "CPU", cpu_options("LATENCY"))
    except Exception as error:  # OpenVINO raises many kinds
        raise BackboneError(
            f"{file} takes {native} and cannot run on {tuple(shape)}: {_last_line(error)}"
        ) from None


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
