"""Models in the Hugging Face convention."""

import builtins
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import clipset
from clipset.errors import ModelError
from clipset.model.config import ModelConfig
from clipset.training.card import ModelCard
from clipset.training.checkpoint import ScaleModel, find_model, load_model, read_card

CONFIG = ModelConfig(width=32, num_layers=1, projection_hidden=(32, 32), projection_dim=16)
WEIGHTS = {"file": "w.pth", "licence": "Apache-2.0", "source": "https://example.org/w"}
CARD = ModelCard(
    dim=24,
    model=CONFIG,
    training={"preset": "recommended", "epochs": 12},
    backbone={"name": "some_backbone", "weights": WEIGHTS},
    videos=18,
    split="train",
    seed=7,
    fingerprint="abc",
    data="my videos",
    splits=("test", "train"),
)


@pytest.fixture
def model() -> ScaleModel:
    torch.manual_seed(0)
    return ScaleModel(24, CONFIG, CARD).eval()


def test_a_model_goes_out_and_comes_back_by_two_calls(model: ScaleModel, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    names = ["README.md", "config.json", "model.safetensors"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    again = clipset.ScaleModel.from_pretrained(str(tmp_path))
    features, boxes = torch.randn(2, 4, 24), torch.rand(2, 4, CONFIG.box_dim)
    with torch.no_grad():
        set_token = model.encode(features, boxes).set_token
        assert torch.equal(again.encode(features, boxes).set_token, set_token)
    assert replace(read_card(tmp_path), checksum="") == CARD
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "clipset"


def test_the_page_says_how_it_was_trained_on_what_and_how_to_use_it(
    model: ScaleModel, tmp_path: Path
) -> None:
    model.save_pretrained(tmp_path)
    page = (tmp_path / "README.md").read_text("utf-8")
    assert page.startswith("---\nlibrary_name: clipset\n")
    for text in (
        "some_backbone", "my videos: 18 videos", "test, train; trained on: train", "| seed | 7 |",
        "| epochs | 12 |", "| model.width | 32 |", "Apache-2.0 (https://example.org/w)",
        "ScaleModel.from_pretrained(",
    ):  # fmt: skip
        assert text in page, text


def test_a_folder_of_a_hub_needs_no_checksum(model: ScaleModel, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    (tmp_path / "README.md").unlink()
    content = json.loads((tmp_path / "config.json").read_text())
    for name in ("data", "splits", "validation", "checksum"):
        del content[name]
    (tmp_path / "config.json").write_text(json.dumps(content))
    again = load_model(tmp_path)
    assert again.card.fingerprint == "abc"
    assert torch.equal(again.encoder.mask_token, model.encoder.mask_token)


def test_a_model_of_another_kind_or_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "videomae"}')
    with pytest.raises(ModelError, match="another kind of model"):
        clipset.ScaleModel.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "clipset", "format": 9}')
    with pytest.raises(ModelError, match="format 9, not 3; another clipset wrote it"):
        clipset.ScaleModel.from_pretrained(tmp_path)


def test_a_name_that_is_no_folder_is_looked_for_on_the_hub_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModelError, match="nothing not found"):
        clipset.ScaleModel.from_pretrained(tmp_path / "nothing")
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match="hub did not give a model of that name"):
        clipset.ScaleModel.from_pretrained("nobody/nothing")


@pytest.mark.parametrize("name", ["./model", "../model", "~/model", "runs/model", "model", "a/b/c"])
def test_a_name_of_a_folder_is_never_looked_for_on_the_hub(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    with pytest.raises(ModelError, match=re.escape(f"model folder {name} not found; run")):
        find_model(name)


def test_without_the_hubs_package_the_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("huggingface_hub"):
            raise ImportError(name)
        return plain(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ModelError, match="pip install huggingface_hub"):
        clipset.ScaleModel.from_pretrained("nobody/nothing")


def test_the_package_has_no_other_names_at_its_top() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        clipset.nothing  # noqa: B018
