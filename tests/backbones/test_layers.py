"""Features of several layers in one pass of a frozen network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.backbones.test_huggingface import JEPA, PATCHED, SHAPE, clips, make, save
from tests.contracts.test_backbones import TINY
from torch import Tensor, nn

from clipset.backbones.registry import BackboneSpec, find_backbone, load_backbone, with_layers
from clipset.backbones.runtime import import_openvino, open_engine
from clipset.config import build, fingerprint, to_mapping
from clipset.errors import BackboneError

LITE0 = find_backbone("efficientnet_lite0").spec


def noise(spec: BackboneSpec, count: int = 2) -> Tensor:
    shape = (count, spec.frames, 3, spec.size, spec.size)
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


def by_hand(network: Any, pixels: Tensor) -> list[Any]:
    """The outputs of all blocks."""
    states: list[Any] = []
    hooks = [b.register_forward_hook(lambda *a: states.append(a[2])) for b in network.blocks]
    with torch.no_grad():
        network(pixels)
    for hook in hooks:
        hook.remove()
    return states


POOLED: dict[str, Callable[[Any], Tensor]] = {
    "svt": lambda state: state[0][:, 0],
    "videomae": lambda state: state.mean(dim=1),
    "vjepa2": lambda state: state.mean(dim=1),
}


@pytest.mark.parametrize("family", POOLED)
def test_layers_are_the_pooled_hidden_states(family: str, tmp_path: Path) -> None:
    spec, network = TINY[family](tmp_path)
    pixels = noise(spec)
    whole, layered = with_layers(spec, network, (0, 1))
    assert (whole.layers, whole.dim) == ((0, 1), 2 * spec.dim)
    features = layered(pixels).split(spec.dim, dim=1)
    for feature, state in zip(features, by_hand(network, pixels), strict=True):
        torch.testing.assert_close(feature, POOLED[family](state), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", POOLED)
def test_a_layer_is_the_same_alone_and_beside_others(family: str, tmp_path: Path) -> None:
    spec, network = TINY[family](tmp_path)
    pixels = noise(spec)
    _, both = with_layers(spec, network, (0, 1))
    _, last = with_layers(spec, network, (1,))
    assert torch.equal(both(pixels)[:, spec.dim :], last(pixels))
    assert with_layers(spec, network, ()) == (spec, network)


HUGGING_FACE: list[tuple[str, str, dict[str, Any], bool]] = [
    ("VideoMAEModel", "VideoMAEConfig",
     PATCHED | {"num_frames": 4, "use_mean_pooling": False}, False),
    ("VideoMAEForVideoClassification", "VideoMAEConfig",
     PATCHED | {"num_frames": 4, "use_mean_pooling": True}, False),
    ("TimesformerModel", "TimesformerConfig", PATCHED | {"num_frames": 4}, True),
    ("VivitModel", "VivitConfig",
     SHAPE | {"num_frames": 4, "tubelet_size": [2, 16, 16]}, True),
    ("VJEPA2Model", "VJEPA2Config", JEPA, False),
    ("Dinov2Model", "Dinov2Config", PATCHED, True),
    ("DINOv3ViTModel", "DINOv3ViTConfig", PATCHED, True),
    ("CLIPVisionModel", "CLIPVisionConfig", PATCHED, True),
    ("SiglipVisionModel", "SiglipVisionConfig", PATCHED, False),
    ("ViTModel", "ViTConfig", PATCHED, True),
]  # fmt: skip


@pytest.mark.parametrize(
    ("model", "config", "settings", "first"), HUGGING_FACE, ids=[line[0] for line in HUGGING_FACE]
)
def test_layers_of_a_hugging_face_model_are_its_hidden_states(
    tmp_path: Path, model: str, config: str, settings: Any, first: bool
) -> None:
    network = make(model, config, **settings)
    spec, backbone = load_backbone(save(tmp_path, network), frames=4, layers=[0, 1])
    pixels = clips(4)
    video = "Video" in model or model[:4] in ("Time", "Vivi", "VJEP")
    given = pixels if video else pixels.flatten(0, 1)
    trunk = network.videomae if hasattr(network, "videomae") else network
    extra = {"skip_predictor": True} if "VJEPA" in model else {}
    with torch.inference_mode():
        states = trunk(given, output_hidden_states=True, **extra).hidden_states
        found = backbone(pixels)
    state = states[1]  # what leaves layer 0; the first one is what enters it
    expected = state[:, 0] if first else state.mean(dim=1)
    if not video:
        expected = expected.unflatten(0, (2, 4)).mean(dim=1)
    torch.testing.assert_close(found[:, : spec.dim // 2], expected, atol=1e-5, rtol=1e-5)


def test_a_backbone_without_layers_refuses_them(tmp_path: Path) -> None:
    for name in ("efficientnet_lite0", "i3d_kinetics400"):
        if find_backbone(name).find_weights() is not None:
            with pytest.raises(BackboneError, match="its last output only, no layers"):
                load_backbone(name, layers=[3])
    with pytest.raises(BackboneError, match="its last output only, no layers"):
        with_layers(*TINY["slow_r50"](tmp_path), (0,))
    with pytest.raises(BackboneError, match="its last output only, no layers"):
        with_layers(LITE0, nn.Flatten(), (0,))


def test_layers_that_do_not_exist_or_are_not_in_order_are_refused(tmp_path: Path) -> None:
    spec, network = TINY["svt"](tmp_path)
    with pytest.raises(BackboneError, match="has the layers 0 to 1, got"):
        with_layers(spec, network, (0, 2))
    with pytest.raises(BackboneError, match="in ascending order"):
        with_layers(spec, network, (1, 0))


def test_an_engine_runs_a_network_with_layers(tmp_path: Path) -> None:
    spec, network = with_layers(*TINY["videomae"](tmp_path), (0, 1))
    pixels = torch.randint(0, 256, noise(spec).shape, dtype=torch.uint8)
    plain = open_engine(spec, network, device="cpu", engine="torch").features(pixels)
    assert plain.shape == (2, spec.dim)
    if import_openvino() is None:  # not importorskip, which would let it report to its makers
        pytest.skip("openvino is an extra")
    fast = open_engine(spec, network, device="cpu", engine="openvino").features(pixels)
    torch.testing.assert_close(fast, plain, atol=1e-4, rtol=1e-3)


def test_a_spec_with_layers_is_written_and_read() -> None:
    layered = replace(LITE0, layers=(1, 2), dim=2 * LITE0.dim)
    assert build(BackboneSpec, to_mapping(layered), "again") == layered
    assert fingerprint(layered) != fingerprint(LITE0)
    with pytest.raises(BackboneError, match="dim must be a multiple of 3 layers"):
        replace(LITE0, layers=(1, 2, 3))
