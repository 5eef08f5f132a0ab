"""What a backbone is, which ones there are, and how to load one by name.

Adding a backbone is one new file beside this one and one line in FAMILIES.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from clipset.config import near_names, read_json
from clipset.errors import BackboneError

if TYPE_CHECKING:
    from torch import nn

FAMILIES = (  # modules of this package; each has a tuple ENTRIES
    "efficientnet",
    "i3d",
    "svt",
    "slow_r50",
    "videomae",
    "vjepa2",
)
DEFAULT = "efficientnet_lite0"
LARGEST = {"dim": 2**20, "stride": 2**20, "size": 2**14, "frames": 2**14}


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Which weights a backbone carries; the hash is known once they are here."""

    file: str
    licence: str
    source: str
    sha256: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BackboneSpec:
    """All that a feature depends on besides the pixels.

    The network maps normalised RGB clips (B, T, 3, S, S) to features (B, D). Clips arrive as uint8;
    `mean` and `std` are on the scale 0..255 and are applied once, by the engine. `stride` counts
    frames at 30 a second: a clip lasts `frames * stride / 30` seconds at any rate of the video.

    With `layers`, a feature is the pooled output of each of these blocks (the first is 0) instead
    of the usual one; with `time_bins`, it is pooled in each part of the clip's time. All of them
    stand side by side, layers outside, bins inside, and `dim` is the width of the whole.
    """

    name: str
    dim: int
    frames: int
    stride: int
    size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    pooling: str
    weights: Weights
    paper: str
    layers: tuple[int, ...] = ()
    time_bins: int = 1

    def __post_init__(self) -> None:
        for name in ("dim", "frames", "stride", "size", "time_bins"):
            value, largest = getattr(self, name), LARGEST.get(name, LARGEST["frames"])
            if not 1 <= value <= largest:
                raise BackboneError(f"{self.name}: {name} must be 1 to {largest}, got {value}")
        if self.dim % self.parts:
            raise BackboneError(f"{self.name}: {self.dim} numbers are not {self.parts} equal parts")

    @property
    def span(self) -> float:
        """How many seconds a clip lasts."""
        return self.frames * self.stride / 30.0

    @property
    def parts(self) -> int:
        """How many pooled features a feature holds: one for each layer and time bin."""
        return max(len(self.layers), 1) * self.time_bins

    def part(self, *, layer: int | None = None, bin: int | None = None) -> slice:
        """Where the numbers of a layer, of a time bin or of both stand in a feature."""
        if layer is None and len(self.layers) > 1:
            raise BackboneError(f"say which layer: {self.name} has {_listed(self.layers)}")
        if layer is not None and layer not in self.layers:
            raise BackboneError(
                f"{self.name} has no layer {layer} here, it has {_listed(self.layers)}"
            )
        if bin is not None and not 0 <= bin < self.time_bins:
            raise BackboneError(
                f"{self.name} has the time bins 0 to {self.time_bins - 1}, no {bin}"
            )
        width = self.dim // self.parts
        first = 0 if layer is None else self.layers.index(layer) * self.time_bins
        count = self.time_bins if bin is None else 1
        return slice((first + (bin or 0)) * width, (first + (bin or 0) + count) * width)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackboneEntry:
    """A line of the registry: the spec, where its weights are, how the network is made."""

    spec: BackboneSpec
    find_weights: Callable[[], Path | None]
    make: Callable[[BackboneSpec, Path], nn.Module]


@dataclass(frozen=True, slots=True)
class InWeightsFolder:
    """Finds a file that was downloaded by hand, or the same name with .safetensors."""

    file: str

    def __call__(self) -> Path | None:
        path = weights_folder() / self.file
        return next((p for p in (path, path.with_suffix(".safetensors")) if p.is_file()), None)


@dataclass(frozen=True, slots=True)
class InPackage:
    """Finds a file inside an installed package, without importing it."""

    package: str
    file: str

    def __call__(self) -> Path | None:
        spec = find_spec(self.package)
        folders = (spec and spec.submodule_search_locations) or ()
        paths = [Path(folder) / self.file for folder in folders]
        return next((path for path in paths if path.is_file()), None)


def weights_folder() -> Path:
    """Where checkpoints that were downloaded by hand are looked for."""
    return Path(os.environ.get("CLIPSET_WEIGHTS") or "~/.cache/clipset/weights").expanduser()


def list_backbones() -> tuple[BackboneEntry, ...]:
    """Every backbone that clipset knows, in the order of FAMILIES."""
    modules = [import_module(f"clipset.backbones.{family}") for family in FAMILIES]
    return tuple(entry for module in modules for entry in module.ENTRIES)


def find_backbone(name: str) -> BackboneEntry:
    """The registry's line for a name; `hf:<folder or name>` is any model of Hugging Face.

    A backbone of your own (a file, or an entry point of a package) is made to find out what it is.
    """
    if name.startswith("hf:"):
        entry: BackboneEntry = import_module("clipset.backbones.huggingface").entry(name)
        return entry
    entries = {entry.spec.name: entry for entry in list_backbones()}
    if name not in entries:
        found: BackboneEntry | None = import_module("clipset.backbones.custom").entry(name)
        if found is None:
            raise BackboneError(f"unknown backbone {name!r}; {near_names(name, entries)}")
        return found
    return entries[name]


