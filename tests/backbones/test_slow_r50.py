"""Slow-R50 gives the features of PySlowFast, from the momentum copy of a contrastive checkpoint."""

from pathlib import Path

import pytest
import torch
from tests.backbones.golden import GOLDEN, features, full_size_keys, read_golden
from torch import Tensor

from clipset.backbones.checkpoints import load_checkpoint, match_keys
from clipset.backbones.registry import load_backbone
from clipset.backbones.released import SLOW_R50_LAYOUT
from clipset.errors import BackboneError
from clipset.networks.convolutional import SlowR50

CHECKPOINT = GOLDEN / "rbyol_slow_r50" / "checkpoint.pyth"
NARROW = 4  # channels of the stem


@pytest.fixture(scope="module")
def golden() -> dict[str, Tensor]:
    return read_golden("rbyol_slow_r50")


def load_narrow(path: Path) -> SlowR50:
    return load_checkpoint(lambda: SlowR50(NARROW), SLOW_R50_LAYOUT, path)


def test_the_momentum_copy_gives_the_golden_feature(golden: dict[str, Tensor]) -> None:
    found = features(load_narrow(CHECKPOINT), golden["input"])
    torch.testing.assert_close(found, golden["expected"], atol=1e-4, rtol=0)
    assert (found - golden["expected_online"]).abs().max() > 1  # that of the other copy


@pytest.mark.parametrize("head", ["ssl_128", "ssl_256"])
def test_the_older_names_of_the_head_in_released_files_are_dropped(
    golden: dict[str, Tensor], tmp_path: Path, head: str
) -> None:
    content = torch.load(CHECKPOINT, weights_only=True)
    state = content["model_state"]
    renamed = {key.replace(".head.", f".{head}.", 1): value for key, value in state.items()}
    assert renamed.keys() != state.keys()
    torch.save(content | {"model_state": renamed}, tmp_path / "released.pyth")
    found = features(load_narrow(tmp_path / "released.pyth"), golden["input"])
    torch.testing.assert_close(found, golden["expected"], atol=1e-4, rtol=0)


def test_any_frame_count_and_any_size_can_be_fed() -> None:
    network = load_narrow(CHECKPOINT)
    assert features(network, torch.zeros(2, 3, 5, 40, 56)).shape == (2, 32 * NARROW)


def test_the_memory_of_the_training_set_may_be_missing() -> None:
    state = full_size_keys("rbyol_slow_r50")
    del state["knn_mem.memory"]
    with torch.device("meta"):
        network = SlowR50()
    assert len(match_keys(network, state, SLOW_R50_LAYOUT, Path("byol.pyth"))) == 318


def test_the_full_size_network_has_the_keys_of_the_released_file() -> None:
    with torch.device("meta"):
        network = SlowR50()
    state = full_size_keys("rbyol_slow_r50")
    assert len(match_keys(network, state, SLOW_R50_LAYOUT, Path("byol.pyth"))) == 318
    assert sum(tensor.numel() for tensor in network.parameters()) == 31_634_496


def test_a_network_without_a_momentum_copy_is_refused(tmp_path: Path) -> None:
    state = torch.load(CHECKPOINT, weights_only=True)["model_state"]
    online = {key: value for key, value in state.items() if key.startswith("backbone.")}
    torch.save({"model_state": online}, tmp_path / "online.pyth")
    with pytest.raises(BackboneError, match=r"318 missing.*without a momentum copy"):
        load_narrow(tmp_path / "online.pyth")


def test_a_narrow_network_is_not_taken_for_the_full_one() -> None:
    with pytest.raises(BackboneError, match="of another shape"):
        load_backbone("rbyol_slow_r50", weights=CHECKPOINT)
