"""The published set transformer, as its own code computed it."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from clipset.errors import ModelError
from clipset.recipe import load_settings
from clipset.training.checkpoint import ScaleModel
from clipset.training.config import PretrainConfig
from clipset.training.official import load_official
from clipset.training.optim import WARMUP_FRACTION, cosine_schedule

GOLDEN = Path(__file__).parents[1] / "golden"
SCALE = GOLDEN / "scale_set_transformer"
CHECKPOINT = SCALE / "checkpoint.pth"


def golden(name: str) -> torch.Tensor:
    return torch.from_numpy(np.load(SCALE / f"{name}.npy")).float()


def test_a_published_checkpoint_gives_the_published_tokens() -> None:
    model = load_official(CHECKPOINT)
    features, boxes = golden("input_features")[:, 0], golden("input_positions")[:, 0]
    with torch.no_grad():
        encoding = model.encode(features, boxes)
    torch.testing.assert_close(encoding.set_token, golden("expected_set_cls"), atol=5e-6, rtol=0)
    torch.testing.assert_close(encoding.clip_tokens, golden("expected_tokens"), atol=5e-6, rtol=0)


def test_the_official_preset_computes_the_published_losses() -> None:
    model = load_official(CHECKPOINT)
    about = json.loads((SCALE / "config.json").read_text("utf-8"))
    features, boxes = (golden(f"input_{x}").transpose(0, 1) for x in ("features", "positions"))
    below_ratio = golden("mask_uniform") < about["hyper_parameters"]["mask_ratio"]
    masked = below_ratio.view(features.shape[1], 2, -1).transpose(0, 1)
    losses = model.losses(features, boxes, masked)
    expected = about["expected_losses"]
    assert losses.set_contrast.item() == pytest.approx(expected["set_loss"], abs=5e-6)
    assert losses.masked_clip.item() == pytest.approx(expected["dense_loss"], abs=5e-6)
    assert losses.total.item() == pytest.approx(expected["total_as_optimised"], abs=5e-6)


def test_the_official_schedule_is_the_published_one() -> None:
    rates = json.loads((GOLDEN / "protocol" / "lr_schedule.json").read_text("utf-8"))["lr"]
    config = load_settings(PretrainConfig, "official")
    schedule = [
        cosine_schedule(
            step, len(rates), peak=config.learning_rate, warmup_fraction=WARMUP_FRACTION
        )
        for step in range(len(rates))
    ]
    assert schedule == pytest.approx(rates, abs=1e-12)


def test_a_published_model_is_saved_and_loaded_as_our_own(tmp_path: Path) -> None:
    model = load_official(CHECKPOINT)
    model.save_pretrained(tmp_path)
    again = ScaleModel.from_pretrained(tmp_path)
    assert again.card.model == model.config
    for name, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])


@pytest.mark.parametrize("change", ["missing", "unknown", "shape"])
def test_a_checkpoint_with_other_keys_is_refused(tmp_path: Path, change: str) -> None:
    content = torch.load(CHECKPOINT, weights_only=True)
    student = content["student"]
    if change == "missing":
        del student["transformer.1.attn.proj.bias"]
    elif change == "unknown":
        student["decoder.weight"] = torch.zeros(2, 2)
    else:
        student["norm.weight"] = torch.zeros(3)
    torch.save(content, tmp_path / "changed.pth")
    with pytest.raises(ModelError, match=r"norm\.weight|decoder\.weight|blocks\.1\.out\.bias"):
        load_official(tmp_path / "changed.pth")


def test_the_official_model_has_the_published_sizes() -> None:
    model = load_settings(PretrainConfig, "official").model
    assert (model.projection_hidden, model.target_hidden) == ((4096,), (2048, 2048))
    assert (model.box_coordinates, model.box_dim, model.temperature) == ("official", 7, 0.2)


def test_what_is_set_by_hand_wins_over_the_preset() -> None:
    config = load_settings(PretrainConfig, "official", epochs=7)
    assert (config.epochs, config.batch_size, config.mask_rule) == (7, 512, "bernoulli")
    smaller = load_settings(PretrainConfig, "paper", model={"width": 64})
    assert (smaller.model.width, smaller.model.negatives) == (64, "all")
    assert (smaller.epochs, smaller.standardise) == (500, False)


def test_the_presets_are_frozen() -> None:
    assert PretrainConfig() == load_settings(PretrainConfig)
    with pytest.raises(AttributeError):
        load_settings(PretrainConfig, "paper").epochs = 3  # type: ignore[misc]
