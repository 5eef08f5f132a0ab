"""VideoMAE gives the features of the authors' code, from their files and from Hugging Face's."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.backbones.golden import GOLDEN, features, full_size_keys, read_golden
from torch import Tensor

from clipset.backbones.checkpoints import match_keys
from clipset.backbones.registry import load_backbone
from clipset.backbones.released import (
    BASE,
    LARGE,
    TUNED,
    VIDEOMAE_LAYOUT,
    from_hugging_face,
    load_videomae,
)
from clipset.errors import BackboneError
from clipset.networks.video_transformers import VideoMAE, VideoMAEConfig

TINY = VideoMAEConfig(embed_dim=48, depth=2, num_heads=3, mlp_dim=192, size=64)
TINY_TUNED = replace(TINY, norm="mean")
OFFICIAL, HUGGING_FACE = "checkpoint.pth", "hf/model.safetensors"
PRETRAINED, FINE_TUNED = GOLDEN / "videomae_pretrain", GOLDEN / "videomae_finetuned"


@pytest.fixture(scope="module")
def pretrained() -> dict[str, Tensor]:
    return read_golden("videomae_pretrain")


@pytest.fixture(scope="module")
def tuned() -> dict[str, Tensor]:
    return read_golden("videomae_finetuned")


@pytest.mark.parametrize("file", [OFFICIAL, HUGGING_FACE])
def test_the_pretrained_encoder_gives_the_golden_feature(
    pretrained: dict[str, Tensor], file: str
) -> None:
    found = features(load_videomae(PRETRAINED / file, TINY), pretrained["input"])
    torch.testing.assert_close(found, pretrained["expected"], atol=5e-6, rtol=0)
    torch.testing.assert_close(found, pretrained["expected_hf"], atol=1e-4, rtol=0)


@pytest.mark.parametrize("file", [OFFICIAL, HUGGING_FACE])
def test_the_fine_tuned_network_gives_the_golden_feature(
    tuned: dict[str, Tensor], file: str
) -> None:
    found = features(load_videomae(FINE_TUNED / file, TINY_TUNED), tuned["input"])
    torch.testing.assert_close(found, tuned["expected"], atol=5e-6, rtol=0)
    torch.testing.assert_close(found, tuned["expected_hf"], atol=1e-4, rtol=0)


def test_another_layer_norm_epsilon_misses_the_golden_features(
    pretrained: dict[str, Tensor], tuned: dict[str, Tensor]
) -> None:
    for folder, config, golden in ((PRETRAINED, TINY, pretrained), (FINE_TUNED, TINY_TUNED, tuned)):
        network = load_videomae(folder / OFFICIAL, replace(config, norm_eps=1e-5))
        difference = features(network, golden["input"]) - golden["expected"]
        assert difference.abs().max() > 5e-6


def test_the_tokens_and_the_table_of_positions_are_the_golden_ones(
    pretrained: dict[str, Tensor],
) -> None:
    network = load_videomae(PRETRAINED / OFFICIAL, TINY).eval()
    assert torch.equal(network.table, pretrained["expected_pos_embed"])
    with torch.inference_mode():
        tokens = network.tokens(pretrained["input"].transpose(1, 2))
    torch.testing.assert_close(tokens, pretrained["expected_tokens"], atol=1e-4, rtol=0)


@pytest.mark.parametrize("file", [OFFICIAL, HUGGING_FACE])
def test_another_size_resizes_the_table_of_positions(
    pretrained: dict[str, Tensor], file: str
) -> None:
    found = features(load_videomae(PRETRAINED / file, TINY), pretrained["input_80px"])
    torch.testing.assert_close(found, pretrained["expected_80px_trilinear"], atol=5e-6, rtol=0)


def test_another_frame_count_resizes_the_table_of_positions_in_time() -> None:
    network = load_videomae(PRETRAINED / OFFICIAL, TINY)
    assert network.positions((4, 4, 4)).shape == (4, 4, 4, 48)
    assert features(network, torch.zeros(1, 3, 8, 64, 64)).shape == (1, 48)


def test_fine_tuned_weights_saved_without_deepspeed_and_in_half_precision_load(
    tuned: dict[str, Tensor], tmp_path: Path
) -> None:
    state = torch.load(FINE_TUNED / OFFICIAL, weights_only=True)["module"]
    torch.save({"model": state, "epoch": 74}, tmp_path / "plain.pth")
    found = features(load_videomae(tmp_path / "plain.pth", TINY_TUNED), tuned["input"])
    torch.testing.assert_close(found, tuned["expected"], atol=5e-6, rtol=0)
    halves = {key: value.half() for key, value in state.items()}
    torch.save({"module": halves}, tmp_path / "half.pth")
    found = features(load_videomae(tmp_path / "half.pth", TINY_TUNED), tuned["input"])
    torch.testing.assert_close(found, tuned["expected"], atol=1e-2, rtol=0)


def test_both_names_of_the_biases_in_hugging_face_files_are_read() -> None:
    stored = load_file(PRETRAINED / HUGGING_FACE)
    in_memory = {
        key.replace("q_bias", "query.bias").replace("v_bias", "value.bias"): value
        for key, value in stored.items()
    }
    assert stored.keys() != in_memory.keys()
    with torch.device("meta"):
        network = VideoMAE(TINY)
    for state in (stored, in_memory):
        match_keys(network, from_hugging_face(state), VIDEOMAE_LAYOUT, Path("model.safetensors"))


@pytest.mark.parametrize(
    ("name", "config", "count", "parameters"),
    [
        ("videomae_b_pretrain", BASE, 160, 86_227_200),
        ("videomae_l_pretrain", LARGE, 316, 303_860_736),
        ("videomae_b_finetuned_k400", TUNED, 160, 86_227_200),
        ("videomae_b_finetuned_ssv2", TUNED, 160, 86_227_200),
        ("videomae_hf_b_pretrain", BASE, 160, 86_227_200),
        ("videomae_hf_l_pretrain", LARGE, 316, 303_860_736),
        ("videomae_hf_b_finetuned_k400", TUNED, 160, 86_227_200),
        ("videomae_hf_b_finetuned_ssv2", TUNED, 160, 86_227_200),
    ],
)
def test_the_full_size_networks_have_the_keys_of_the_released_files(
    name: str, config: VideoMAEConfig, count: int, parameters: int
) -> None:
    state = full_size_keys(name)
    if "_hf_" in name:
        state = from_hugging_face(state)
    with torch.device("meta"):
        network = VideoMAE(config)
    named = match_keys(network, state, VIDEOMAE_LAYOUT, Path(name))
    assert len(named) == count
    assert sum(tensor.numel() for tensor in named.values()) == parameters


@pytest.mark.parametrize("file", [OFFICIAL, HUGGING_FACE])
def test_pretrained_and_fine_tuned_weights_are_not_taken_for_each_other(file: str) -> None:
    with pytest.raises(BackboneError, match=r"missing \(fc_norm\.weight.*unknown \(norm\."):
        load_videomae(PRETRAINED / file, TINY_TUNED)
    with pytest.raises(BackboneError, match=r"missing \(norm\.weight.*unknown \(fc_norm\."):
        load_videomae(FINE_TUNED / file, TINY)


def test_weights_tuned_on_other_classes_are_refused() -> None:
    with pytest.raises(BackboneError, match=r"on 7 classes, expected 400.*videomae_b_k400"):
        load_backbone("videomae_b_k400", weights=FINE_TUNED / OFFICIAL)


def test_an_odd_frame_count_is_refused() -> None:
    with pytest.raises(BackboneError, match="multiple of 2 frames"):
        load_backbone("videomae_b", weights=PRETRAINED / OFFICIAL, frames=15)


def test_the_large_network_is_not_taken_for_the_base_one() -> None:
    with pytest.raises(BackboneError, match=r"looks like VideoMAE \(width 48, 2 blocks\)"):
        load_backbone("videomae_l", weights=PRETRAINED / OFFICIAL)
