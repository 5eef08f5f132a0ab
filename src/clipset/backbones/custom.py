"""Custom backbones: a Python file, a TorchScript, ONNX or OpenVINO file, or an entry point.

A Python file and an entry point name a function without arguments that returns an `nn.Module`, or a
`BackboneSpec` and an `nn.Module`. The module maps normalised clips (B, T, 3, S, S) to features
(B, D). All of these are code that runs: use only what you trust.
"""

from __future__ import annotations

import inspect
import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clipset.backbones.checkpoints import check_file, check_finite
from clipset.backbones.registry import (
    IMAGENET,
    BackboneEntry,
    BackboneSpec,
    Weights,
    check_recorded,
    list_backbones,
)
from clipset.backbones.runtime import OpenVinoFile
from clipset.checksums import sha256_of_files
from clipset.errors import BackboneError, error_line

GROUP = "clipset.backbones"  # of entry points
SCRIPTS, GRAPHS = (".pt", ".pth", ".ts"), (".onnx", ".xml")
FRAMES, STRIDE, SIZE = 16, 4, 224  # of a network that comes without a spec

LoadedBackbone = tuple[BackboneSpec, nn.Module]


class ScriptedNetwork(nn.Module):
    """A TorchScript network, which cannot be frozen as other modules can."""

    def __init__(self, script: nn.Module) -> None:
        super().__init__()
        self.script = script

    def forward(self, clips: Tensor) -> Tensor:
        features: Tensor = self.script(clips)
        return features


def is_file_name(name: str) -> bool:
    """Whether a name is that of a file rather than of a registered backbone."""
    return split_file_name(name)[0].suffix in (".py", *SCRIPTS, *GRAPHS)


def split_file_name(name: str) -> tuple[Path, str]:
    """The file and the function of `file.py:make`; just the file of any other name."""
    match = re.fullmatch(r"(.*\.py):(\w*)", name)
    file, function = (match[1], match[2]) if match else (name, "")
    return Path(file).expanduser(), function


def absolute_name(name: str) -> str:
    """The same backbone by a name that means it in any folder."""
    if name.startswith("hf:"):
        folder = Path(name.removeprefix("hf:")).expanduser()
        return f"hf:{folder.absolute()}" if folder.is_dir() else name
    if not is_file_name(name):
        return name
    file, function = split_file_name(name)
    return f"{file.absolute()}:{function}" if function else str(file.absolute())


def list_entry_points() -> dict[str, EntryPoint]:
    """The backbones of installed packages, by name; none is imported for that."""
    return {point.name: point for point in entry_points(group=GROUP)}


def is_installed(name: str) -> bool:
    """Whether a name alone means a network: a registered one, an entry point or a local folder.

    Nothing is run, imported or downloaded to find out. A file is not enough: it is code.
    """
    if name.startswith("hf:"):
        return Path(name.removeprefix("hf:")).expanduser().is_dir()
    if is_file_name(name):
        return False
    return name in {entry.spec.name for entry in list_backbones()} or name in list_entry_points()


def load_entry_point(name: str) -> Any:
    """The object of an entry point: a function, or an entry of the registry. None if unknown."""
    point = list_entry_points().get(name)
    try:
        return point and point.load()
    except Exception as error:  # whatever the package does
        raise BackboneError(
            f"the backbone {name!r} of {point and point.value} cannot be imported: "
            f"{error_line(error)}"
        ) from error


def is_custom(name: str) -> bool:
    """Whether a name is that of a file, or of a function of an installed package."""
    if name.startswith("hf:"):
        return False
    if is_file_name(name):
        return True
    made = load_entry_point(name)
    return made is not None and not isinstance(made, BackboneEntry)


def custom_entry(name: str) -> BackboneEntry | None:
    """The registry entry of a custom backbone, or None if there is no such."""
    if not is_custom(name):
        entry = load_entry_point(name)
        return entry if isinstance(entry, BackboneEntry) else None
    spec, network = load_custom(name)
    path, _ = split_file_name(name)
    return BackboneEntry(
        spec=spec,
        locate=lambda: path if path.is_file() else None,
        load=lambda _spec, _path: network,
    )


def load_custom(
    name: str,
    *,
    frames: int | None = None,
    stride: int | None = None,
    size: int | None = None,
    weights: Path | None = None,
    recorded: BackboneSpec | None = None,
) -> LoadedBackbone:
    """The spec and the network, frozen, of a name that `is_custom`.

    With a `recorded` spec, a file with another hash is refused before anything of it runs.
    """
    if weights is not None:
        raise BackboneError(f"{name} has its own weights, it takes none from {weights}")
    describe = partial(_describe_network, frames=frames, stride=stride, size=size)
    if not is_file_name(name):
        function = load_entry_point(name)
        source = inspect.getsourcefile(function) if callable(function) else None
        return describe(_call_function(function, name), name, [Path(source)] if source else [])
    file, function_name = split_file_name(name)
    if not file.is_file():
        raise BackboneError(f"file {file} of the backbone {name!r} not found")
    if recorded is not None:
        check_recorded(name, sha256_of_files(custom_files(name, recorded)), recorded)
    if file.suffix in GRAPHS:
        network = OpenVinoFile(file, frames=frames, size=size, defaults=(FRAMES, SIZE))
        describe = partial(describe, frames=network.frames, size=network.size)
        return describe(network, file.name, _code_files(file))
    if file.suffix in SCRIPTS:
        return describe(read_script(file), file.name, [file])
    if not function_name:
        raise BackboneError(f"{file} needs the name of a function, as in {file}:make")
    folder = str(file.parent.absolute())
    is_added = folder not in sys.path
    if is_added:  # last: an installed module is found before one beside the file
        sys.path.append(folder)
    try:
        made = _call_function(read_function(file, function_name), name)
    finally:
        if is_added:
            sys.path.remove(folder)
    return describe(made, f"{file.name}:{function_name}", [file])


