"""Checkpoints are read without running code, and whatever does not fit is said."""

import argparse
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.backbones.golden import Trap
from torch import nn

from clipset.backbones.checkpoints import (
    CheckpointLayout,
    network_from_state,
    read_checkpoint,
    read_state,
)
from clipset.errors import BackboneError


def small_network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))


def small_state() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return dict(small_network().state_dict())


def test_a_checkpoint_with_code_in_it_is_refused_and_the_code_does_not_run(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    torch.save({"model": small_state(), "args": Trap(trace)}, tmp_path / "bad.pth")
    with pytest.raises(BackboneError, match=r"asks for posix\.mkdir.*runs no code"):
        read_checkpoint(tmp_path / "bad.pth")
    assert not trace.exists()


def test_a_plain_pickle_with_code_in_it_is_refused(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    (tmp_path / "bad.pth").write_bytes(pickle.dumps(Trap(trace)))
    with pytest.raises(BackboneError):
        read_checkpoint(tmp_path / "bad.pth")
    assert not trace.exists()


def test_the_options_of_a_training_run_are_read_with_its_checkpoint(tmp_path: Path) -> None:
    args = argparse.Namespace(lr=0.1, name="run")
    torch.save({"model": small_state(), "args": args}, tmp_path / "good.pth")
    assert read_checkpoint(tmp_path / "good.pth")["args"].lr == 0.1


@pytest.mark.parametrize("zipped", [True, False])
def test_a_truncated_checkpoint_is_called_truncated(tmp_path: Path, zipped: bool) -> None:
    path = tmp_path / "cut.pth"
    torch.save({"w": torch.zeros(5000)}, path, _use_new_zipfile_serialization=zipped)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(BackboneError, match="is truncated; download it again"):
        read_checkpoint(path)


def test_a_truncated_safetensors_file_is_called_truncated(tmp_path: Path) -> None:
    path = tmp_path / "cut.safetensors"
    save_file({"w": torch.zeros(500)}, path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(BackboneError, match="is truncated"):
        read_checkpoint(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"<!DOCTYPE html><html>Quota exceeded</html>", "is a web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "git-lfs pointer"),
        (b"these are not weights at all", "is not a checkpoint"),
        (pickle.dumps([1, 2, 3], protocol=2), "is not a checkpoint"),
    ],
)
def test_a_file_that_is_no_checkpoint_is_named_for_what_it_is(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "file.pth"
    path.write_bytes(content)
    with pytest.raises(BackboneError, match=message):
        read_checkpoint(path)


def test_a_saved_list_is_not_the_weights_of_a_network(tmp_path: Path) -> None:
    torch.save([torch.zeros(1)], tmp_path / "list.pth")
    with pytest.raises(BackboneError, match="holds a list"):
        read_checkpoint(tmp_path / "list.pth")


def test_a_missing_checkpoint_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(BackboneError, match=r"nothing\.pth not found"):
        read_checkpoint(tmp_path / "nothing.pth")


def test_levels_and_prefixes_are_taken_off(tmp_path: Path) -> None:
    state = {f"module.net.{key}": value for key, value in small_state().items()}
    torch.save({"teacher": state, "epoch": 3}, tmp_path / "nested.pth")
    layout = CheckpointLayout(levels=("teacher",), prefixes=("net.",))
    read = read_state(tmp_path / "nested.pth", layout)
    network = network_from_state(small_network, read, layout, tmp_path)
    assert torch.equal(network.state_dict()["0.weight"], small_state()["0.weight"])


def test_every_missing_and_every_unknown_key_is_counted_and_the_first_are_listed() -> None:
    state = small_state()
    del state["0.weight"]
    state |= {f"extra{i}": torch.zeros(1) for i in range(6)}
    with pytest.raises(BackboneError) as error:
        network_from_state(small_network, state, CheckpointLayout(), Path("file.pth"))
    message = str(error.value)
    assert "1 missing (0.weight)" in message
    assert "6 unknown (extra0, extra1, extra2, extra3 and 2 more)" in message
    assert "\n" not in message


def test_a_tensor_of_another_shape_is_an_error_that_says_both_shapes() -> None:
    state = small_state() | {"0.bias": torch.zeros(5)}
    with pytest.raises(BackboneError, match=r"0\.bias: \(5,\) instead of \(2,\)"):
        network_from_state(small_network, state, CheckpointLayout(), Path("file.pth"))


def test_only_keys_that_are_named_are_dropped() -> None:
    state = small_state() | {"head.weight": torch.zeros(1)}
    network_from_state(
        small_network, state, CheckpointLayout(ignored_keys=(r"head\..*",)), Path("file.pth")
    )
    with pytest.raises(BackboneError, match=r"1 unknown \(head\.weight\)"):
        network_from_state(small_network, state, CheckpointLayout(), Path("file.pth"))


def test_keys_that_would_overwrite_each_other_are_refused() -> None:
    state = small_state()
    state |= {f"net.{key}": value for key, value in state.items()}
    with pytest.raises(BackboneError, match="with and without the prefix"):
        network_from_state(
            small_network, state, CheckpointLayout(prefixes=("net.",)), Path("file.pth")
        )


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_numbers_are_refused_by_the_name_of_the_tensor(value: float) -> None:
    state = small_state()
    state["0.weight"][1, 2] = value
    with pytest.raises(BackboneError, match=r"the tensor 0\.weight holds NaN or infinity"):
        network_from_state(small_network, state, CheckpointLayout(), Path("file.pth"))


def test_half_precision_weights_are_used_in_full_precision() -> None:
    state = {k: v.half() if v.is_floating_point() else v for k, v in small_state().items()}
    network = network_from_state(small_network, state, CheckpointLayout(), Path("file.pth"))
    assert network.state_dict()["0.weight"].dtype == torch.float32
    assert network.state_dict()["1.num_batches_tracked"].dtype == torch.int64


def test_a_loaded_network_does_not_need_its_file_any_more(tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    torch.save(small_state(), path)
    network = network_from_state(
        small_network, read_state(path, CheckpointLayout()), CheckpointLayout(), path
    )
    path.write_bytes(b"\0" * path.stat().st_size)
    assert torch.equal(network.state_dict()["0.weight"], small_state()["0.weight"])


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("stem.conv.weight", "EfficientNet"),
        ("_conv_stem.weight", "EfficientNet"),
        ("conv_1a.conv.weight", "I3D"),
        ("Conv3d_1a_7x7.conv3d.weight", "I3D"),
        ("encoder.blocks.0.attn.q_bias", "VideoMAE"),
        ("blocks.0.ls1.gamma", "DINOv2"),
    ],
)
def test_a_checkpoint_of_another_network_is_told_by_its_keys(key: str, kind: str) -> None:
    with pytest.raises(BackboneError, match=f"looks like {kind}"):
        network_from_state(
            small_network, {key: torch.zeros(2)}, CheckpointLayout(), Path("other.pth")
        )
