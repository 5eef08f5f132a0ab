"""Backbones of your own: a Python file, a TorchScript, ONNX or OpenVINO file, or an entry point.

A Python file and an entry point name a function without arguments that returns an `nn.Module`, or a
`BackboneSpec` and an `nn.Module`. The module maps normalised clips (B, T, 3, S, S) to features
(B, D). All of these are code that runs: use only what you trust.
"""

from __future__ import annotations

import inspect
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clipset.backbones.checkpoints import check_file, check_finite
from clipset.backbones.openvino_file import OpenVinoFile
from clipset.backbones.registry import (
    BackboneEntry,
    BackboneSpec,
    Weights,
    check_recorded,
    digest_of,
    list_backbones,
)
from clipset.errors import BackboneError

GROUP = "clipset.backbones"  # of entry points
SCRIPTS, GRAPHS = (".pt", ".pth", ".ts"), (".onnx", ".xml")
FRAMES, STRIDE, SIZE = 16, 4, 224  # of a network that comes without a spec
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)  # of ImageNet

Loaded = tuple[BackboneSpec, nn.Module]


class Scripted(nn.Module):
    """A TorchScript network, which cannot be frozen as other modules can."""

    def __init__(self, script: nn.Module) -> None:
        super().__init__()
        self.script = script

    def forward(self, clips: Tensor) -> Tensor:
        features: Tensor = self.script(clips)
        return features


def is_own(name: str) -> bool:
    """Whether a name is that of a file, or of a function that an installed package offers."""
    if name.startswith("hf:"):
        return False
    if is_file_name(name):
        return True
    point = find_entry_point(name)
    return point is not None and not isinstance(load_entry_point(point), BackboneEntry)


def is_file_name(name: str) -> bool:
    """Whether a name is that of a file rather than of a registered backbone."""
    return split_name(name)[0].suffix in (".py", *SCRIPTS, *GRAPHS)


def is_installed(name: str) -> bool:
    """Whether a name alone means a network: a registered one, an entry point or a local folder.

    Nothing is run, imported or downloaded to find out. A file is not enough: it is code.
    """
    if name.startswith("hf:"):
        return Path(name.removeprefix("hf:")).expanduser().is_dir()
    if is_file_name(name):
        return False
    return name in {entry.spec.name for entry in list_backbones()} or bool(find_entry_point(name))


def split_name(name: str) -> tuple[Path, str]:
    """The file and the function of `file.py:make`; just the file of any other name."""
    found = re.fullmatch(r"(.*\.py):(\w*)", name)
    file, function = (found[1], found[2]) if found else (name, "")
    return Path(file).expanduser(), function


def absolute_name(name: str) -> str:
    """The same backbone by a name that means it in any folder."""
    if name.startswith("hf:"):
        folder = Path(name.removeprefix("hf:")).expanduser()
        return f"hf:{folder.absolute()}" if folder.is_dir() else name
    if not is_file_name(name):
        return name
    file, function = split_name(name)
    return f"{file.absolute()}:{function}" if function else str(file.absolute())


def list_entry_points() -> tuple[EntryPoint, ...]:
    """The backbones that installed packages offer; none is imported for that."""
    return tuple(entry_points(group=GROUP))


def find_entry_point(name: str) -> EntryPoint | None:
    """The entry point of that name, if a package offers it."""
    return next((point for point in list_entry_points() if point.name == name), None)


def entry(name: str) -> BackboneEntry | None:
    """The registry's line for a backbone of your own, or None if there is no such."""
    if not is_own(name):
        point = find_entry_point(name)
        found = load_entry_point(point) if point else None
        return found if isinstance(found, BackboneEntry) else None
    spec, network = load_own(name)
    path, _ = split_name(name)
    return BackboneEntry(
        spec=spec,
        find_weights=lambda: path if path.is_file() else None,
        make=lambda _spec, _path: network,
    )


def load_own(
    name: str,
    *,
    frames: int | None = None,
    stride: int | None = None,
    size: int | None = None,
    weights: Path | None = None,
    recorded: BackboneSpec | None = None,
) -> Loaded:
    """The network behind a name that `is_own`, frozen, and its spec.

    With a `recorded` spec, a file with another hash is refused before anything of it runs.
    """
    if weights is not None:
        raise BackboneError(f"{name} brings its own weights, it takes none from {weights}")
    finish = partial(_finish, frames=frames, stride=stride, size=size)
    point = None if is_file_name(name) else find_entry_point(name)
    if point is not None:
        function = load_entry_point(point)
        source = inspect.getsourcefile(function) if callable(function) else None
        return finish(_call(function, name), name, [Path(source)] if source else [])
    file, function_name = split_name(name)
    if not file.is_file():
        raise BackboneError(f"there is no file {file} for the backbone {name!r}")
    if recorded is not None:
        files = _code_files(file)
        check_recorded(name, digest_of(files + _weight_files(recorded, files)), recorded)
    if file.suffix in GRAPHS:
        network = OpenVinoFile(file, frames=frames, size=size, usual=(FRAMES, SIZE))
        frames, size = network.frames, network.size
        return _finish(network, file.name, network.files, frames=frames, stride=stride, size=size)
    if file.suffix in SCRIPTS:
        return finish(read_script(file), file.name, [file])
    if not function_name:
        raise BackboneError(f"say which function of {file} makes the network: {file}:make")
    with _beside(file):
        made = _call(read_function(file, function_name), name)
    return finish(made, f"{file.name}:{function_name}", [file])