def read_function(file: Path, name: str) -> Callable[[], object]:
    """A function of a Python file, which is run for that."""
    module_name = f"clipset_custom_{sha256_of_files([file])[:12]}"
    module_spec = spec_from_file_location(module_name, file)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = module_from_spec(module_spec)
    sys.modules[module_name] = module
    try:
        module_spec.loader.exec_module(module)
    except Exception as error:  # whatever the file does
        raise BackboneError(f"{file} cannot be run: {error_line(error)}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise BackboneError(f"{file} has no function {name!r}")
    return function  # type: ignore[no-any-return]


def read_script(file: Path) -> ScriptedNetwork:
    """The network of a TorchScript file."""
    check_file(file)
    try:
        with warnings.catch_warnings(action="ignore"):
            return ScriptedNetwork(torch.jit.load(file, map_location="cpu"))
    except Exception as error:  # torch raises anything on odd bytes
        raise BackboneError(
            f"{file} is not a TorchScript network ({error_line(error)[:80]}); weights alone do not "
            "say which network they belong to: load them in a Python file, --backbone file.py:make"
        ) from None


def _call_function(function: Callable[[], object], name: str) -> object:
    try:
        return function()
    except BackboneError:
        raise
    except Exception as error:  # whatever the function does
        raise BackboneError(f"{name} failed: {error_line(error)}") from error


def _describe_network(
    made: object,
    name: str,
    files: list[Path],
    *,
    frames: int | None,
    stride: int | None,
    size: int | None,
) -> LoadedBackbone:
    """Spec and network of what a function returned, checked and frozen."""
    given, network = made if isinstance(made, tuple) and len(made) == 2 else (None, made)
    if not isinstance(network, nn.Module) or not isinstance(given, BackboneSpec | None):
        raise BackboneError(
            f"{name} must return an nn.Module, or a BackboneSpec and an nn.Module, "
            f"got {type(made).__name__}"
        )
    network.eval().requires_grad_(False)
    check_finite(network.state_dict(), Path(name))
    spec = given or BackboneSpec(
        name=name, dim=1, frames=FRAMES, stride=STRIDE, size=SIZE,
        mean=IMAGENET.mean, std=IMAGENET.std, pooling="by the network", paper="not stated",
        weights=Weights(file=name, licence="not stated", source="a custom backbone"),
    )  # fmt: skip
    spec = replace(
        spec,
        frames=frames or spec.frames,
        stride=stride or spec.stride,
        size=size or spec.size,
    )
    dim = _measure_dim(network, name, spec)
    if given is not None and dim != given.dim:
        raise BackboneError(f"{name} gives features of {dim} numbers, its spec says {given.dim}")
    digest = sha256_of_files(files + _weight_files(spec, files)) if files else None
    return replace(spec, dim=dim, weights=replace(spec.weights, sha256=digest)), network


def _measure_dim(network: nn.Module, name: str, spec: BackboneSpec) -> int:
    """The width of the features, from the feature of a black clip."""
    shape = (1, spec.frames, 3, spec.size, spec.size)
    try:
        with torch.no_grad():
            feature = network(torch.zeros(shape))
    except BackboneError:
        raise
    except Exception as error:  # whatever the network does
        raise BackboneError(
            f"{name} cannot run on a clip of {shape} (clips, frames, RGB, height, width): "
            f"{error_line(error)}; set another with --frames and --size"
        ) from error
    if not isinstance(feature, Tensor):
        raise BackboneError(f"{name} must return a tensor, got {type(feature).__name__}")
    if feature.ndim != 2 or len(feature) != 1 or not feature.is_floating_point():
        raise BackboneError(
            f"{name} must return floating point features (1, D) for one clip, "
            f"got {feature.dtype} {tuple(feature.shape)}"
        )
    return int(feature.shape[1])


def custom_files(name: str, spec: BackboneSpec) -> list[Path]:
    """The file of a custom backbone and the files of its weights."""
    files = _code_files(split_file_name(name)[0])
    return files + _weight_files(spec, files)


def _code_files(file: Path) -> list[Path]:
    """The file, and the one with the weights of an OpenVINO network."""
    weights = file.with_suffix(".bin")
    return [file, *([weights] if file.suffix == ".xml" and weights.is_file() else [])]


def _weight_files(spec: BackboneSpec, files: list[Path]) -> list[Path]:
    """The file of weights that a spec names, if it is beside the Python file."""
    paths = (file.parent / spec.weights.file for file in files)
    return [path for path in paths if path.is_file() and path not in files][:1]
