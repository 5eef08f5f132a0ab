"""Several depths and several parts of a clip's time from one pass of a frozen network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.backbones.test_huggingface import JEPA, PATCHED, SHAPE, clips, make, save
from tests.contracts.test_backbones import TINY
from torch import Tensor, nn

from clipset.backbones.layers import bin_means, with_parts
from clipset.backbones.registry import BackboneSpec, find_backbone, load_backbone
from clipset.backbones.runtime import open_engine
from clipset.config import build, fingerprint, to_mapping
from clipset.errors import BackboneError

LITE0 = find_backbone("efficientnet_lite0").spec
TRANSFORMERS = ("svt", "videomae", "vjepa2")
NETWORKS = (*TRANSFORMERS, "slow_r50")


def noise(spec: BackboneSpec, count: int = 2) -> Tensor:
    shape = (count, spec.frames, 3, spec.size, spec.size)
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


def by_hand(network: Any, pixels: Tensor) -> list[Any]:
    """What leaves each block, one block after the other."""
    states: list[Any] = []
    hooks = [b.register_forward_hook(lambda *a: states.append(a[2])) for b in network.blocks]
    with torch.no_grad():
        network(pixels)
    for hook in hooks:
        hook.remove()
    return states


POOLED: dict[str, Callable[[Any, int], Tensor]] = {
    "svt": lambda state, _: state[0][:, 0],
    "videomae": lambda state, _: state.mean(dim=1),
    "vjepa2": lambda state, _: state.mean(dim=1),
}


@pytest.mark.parametrize("family", TRANSFORMERS)
def test_layers_are_the_pooled_hidden_states(family: str, tmp_path: Path) -> None:
    spec, network = TINY[family](tmp_path)
    pixels = noise(spec)
    whole, parted = with_parts(spec, network, (0, 1), 1)
    assert whole.dim == 2 * spec.dim
    features = parted(pixels)
    for layer, state in enumerate(by_hand(network, pixels)):
        found = features[:, whole.part(layer=layer)]
        torch.testing.assert_close(found, POOLED[family](state, spec.frames), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", NETWORKS)
def test_bins_and_layers_stand_where_the_spec_says(family: str, tmp_path: Path) -> None:
    spec, network = TINY[family](tmp_path)
    pixels = noise(spec)
    layers = (0, 1) if family in TRANSFORMERS else ()
    whole, parted = with_parts(spec, network, layers, 2)
    features = parted(pixels)
    assert features.shape == (2, whole.dim)
    for layer in layers or (None,):
        chosen = () if layer is None else (layer,)
        alone, one = with_parts(spec, network, chosen, 2)
        torch.testing.assert_close(features[:, whole.part(layer=layer)], one(pixels))
        for bin in range(2):
            one_bin = one(pixels)[:, alone.part(bin=bin)]
            assert torch.equal(features[:, whole.part(layer=layer, bin=bin)], one_bin)


@pytest.mark.parametrize("family", ["videomae", "vjepa2", "slow_r50"])
def test_time_bins_average_to_the_usual_feature(family: str, tmp_path: Path) -> None:
    spec, network = TINY[family](tmp_path)
    pixels = noise(spec)
    _, parted = with_parts(spec, network, (), 2)
    mean = parted(pixels).unflatten(1, (2, -1)).mean(dim=1)
    torch.testing.assert_close(mean, network(pixels), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("bins", [1, 2, 4])
def test_the_time_bins_of_efficientnet_average_to_the_whole(bins: int) -> None:
    spec, network = load_backbone("efficientnet_lite0", frames=4, size=32, time_bins=bins)
    _, usual = load_backbone("efficientnet_lite0", frames=4, size=32)
    pixels = noise(spec)
    features = network(pixels)
    assert spec.dim == features.shape[1] == 1280 * bins
    mean = features.unflatten(1, (bins, -1)).mean(dim=1)
    torch.testing.assert_close(mean, usual(pixels), atol=1e-5, rtol=1e-5)
    if bins == 1:
        assert torch.equal(features, usual(pixels))
    else:  # a bin is what the network says of its frames alone
        part = usual(pixels[:, : 4 // bins])
        torch.testing.assert_close(features[:, spec.part(bin=0)], part, atol=1e-5, rtol=1e-5)


def test_time_bins_of_svt_are_means_of_the_patch_tokens_of_their_frames(tmp_path: Path) -> None:
    spec, network = TINY["svt"](tmp_path)
    pixels = noise(spec)
    whole, parted = with_parts(spec, network, (1,), 2)
    patches = by_hand(network, pixels)[1][1]  # (B, T, N, D)
    expected = patches[:, spec.frames // 2 :].mean(dim=(1, 2))
    torch.testing.assert_close(parted(pixels)[:, whole.part(layer=1, bin=1)], expected)


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
    torch.testing.assert_close(found[:, spec.part(layer=0)], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("model", [0, 1, 4, 5], ids=lambda place: HUGGING_FACE[place][0])
def test_time_bins_of_a_hugging_face_model_are_those_of_its_tokens(
    tmp_path: Path, model: int
) -> None:
    name, config, settings, _ = HUGGING_FACE[model]
    network = save(tmp_path, make(name, config, **settings))
    spec, backbone = load_backbone(network, frames=4, layers=[1], time_bins=2)
    single, plain = load_backbone(network, frames=4, layers=[1])
    pixels = clips(4)
    found = backbone(pixels)
    assert found.shape == (2, spec.dim) == (2, 2 * single.dim)
    torch.testing.assert_close(
        found.unflatten(1, (2, -1)).mean(dim=1), plain(pixels), atol=1e-5, rtol=1e-5
    )
    assert not torch.allclose(found[:, spec.part(bin=0)], found[:, spec.part(bin=1)])


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("efficientnet_lite0", {"layers": [3]}, "its last output only, no layers"),
        ("efficientnet_lite0", {"time_bins": 9, "frames": 8}, "time_bins must be 1 to 8, got 9"),
        ("i3d_kinetics400", {"time_bins": 3, "frames": 16}, "tells 2 places in time apart"),
        ("efficientnet_lite0", {"time_bins": 0}, "time_bins must be 1 to 8, got 0"),
    ],
)
def test_what_a_backbone_cannot_do_is_one_clear_line(name: str, options: Any, message: str) -> None:
    try:
        load_backbone(name)
    except BackboneError:
        pytest.skip("its weights are not here")
    with pytest.raises(BackboneError, match=message):
        load_backbone(name, **options)


def test_layers_that_are_not_there_or_not_in_order_are_refused(tmp_path: Path) -> None:
    spec, network = TINY["svt"](tmp_path)
    with pytest.raises(BackboneError, match="has the layers 0 to 1, got"):
        with_parts(spec, network, (0, 2), 1)
    with pytest.raises(BackboneError, match="the lowest first"):
        with_parts(spec, network, (1, 0), 1)
    with pytest.raises(BackboneError, match="no layers and no time bins"):
        with_parts(spec, nn.Flatten(), (), 2)


def test_a_video_model_with_one_class_token_has_no_time_bins(tmp_path: Path) -> None:
    name, config, settings, _ = HUGGING_FACE[2]
    network = save(tmp_path, make(name, config, **settings))
    with pytest.raises(BackboneError, match="one feature for all 4 frames"):
        load_backbone(network, time_bins=2)


def test_an_engine_runs_a_network_in_parts(tmp_path: Path) -> None:
    spec, network = with_parts(*TINY["videomae"](tmp_path), (0, 1), 2)
    pixels = torch.randint(0, 256, noise(spec).shape, dtype=torch.uint8)
    plain = open_engine(spec, network, device="cpu", engine="torch").features(pixels)
    assert plain.shape == (2, spec.dim)
    pytest.importorskip("openvino")
    fast = open_engine(spec, network, device="cpu", engine="openvino").features(pixels)
    torch.testing.assert_close(fast, plain, atol=1e-4, rtol=1e-3)


def test_a_spec_tells_parts_apart_and_keeps_the_fingerprint_of_those_without() -> None:
    parted = replace(LITE0, layers=(1, 2), time_bins=2, dim=4 * LITE0.dim)
    assert build(BackboneSpec, to_mapping(parted), "again") == parted
    assert fingerprint(parted) != fingerprint(LITE0)
    old = {k: v for k, v in to_mapping(LITE0).items() if k not in ("layers", "time_bins")}
    assert fingerprint(old) == fingerprint(LITE0)
    with pytest.raises(BackboneError, match="say which layer"):
        parted.part(bin=0)
    with pytest.raises(BackboneError, match="has no layer 3 here, it has the layers 1, 2"):
        parted.part(layer=3)
    with pytest.raises(BackboneError, match="time bins 0 to 1, no 2"):
        parted.part(layer=1, bin=2)
    with pytest.raises(BackboneError, match="not 3 equal parts"):
        replace(LITE0, time_bins=3)


@given(st.integers(1, 12), st.integers(1, 12))
def test_bins_are_those_of_adaptive_average_pooling(steps: int, bins: int) -> None:
    bins = min(bins, steps)
    values = torch.randn(2, steps, 3, generator=torch.Generator().manual_seed(steps))
    expected = nn.functional.adaptive_avg_pool1d(values.transpose(1, 2), bins).transpose(1, 2)
    torch.testing.assert_close(bin_means(values, bins), expected)
