"""Custom backbones: a backbone, Python, TorchScript, ONNX or OpenVINO file, or an entry point.

A Python file and an entry point name a function without arguments that returns an `nn.Module`, or a
`BackboneSpec` and an `nn.Module`. The module maps normalised clips (B, T, 3, S, S) to features
(B, D). All of these are code that runs: use only what you trust. A backbone file (safetensors, as
`clipset pretrain-backbone` writes it) is data.
"""

from __future__ import annotations

import inspect
import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
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
    ClipShape,
    Weights,
    check_recorded,
    registered_backbones,
)
from clipset.backbones.runtime import OpenVinoFile
from clipset.backbones.trained import SUFFIX, load_trained
from clipset.checksums import sha256_of_files
from clipset.errors import BackboneError, error_line

GROUP = "clipset.backbones"  # of entry points
SCRIPTS, GRAPHS = (".pt", ".pth", ".ts"), (".onnx", ".xml")
FRAMES, STRIDE, SIZE = 16, 4, 224  # of a network that comes without a spec

LoadedBackbone = tuple[BackboneSpec, nn.Module]


def is_file_name(backbone_name: str) -> bool:
    """Whether a name is that of a file rather than of a registered backbone."""
    return split_file_name(backbone_name)[0].suffix in (".py", SUFFIX, *SCRIPTS, *GRAPHS)


def split_file_name(backbone_name: str) -> tuple[Path, str]:
    """The file and the function of `file.py:make`; just the file of any other name."""
    match = re.fullmatch(r"(.*\.py):(\w*)", backbone_name)
    code_file, function_name = (match[1], match[2]) if match else (backbone_name, "")
    return Path(code_file).expanduser(), function_name


def absolute_name(backbone_name: str) -> str:
    """The same backbone by a name that means it in any folder."""
    if backbone_name.startswith("hf:"):
        model_folder = Path(backbone_name.removeprefix("hf:")).expanduser()
        return f"hf:{model_folder.absolute()}" if model_folder.is_dir() else backbone_name
    if not is_file_name(backbone_name):
        return backbone_name
    code_file, function_name = split_file_name(backbone_name)
    return f"{code_file.absolute()}:{function_name}" if function_name else str(code_file.absolute())


def list_entry_points() -> dict[str, EntryPoint]:
    """The backbones of installed packages, by name; none is imported for that."""
    return {point.name: point for point in entry_points(group=GROUP)}


def is_installed(backbone_name: str) -> bool:
    """Whether a name alone means a network: registered, an entry point, or local weights.

    Nothing is run, imported or downloaded to find out. A file of code is not enough.
    """
    if backbone_name.startswith("hf:"):
        return Path(backbone_name.removeprefix("hf:")).expanduser().is_dir()
    if is_file_name(backbone_name):
        file, _ = split_file_name(backbone_name)
        return file.suffix == SUFFIX and file.is_file()
    return backbone_name in registered_backbones() or backbone_name in list_entry_points()


def load_entry_point(backbone_name: str) -> Any:
    """The object of an entry point: a function, or an entry of the registry. None if unknown."""
    point = list_entry_points().get(backbone_name)
    try:
        return point and point.load()
    except Exception as error:  # whatever the package does
        raise BackboneError(
            f"the backbone {backbone_name!r} of {point and point.value} cannot be imported: "
            f"{error_line(error)}"
        ) from error


def is_custom(backbone_name: str) -> bool:
    """Whether a name is that of a file, or of a function of an installed package."""
    if backbone_name.startswith("hf:") or backbone_name in registered_backbones():
        return False
    if is_file_name(backbone_name):
        return True
    made = load_entry_point(backbone_name)
    return made is not None and not isinstance(made, BackboneEntry)


def custom_entry(backbone_name: str) -> BackboneEntry | None:
    """The registry entry of a custom backbone, or None if there is no such."""
    if not is_custom(backbone_name):
        entry: BackboneEntry | None = load_entry_point(backbone_name)
        return entry
    spec, network = load_custom(backbone_name, ClipShape())
    code_file, _ = split_file_name(backbone_name)
    return BackboneEntry(
        spec=spec,
        locate=lambda: code_file if code_file.is_file() else None,
        load=lambda _spec, _path: network,
    )


def load_custom(
    backbone_name: str, shape: ClipShape, recorded: BackboneSpec | None = None
) -> LoadedBackbone:
    """The spec and the network, frozen, of a name that `is_custom`.

    With a `recorded` spec, a file with another hash is refused before anything of it runs.
    """
    if not is_file_name(backbone_name):
        make_network = load_entry_point(backbone_name)
        source_file = inspect.getsourcefile(make_network) if callable(make_network) else None
        code_files = [Path(source_file)] if source_file else []
        made = _call_function(make_network, backbone_name)
        return _describe_network(made, backbone_name, code_files, shape)
    code_file, function_name = split_file_name(backbone_name)
    if not code_file.is_file():
        raise BackboneError(f"file {code_file} of the backbone {backbone_name!r} not found")
    if recorded is not None:
        digest = sha256_of_files(custom_files(backbone_name, recorded))
        check_recorded(backbone_name, digest, recorded)
    if code_file.suffix in GRAPHS:
        network = OpenVinoFile(code_file, shape, defaults=(FRAMES, SIZE))
        shape = ClipShape(network.frames, shape.stride, network.size)
        return _describe_network(network, code_file.name, _code_files(code_file), shape)
    if code_file.suffix == SUFFIX:
        loaded = load_trained(code_file, frames=shape.frames, size=shape.size)
        return _describe_network(loaded, code_file.name, [code_file], shape)
    if code_file.suffix in SCRIPTS:
        return _describe_network(read_script(code_file), code_file.name, [code_file], shape)
    if not function_name:
        raise BackboneError(f"{code_file} needs the name of a function, as in {code_file}:make")
    code_folder = str(code_file.parent.absolute())
    is_added = code_folder not in sys.path
    if is_added:  # last: an installed module is found before one beside the file
        sys.path.append(code_folder)
    try:
        made = _call_function(read_function(code_file, function_name), backbone_name)
    finally:
        if is_added:
            sys.path.remove(code_folder)
    return _describe_network(made, f"{code_file.name}:{function_name}", [code_file], shape)


