"""V-JEPA 2 gives the features of the authors' code, with positions that follow the real grid."""

from pathlib import Path

import pytest
import torch
from tests.backbones.golden import GOLDEN, features, full_size_keys, read_golden
from torch import Tensor

from clipset.backbones.checkpoints import load_checkpoint, match_keys
from clipset.backbones.released import LARGE, VJEPA2_LAYOUT
from clipset.errors import BackboneError
from clipset.networks.video_transformers import VJEPA2, ViTConfig

CHECKPOINT = GOLDEN / "vjepa2" / "checkpoint.pth"
TINY = ViTConfig(embed_dim=48, depth=2, num_heads=3, mlp_dim=192)


@pytest.fixture(scope="module")
def golden() -> dict[str, Tensor]:
    return read_golden("vjepa2")


def load_tiny(path: Path) -> VJEPA2:
    return load_checkpoint(lambda: VJEPA2(TINY), VJEPA2_LAYOUT, path)


def test_the_averaged_encoder_gives_the_golden_feature(golden: dict[str, Tensor]) -> None:
    found = features(load_tiny(CHECKPOINT), golden["input_16f_80px"])
    torch.testing.assert_close(found, golden["expected_16f_80px"], atol=5e-6, rtol=0)


def test_the_averaged_encoder_is_taken_and_not_the_trained_one(
    golden: dict[str, Tensor], tmp_path: Path
) -> None:
    averaged = torch.load(CHECKPOINT, weights_only=True)["target_encoder"]
    trained = {key: value + 1 for key, value in averaged.items()}
    both = {"encoder": trained, "target_encoder": averaged, "predictor": {}, "lr": 0.1}
    path = tmp_path / "both.pt"
    torch.save(both, path)
    found = features(load_tiny(path), golden["input_16f_80px"])
    torch.testing.assert_close(found, golden["expected_16f_80px"], atol=5e-6, rtol=0)


def test_a_stored_table_of_positions_is_ignored(tmp_path: Path) -> None:
    content = torch.load(CHECKPOINT, weights_only=True)
    content["target_encoder"]["module.backbone.pos_embed"] = torch.zeros(1, 64, 48)
    torch.save(content, tmp_path / "table.pt")
    load_tiny(tmp_path / "table.pt")


def test_the_full_size_network_has_the_keys_of_the_released_file() -> None:
    with torch.device("meta"):
        network = VJEPA2(LARGE)
    released = {f"backbone.{key}": value for key, value in full_size_keys("vjepa2_vitl").items()}
    named = match_keys(network, released, VJEPA2_LAYOUT, Path("vitl.pt"))
    assert sum(tensor.numel() for tensor in named.values()) == 303_885_312


def test_a_predictor_is_not_taken_for_an_encoder(tmp_path: Path) -> None:
    torch.save({"predictor": {"module.backbone.x": torch.zeros(1)}}, tmp_path / "part.pt")
    with pytest.raises(BackboneError):
        load_tiny(tmp_path / "part.pt")
