"""The shared parts of the transformers, and the same features from every engine."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from clipset.backbones.registry import BackboneSpec, Weights
from clipset.backbones.runtime import open_engine
from clipset.backbones.slow_r50 import SlowConfig, load_slow_r50
from clipset.backbones.svt import SVTConfig, load_svt
from clipset.backbones.transformer import resize_trilinear, sinusoid_table
from clipset.backbones.videomae import VideoMAEConfig, load_videomae
from clipset.backbones.vjepa2 import VJEPA2Config, load_vjepa2

GOLDEN = Path(__file__).parents[1] / "golden"
TINY: dict[str, Any] = {"width": 48, "depth": 2, "heads": 3, "hidden": 192}


@pytest.mark.parametrize("grid", [(8, 4, 4), (16, 5, 5), (8, 5, 7), (3, 4, 4), (16, 4, 4)])
def test_resizing_space_then_time_is_one_trilinear_interpolation(
    grid: tuple[int, int, int],
) -> None:
    table = torch.randn(8, 4, 4, 6, generator=torch.Generator().manual_seed(0))
    at_once = F.interpolate(table.movedim(-1, 0)[None], size=grid, mode="trilinear")
    expected = at_once[0].movedim(0, -1)
    torch.testing.assert_close(resize_trilinear(table, grid), expected, atol=1e-6, rtol=0)


def test_the_sinusoid_table_counts_places_in_pairs_of_channels() -> None:
    table = sinusoid_table(5, 4).double()
    assert table[3, 0] == pytest.approx(float(torch.tensor(3.0).sin()), abs=1e-6)
    assert table[3, 1] == pytest.approx(float(torch.tensor(3.0).cos()), abs=1e-6)
    assert table[3, 2] == pytest.approx(float(torch.tensor(0.03).sin()), abs=1e-6)


def tiny_network(family: str) -> nn.Module:
    if family == "svt":
        return load_svt(GOLDEN / "svt" / "checkpoint.pth", SVTConfig(**TINY, size=64))
    if family == "slow_r50":
        return load_slow_r50(GOLDEN / "rbyol_slow_r50" / "checkpoint.pyth", SlowConfig(width=4))
    if family == "videomae":
        path = GOLDEN / "videomae_pretrain" / "checkpoint.pth"
        return load_videomae(path, VideoMAEConfig(**TINY, size=64))
    return load_vjepa2(GOLDEN / "vjepa2" / "checkpoint.pth", VJEPA2Config(**TINY))


@pytest.mark.skipif(find_spec("openvino") is None, reason="OpenVINO is not installed")
@pytest.mark.parametrize(
    ("family", "frames", "size"),
    [
        ("svt", 16, 80),
        ("slow_r50", 2, 32),
        ("videomae", 16, 80),
        ("vjepa2", 4, 32),
    ],
)
def test_openvino_gives_the_features_of_torch_at_sizes_that_are_not_native(
    family: str, frames: int, size: int
) -> None:
    network = tiny_network(family).eval().requires_grad_(False)
    spec = BackboneSpec(
        name=family,
        dim=128 if family == "slow_r50" else 48,
        frames=frames,
        stride=4,
        size=size,
        mean=(114.75, 114.75, 114.75),
        std=(57.375, 57.375, 57.375),
        pooling="",
        weights=Weights(file="", licence="", source=""),
        paper="",
    )
    noise = torch.Generator().manual_seed(0)
    clips = torch.randint(0, 256, (2, frames, 3, size, size), dtype=torch.uint8, generator=noise)
    openvino = open_engine(spec, network, device="cpu", engine="openvino").features(clips)
    plain = open_engine(spec, network, device="cpu", engine="torch").features(clips)
    torch.testing.assert_close(openvino, plain, atol=2e-5, rtol=1e-5)
