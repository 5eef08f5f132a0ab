"""SVT gives the features of the authors' code, at its own size and at others."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.backbones.golden import GOLDEN, features, full_size_keys, read_golden
from torch import Tensor

from clipset.backbones.checkpoints import load_checkpoint, match_keys
from clipset.backbones.registry import load_backbone
from clipset.backbones.released import SVT_BASE, SVT_LAYOUT
from clipset.errors import BackboneError
from clipset.networks.video_transformers import SVT, ViTConfig

CHECKPOINT = GOLDEN / "svt" / "checkpoint.pth"
TINY = ViTConfig(embed_dim=48, depth=2, num_heads=3, mlp_dim=192, frames=8, size=64)


@pytest.fixture(scope="module")
def golden() -> dict[str, Tensor]:
    return read_golden("svt")


def load_svt(path: Path, config: ViTConfig) -> SVT:
    return load_checkpoint(lambda: SVT(config), SVT_LAYOUT, path)


def test_the_released_layout_gives_the_golden_feature(golden: dict[str, Tensor]) -> None:
    found = features(load_svt(CHECKPOINT, TINY), golden["input"])
    torch.testing.assert_close(found, golden["expected"], atol=5e-6, rtol=0)


def test_another_layer_norm_epsilon_misses_the_golden_feature(golden: dict[str, Tensor]) -> None:
    found = features(load_svt(CHECKPOINT, replace(TINY, norm_eps=1e-5)), golden["input"])
    assert (found - golden["expected"]).abs().max() > 5e-6


@pytest.mark.parametrize("size", [64, 80])
def test_sixteen_frames_and_other_sizes_resize_the_positions_trilinearly(
    golden: dict[str, Tensor], size: int
) -> None:
    network = load_svt(CHECKPOINT, TINY)
    found = features(network, golden["input_16f_80px"][..., :size, :size])
    expected = golden[f"expected_16f_{size}px_trilinear"]
    torch.testing.assert_close(found, expected, atol=5e-6, rtol=0)


def test_the_teacher_of_a_training_checkpoint_is_taken_and_not_the_student(
    golden: dict[str, Tensor], tmp_path: Path
) -> None:
    teacher = torch.load(CHECKPOINT, weights_only=True)
    student = {f"module.{key}": torch.zeros_like(value) for key, value in teacher.items()}
    bookkeeping = {"motion_teacher": 0, "epoch": 20, "optimizer": {"state": {}}}
    path = tmp_path / "training.pth"
    torch.save({"student": student, "teacher": teacher} | bookkeeping, path)
    found = features(load_svt(path, TINY), golden["input"])
    torch.testing.assert_close(found, golden["expected"], atol=5e-6, rtol=0)


def test_the_full_size_network_has_the_keys_of_the_released_file() -> None:
    with torch.device("meta"):
        network = SVT(SVT_BASE)
    named = match_keys(network, full_size_keys("svt_vitb16_k400_ssl"), SVT_LAYOUT, Path("svt.pth"))
    assert len(named) == 247
    assert sum(tensor.numel() for tensor in named.values()) == 121_258_752


def test_a_file_of_another_model_is_refused_by_its_name() -> None:
    videomae = GOLDEN / "videomae_pretrain" / "checkpoint.pth"
    with pytest.raises(BackboneError, match=r"looks like VideoMAE \(width 48, 2 blocks\)"):
        load_svt(videomae, TINY)


def test_a_file_of_another_size_is_refused_with_its_size() -> None:
    with pytest.raises(BackboneError, match=r"SVT or TimeSformer \(width 48, 2 blocks\)"):
        load_backbone("svt_vitb16", weights=CHECKPOINT)


def test_a_size_that_is_no_multiple_of_the_patch_is_refused() -> None:
    with pytest.raises(BackboneError, match="multiple of 16 pixels") as error:
        load_backbone("svt_vitb16", weights=CHECKPOINT, size=250)
    assert "250 pixels" in str(error.value)


def test_missing_weights_say_where_to_get_them_and_where_to_put_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLIPSET_WEIGHTS", str(tmp_path))
    with pytest.raises(BackboneError) as error:
        load_backbone("svt_vitb16")
    assert "github.com/kahnchana/svt" in str(error.value)
    assert f"into {tmp_path}" in str(error.value)


def test_weights_are_found_in_the_folder_that_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLIPSET_WEIGHTS", str(tmp_path))
    (tmp_path / "kinetics400_vitb_ssl.pth").write_bytes(CHECKPOINT.read_bytes())
    with pytest.raises(BackboneError, match="does not fit"):  # found, and of the tiny model
        load_backbone("svt_vitb16")