def read_function(code_file: Path, function_name: str) -> Callable[[], object]:
    """A function of a Python file, which is run for that."""
    module_name = f"clipset_custom_{sha256_of_files([code_file])[:12]}"
    module_spec = spec_from_file_location(module_name, code_file)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = module_from_spec(module_spec)
    sys.modules[module_name] = module
    try:
        module_spec.loader.exec_module(module)
    except Exception as error:  # whatever the file does
        raise BackboneError(f"{code_file} cannot be run: {error_line(error)}") from error
    make_network = getattr(module, function_name, None)
    if not callable(make_network):
        raise BackboneError(f"{code_file} has no function {function_name!r}")
    return make_network  # type: ignore[no-any-return]


def read_script(code_file: Path) -> nn.Module:
    """The network of a TorchScript file."""
    check_file(code_file)
    try:
        with warnings.catch_warnings(action="ignore"):
            script = torch.jit.load(code_file, map_location="cpu")
            return nn.Sequential(script)  # a script itself cannot be frozen by requires_grad_
    except Exception as error:  # torch raises anything on odd bytes
        raise BackboneError(
            f"{code_file} is not a TorchScript network ({error_line(error)[:80]}); weights alone "
            "do not say which network they belong to: load them in a file, --backbone file.py:make"
        ) from None


def _call_function(make_network: Callable[[], object], backbone_name: str) -> object:
    try:
        return make_network()
    except BackboneError:
        raise
    except Exception as error:  # whatever the function does
        raise BackboneError(f"{backbone_name} failed: {error_line(error)}") from error


def _describe_network(
    made: object, backbone_name: str, files: list[Path], shape: ClipShape
) -> LoadedBackbone:
    """Spec and network of what a function returned, checked and frozen."""
    own_spec, network = made if isinstance(made, tuple) and len(made) == 2 else (None, made)
    if not isinstance(network, nn.Module) or not isinstance(own_spec, BackboneSpec | None):
        raise BackboneError(
            f"{backbone_name} must return an nn.Module, or a BackboneSpec and an nn.Module, "
            f"got {type(made).__name__}"
        )
    network.eval().requires_grad_(False)
    check_finite(network.state_dict(), Path(backbone_name))
    spec = own_spec or BackboneSpec(
        name=backbone_name, dim=1, frames=FRAMES, stride=STRIDE, size=SIZE,
        mean=IMAGENET.mean, std=IMAGENET.std, pooling="by the network", paper="not stated",
        weights=Weights(file=backbone_name, licence="not stated", source="a custom backbone"),
    )  # fmt: skip
    spec = spec.reshaped(shape)
    dim = _measure_dim(network, backbone_name, spec)
    if own_spec is not None and dim != own_spec.dim:
        raise BackboneError(
            f"{backbone_name} gives features of {dim} numbers, its spec says {own_spec.dim}"
        )
    files_digest = sha256_of_files(files + _weight_files(spec, files)) if files else None
    return replace(spec, dim=dim, weights=replace(spec.weights, sha256=files_digest)), network


def _measure_dim(network: nn.Module, backbone_name: str, spec: BackboneSpec) -> int:
    """The width of the features, from the feature of a black clip."""
    shape = (1, spec.frames, 3, spec.size, spec.size)
    try:
        with torch.no_grad():
            feature = network(torch.zeros(shape))
    except BackboneError:
        raise
    except Exception as error:  # whatever the network does
        raise BackboneError(
            f"{backbone_name} cannot run on a clip of {shape} (clips, frames, RGB, height, width): "
            f"{error_line(error)}; set another with --frames and --size"
        ) from error
    if not isinstance(feature, Tensor):
        raise BackboneError(f"{backbone_name} must return a tensor, got {type(feature).__name__}")
    if feature.ndim != 2 or len(feature) != 1 or not feature.is_floating_point():
        raise BackboneError(
            f"{backbone_name} must return floating point features (1, D) for one clip, "
            f"got {feature.dtype} {tuple(feature.shape)}"
        )
    return int(feature.shape[1])


def custom_files(backbone_name: str, spec: BackboneSpec) -> list[Path]:
    """The file of a custom backbone and the files of its weights."""
    code_files = _code_files(split_file_name(backbone_name)[0])
    return code_files + _weight_files(spec, code_files)


def _code_files(code_file: Path) -> list[Path]:
    """The file, and the one with the weights of an OpenVINO network."""
    weights = code_file.with_suffix(".bin")
    return [code_file, *([weights] if code_file.suffix == ".xml" and weights.is_file() else [])]


def _weight_files(spec: BackboneSpec, code_files: list[Path]) -> list[Path]:
    """The file of weights that a spec names, if it is beside the Python file."""
    paths = (file.parent / spec.weights.file for file in code_files)
    return [path for path in paths if path.is_file() and path not in code_files][:1]
