"""No bit of a model, head, checkpoint or table of vectors changes unnoticed; no NaN gets in."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save, save_file
from tests.attacks.conftest import TINY
from tests.miniatures import run

import clipset as package
from clipset.checksums import seal
from clipset.errors import ClipsetError, ModelError
from clipset.evaluation.results import read_predictions
from clipset.inference.head import load_head
from clipset.inference.run import load_run
from clipset.representation import read_vectors
from clipset.training import trainer
from clipset.training.checkpoint import load_model, newest_checkpoint

FLIPS = 100
PRETRAIN = tuple(word for word in TINY if word.startswith("--set=pretrain."))


def flip(path: Path, is_noticed: Callable[[], bool]) -> None:
    """Turn single bits of a file over, at random positions and in every part of its header."""
    content = path.read_bytes()
    rng = np.random.default_rng(len(content))
    for position in rng.integers(0, 8 * len(content), FLIPS).tolist():
        changed = bytearray(content)
        changed[position // 8] ^= 1 << position % 8
        path.write_bytes(changed)
        assert is_noticed(), (path.name, position)
    path.write_bytes(content)


def refuses(read: Callable[[], object]) -> Callable[[], bool]:
    """Whether reading ends with one of our errors, in one line."""

    def is_noticed() -> bool:
        try:
            read()
        except ClipsetError as error:
            return "\n" not in str(error).strip()
        return False

    read()  # as it was written, it is read
    return is_noticed


def test_every_bit_of_a_model_counts(finished_run: Path) -> None:
    model = finished_run / "model"
    for name in ("model.safetensors", "model.json"):
        flip(model / name, refuses(lambda: load_model(model)))
    (model / "model.json").unlink()  # what is left is a folder of a hub
    for name in ("model.safetensors", "config.json"):
        flip(model / name, refuses(lambda: package.ScaleModel.from_pretrained(model)))


def test_every_bit_of_vectors_and_predictions_counts(finished_run: Path) -> None:
    folder, path = finished_run / "vectors", finished_run / "predictions.safetensors"
    for file in sorted(folder.iterdir()):
        flip(file, refuses(lambda: read_vectors(folder)))
    flip(path, refuses(lambda: read_predictions(path)))


def test_every_bit_of_a_head_counts(finished_run: Path) -> None:
    mark = load_run(finished_run).head.card.fingerprint
    folder = finished_run / "head"
    assert load_head(folder, mark) is not None

    def is_noticed() -> bool:
        try:
            return load_head(folder, mark) is None  # of another fingerprint: it is made again
        except ClipsetError as error:
            return "\n" not in str(error)

    for name in ("head.safetensors", "head.json"):
        flip(folder / name, is_noticed)


def test_a_checkpoint_with_a_changed_bit_is_passed_over(
    session_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(trainer, "CHECKPOINT_SECONDS", 0.0)
    words = ("pretrain", session_run / "store", "--out", tmp_path / "model", *PRETRAIN)
    in_the_way = tmp_path / "model" / "model.safetensors"
    in_the_way.mkdir(parents=True)
    assert run(*words) == 2  # stopped at the last moment, after two checkpoints
    in_the_way.rmdir()
    folder = tmp_path / "model" / "checkpoints"
    newest = folder / "epoch-000002.safetensors"
    found = newest_checkpoint(folder)
    assert found is not None
    assert found.epoch == 2
    capsys.readouterr()

    def is_noticed() -> bool:
        found = newest_checkpoint(folder)
        said = capsys.readouterr().err
        return found is not None and found.epoch == 1 and said.count("\n") == 1

    flip(newest, is_noticed)
    content = bytearray(newest.read_bytes())
    content[-1] ^= 1
    newest.write_bytes(content)
    assert run(*words) == 0
    whole = (session_run / "model" / "model.safetensors").read_bytes()
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == whole


def test_weights_that_are_no_numbers_are_refused(finished_run: Path, tmp_path: Path) -> None:
    hub = tmp_path / "hub"
    hub.mkdir()
    content = json.loads((finished_run / "model" / "config.json").read_text())
    del content["checksum"]
    (hub / "config.json").write_text(json.dumps(content))
    tensors = load_file(finished_run / "model" / "model.safetensors")
    save_file(tensors, hub / "model.safetensors")
    model = package.ScaleModel.from_pretrained(hub)  # needs no checksum
    for bad in (torch.nan, torch.inf):
        changed = {**tensors, "encoder.norm.weight": tensors["encoder.norm.weight"] * bad}
        save_file(changed, hub / "model.safetensors")
        with pytest.raises(ModelError, match=r"encoder\.norm\.weight holds NaN or infinity"):
            package.ScaleModel.from_pretrained(hub)
    with torch.no_grad():
        model.encoder.norm.bias.fill_(torch.nan)
    with pytest.raises(ModelError, match="is not saved"):
        model.save_pretrained(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_head_that_is_no_numbers_is_refused(finished_run: Path) -> None:
    mark = load_run(finished_run).head.card.fingerprint
    path = finished_run / "head" / "head.safetensors"
    tensors = {name: value * torch.nan for name, value in load_file(path).items()}
    beside = {"head.json": path.with_name("head.json").read_bytes()}
    path.write_bytes(seal(save(tensors), beside))
    with pytest.raises(ModelError, match="holds NaN or infinity; delete the folder"):
        load_head(path.parent, mark)
    shutil.rmtree(path.parent)
    assert load_run(finished_run).head.card.fingerprint == mark
