"""DINOv2 gives the features of the authors' code on each frame, averaged over the frames."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from clipset.backbones.checkpoints import match_keys
from clipset.backbones.dinov2 import LAYOUT, SMALL, DINOv2, DINOv2Config, load_dinov2

GOLDEN = Path(__file__).parents[1] / "golden"
CHECKPOINT = GOLDEN / "dinov2_vits14" / "checkpoint.pth"
TINY = DINOv2Config(width=48, depth=2, heads=3, hidden=192, size=70)


@pytest.fixture(scope="module")
def golden() -> dict[str, Tensor]:
    with np.load(GOLDEN / "dinov2_vits14" / "golden.npz") as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays}


@pytest.fixture(scope="module")
def network() -> DINOv2:
    return load_dinov2(CHECKPOINT, TINY).eval()


def full_size_keys(name: str) -> dict[str, Tensor]:
    text = gzip.decompress((GOLDEN / "keys" / f"{name}.tsv.gz").read_bytes()).decode()
    rows = (line.split("\t") for line in text.splitlines())
    shapes = {key: [int(n) for n in shape.split(",") if n] for key, shape in rows}
    return {key: torch.empty(shape, device="meta") for key, shape in shapes.items()}


def test_a_clip_gives_the_golden_mean_over_its_frames(
    golden: dict[str, Tensor], network: DINOv2
) -> None:
    with torch.inference_mode():
        found = network(golden["input"].transpose(1, 2))
    expected = golden["expected"].reshape(found.shape)
    torch.testing.assert_close(found, expected, atol=5e-6, rtol=0)


@pytest.mark.parametrize("size", ["", "_56px"])
def test_each_frame_gives_the_golden_feature_at_the_native_and_at_another_size(
    golden: dict[str, Tensor], network: DINOv2, size: str
) -> None:
    with torch.inference_mode():
        found = network.frame_features(golden[f"input{size}"][0].transpose(0, 1))
    torch.testing.assert_close(found, golden[f"expected_per_frame{size}"][0], atol=5e-6, rtol=0)


def test_the_full_size_network_has_the_keys_of_the_released_file() -> None:
    with torch.device("meta"):
        full = DINOv2(SMALL)
    named = match_keys(full, full_size_keys("dinov2_vits14"), LAYOUT, Path("dinov2.pth"))
    assert len(named) == 174
    assert full.positions(16, 16).shape == (16, 16, 384)