def read_function(file: Path, name: str) -> Callable[[], object]:
    """A function of a Python file, which is run for that."""
    module_name = f"clipset_own_{digest_of([file])[:12]}"
    found = spec_from_file_location(module_name, file)
    assert found is not None
    assert found.loader is not None
    module = module_from_spec(found)
    sys.modules[module_name] = module
    try:
        found.loader.exec_module(module)
    except Exception as error:  # whatever the file does
        raise BackboneError(f"{file} cannot be run: {_first_line(error)}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise BackboneError(f"{file} defines no function {name!r}")
    return function  # type: ignore[no-any-return]


def read_script(file: Path) -> Scripted:
    """The network of a TorchScript file."""
    check_file(file)
    try:
        with warnings.catch_warnings(action="ignore"):
            return Scripted(torch.jit.load(file, map_location="cpu"))
    except Exception as error:  # torch raises what odd bytes make of it
        raise BackboneError(
            f"{file} holds no TorchScript network ({_first_line(error)[:80]}); weights alone do "
            "not say whose they are: make the network in a file of yours, --backbone file.py:make"
        ) from None


def load_entry_point(point: EntryPoint) -> Any:
    """What a package offers under a name: a function, or a line for the registry."""
    try:
        return point.load()
    except Exception as error:  # whatever the package does
        raise BackboneError(
            f"the backbone {point.name!r} of {point.value} cannot be imported: {_first_line(error)}"
        ) from error


def measure_dim(network: nn.Module, name: str, frames: int, size: int) -> int:
    """How wide the features are: run a black clip and see."""
    try:
        with torch.no_grad():
            feature = network(torch.zeros(1, frames, 3, size, size))
    except BackboneError:
        raise
    except Exception as error:  # whatever the network does
        raise BackboneError(
            f"{name} cannot be fed with a clip of (1, {frames}, 3, {size}, {size}) (clips, frames, "
            f"RGB, height, width): {_first_line(error)}; --frames and --size give it another"
        ) from error
    if not isinstance(feature, Tensor):
        raise BackboneError(f"{name} should give a tensor, gave a {type(feature).__name__}")
    if feature.ndim != 2 or len(feature) != 1 or not feature.is_floating_point():
        raise BackboneError(
            f"{name} should give floating point features (1, D) for one clip, "
            f"gave {feature.dtype} {tuple(feature.shape)}"
        )
    return int(feature.shape[1])


def _call(function: Callable[[], object], name: str) -> object:
    try:
        return function()
    except BackboneError:
        raise
    except Exception as error:  # whatever the function does
        raise BackboneError(f"{name} cannot be made: {_first_line(error)}") from error


def _finish(
    made: object,
    name: str,
    files: list[Path],
    *,
    frames: int | None,
    stride: int | None,
    size: int | None,
) -> Loaded:
    """Spec and network of what a function gave, checked and frozen."""
    match made:
        case nn.Module() as network:
            spec = None
        case (BackboneSpec() as spec, nn.Module() as network):
            pass
        case _:
            raise BackboneError(
                f"{name} should return an nn.Module, or a BackboneSpec and an nn.Module, "
                f"it returned a {type(made).__name__}"
            )
    network.eval().requires_grad_(False)
    check_finite(network.state_dict(), Path(name))
    fed = {
        "frames": frames or (spec.frames if spec else FRAMES),
        "stride": stride or (spec.stride if spec else STRIDE),
        "size": size or (spec.size if spec else SIZE),
    }
    dim = measure_dim(network, name, fed["frames"], fed["size"])
    spec = replace(spec, **fed) if spec else _plain_spec(name, dim, **fed)
    if dim != spec.dim:
        raise BackboneError(f"{name} gives features of {dim} numbers, its spec says {spec.dim}")
    digest = digest_of(files + _weight_files(spec, files)) if files else None
    return replace(spec, weights=replace(spec.weights, sha256=digest)), network


def _plain_spec(name: str, dim: int, *, frames: int, stride: int, size: int) -> BackboneSpec:
    return BackboneSpec(
        name=name,
        dim=dim,
        frames=frames,
        stride=stride,
        size=size,
        mean=MEAN,
        std=STD,
        pooling="as the network does it",
        weights=Weights(file=name, licence="not said", source="a backbone of your own"),
        paper="not said",
    )


def _code_files(file: Path) -> list[Path]:
    """The file, and the one with the weights of an OpenVINO network."""
    weights = file.with_suffix(".bin")
    return [file, *([weights] if file.suffix == ".xml" and weights.is_file() else [])]


def _weight_files(spec: BackboneSpec, files: list[Path]) -> list[Path]:
    """The file of weights that a spec names, where it is one beside the Python file."""
    beside = (file.parent / spec.weights.file for file in files)
    return [path for path in beside if path.is_file() and path not in files][:1]


@contextmanager
def _beside(file: Path) -> Iterator[None]:
    """Let a Python file import what lies beside it, unless an installed module has that name."""
    folder = str(file.parent.absolute())
    if folder in sys.path:
        yield
        return
    sys.path.append(folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or ['no message'])[0]}"