def load_backbone(
    name: str,
    *,
    frames: int | None = None,
    stride: int | None = None,
    size: int | None = None,
    weights: Path | None = None,
    layers: Sequence[int] = (),
    time_bins: int = 1,
) -> tuple[BackboneSpec, nn.Module]:
    """The network with its weights, frozen, and the spec that says what it is and how it is fed.

    `layers` and `time_bins` ask for the features of several depths and parts of a clip's time.
    """
    found = _load_whole(name, frames=frames, stride=stride, size=size, weights=weights)
    return _with_parts(*found, layers, time_bins)


def load_as(recorded: BackboneSpec, name: str) -> tuple[BackboneSpec, nn.Module]:
    """The network that a spec was recorded of, under `name`, and the spec that it has by now.

    Its hash is the recorded one: files with another are refused before they are run or read.
    """
    found = _load_whole(
        name,
        frames=recorded.frames,
        stride=recorded.stride,
        size=recorded.size,
        recorded=recorded,
    )
    check_recorded(name, found[0].weights.sha256, recorded)
    return _with_parts(*found, recorded.layers, recorded.time_bins)


def check_recorded(name: str, digest: str | None, recorded: BackboneSpec) -> None:
    """Refuse a network whose files are not those that a spec was recorded of."""
    expected = recorded.weights.sha256
    if digest != expected:
        here, there = (f"{each[:12]}…" if each else "unknown" for each in (digest, expected))
        raise BackboneError(
            f"{name} is not the backbone {recorded.name} that made the features: "
            f"its sha256 is {here}, the recorded one is {there}"
        )


def _with_parts(
    spec: BackboneSpec, network: nn.Module, layers: Sequence[int], time_bins: int
) -> tuple[BackboneSpec, nn.Module]:
    if not layers and time_bins == 1:
        return spec, network
    found: tuple[BackboneSpec, nn.Module] = import_module("clipset.backbones.layers").with_parts(
        spec, network, tuple(layers), time_bins
    )
    return found


def _load_whole(
    name: str,
    *,
    frames: int | None,
    stride: int | None,
    size: int | None,
    weights: Path | None = None,
    recorded: BackboneSpec | None = None,
) -> tuple[BackboneSpec, nn.Module]:
    own = import_module("clipset.backbones.custom")
    if name not in {entry.spec.name for entry in list_backbones()} and own.is_own(name):
        found: tuple[BackboneSpec, nn.Module] = own.load_own(
            name, frames=frames, stride=stride, size=size, weights=weights, recorded=recorded
        )
        return found
    entry = find_backbone(name)
    path = weights or entry.find_weights()
    if path is None or not path.is_file():
        raise BackboneError(
            f"the weights of {entry.spec.name} are not here ({path or entry.spec.weights.file}); "
            f"{where_to_get(entry)}"
        )
    digest = file_digest(path)
    if recorded is not None:
        check_recorded(name, digest, recorded)
    expected = entry.spec.weights.sha256
    if weights is None and expected is not None and digest != expected:
        raise BackboneError(
            f"{path} is not the file that {name} was proved with (sha256 {digest[:12]}…, "
            f"expected {expected[:12]}…); install it again"
        )
    spec = replace(
        entry.spec,
        frames=frames or entry.spec.frames,
        stride=stride or entry.spec.stride,
        size=size or entry.spec.size,
        weights=replace(entry.spec.weights, sha256=digest),
    )
    network = entry.make(spec, path).eval().requires_grad_(False)
    return spec, network


def _listed(layers: Sequence[int]) -> str:
    return f"the layers {', '.join(map(str, layers))}" if layers else "its usual output only"


def where_to_get(entry: BackboneEntry) -> str:
    """What to do when the weights are not here."""
    place = ""
    if isinstance(entry.find_weights, InWeightsFolder):
        place = f" and put them into {weights_folder()} (CLIPSET_WEIGHTS names another folder)"
    return f"get them from {entry.spec.weights.source}{place}"


def file_digest(path: Path) -> str:
    """The sha256 of a file; of an index of parts, of the index and all parts."""
    names = {path.name}
    if path.name.endswith(".index.json"):
        index = read_json(path)
        if not isinstance(index, dict) or not isinstance(index.get("weight_map"), dict):
            raise BackboneError(f"{path} has no table weight_map; download it again")
        names |= {str(name) for name in index["weight_map"].values()}
    missing = sorted(name for name in names if not (path.parent / name).is_file())
    if missing:
        raise BackboneError(f"{path} lists {missing[0]}, which is not beside it; download it too")
    return digest_of([path.parent / name for name in sorted(names)])


def digest_of(paths: Sequence[Path]) -> str:
    """The sha256 of a file; of several, that of their sha256s."""
    digests = []
    for path in paths:
        with path.open("rb") as file:
            digests.append(hashlib.file_digest(file, "sha256").hexdigest())
    whole = hashlib.sha256("".join(digests).encode()).hexdigest()
    return digests[0] if len(digests) == 1 else whole
