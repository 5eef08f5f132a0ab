"""Backbone and set transformer trained together, from the videos themselves."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.conftest import write_video
from tests.end_to_end.tiny import TINY, cutting, write_vit
from tests.miniatures import run

from clipset import api
from clipset.data.catalog import Catalog
from clipset.end_to_end import model as model_module
from clipset.end_to_end.model import EndToEndConfig
from clipset.end_to_end.pretrain import BACKBONE_FILE, pretrain_end_to_end
from clipset.errors import BackboneError, TrainingError
from clipset.features.extract import extract
from clipset.features.store import FeatureStore, open_store
from clipset.training import trainer
from clipset.training.checkpoint import read_card
from clipset.training.pretrain import pretrain

ALL_TOKENS = EndToEndConfig(drop=0.0)


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vit(tmp_path_factory.mktemp("vit"))


@pytest.fixture(scope="module")
def catalog(small_store: FeatureStore) -> Catalog:
    """18 training videos and 6 others."""
    return small_store.catalog


def metrics(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_bytes().splitlines()
    return [
        {key: value for key, value in msgspec.json.decode(line).items() if "second" not in key}
        for line in lines
    ]


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes() + (folder / BACKBONE_FILE).read_bytes()


@pytest.fixture
def step_losses(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, float]]:
    """What every step returns."""
    recorded: list[dict[str, float]] = []
    step = trainer.PretrainingRun._step

    def recorded_step(self: trainer.PretrainingRun, pair: Any) -> dict[str, float]:
        recorded.append(step(self, pair))
        return recorded[-1]

    monkeypatch.setattr(trainer.PretrainingRun, "_step", recorded_step)
    return recorded


def test_a_frozen_backbone_that_sees_all_tokens_gives_the_losses_of_its_stored_features(
    catalog: Catalog, vit: Path, tmp_path: Path, step_losses: list[dict[str, float]]
) -> None:
    config = replace(TINY, epochs=1, backbone_lr_scale=0.0)
    extract(catalog, tmp_path / "store", cutting(vit))
    pretrain(open_store(tmp_path / "store"), tmp_path / "stored", config)
    stored = list(step_losses)
    step_losses.clear()
    pretrain_end_to_end(catalog, tmp_path / "model", cutting(vit), config, ALL_TOKENS)
    assert len(step_losses) == len(stored) == 4
    for step, expected in zip(step_losses, stored, strict=True):
        assert step == pytest.approx(expected, rel=2e-4, abs=2e-5)
    model, expected_model = (
        load_file(tmp_path / name / "model.safetensors") for name in ("model", "stored")
    )
    for name, value in expected_model.items():
        torch.testing.assert_close(model[name], value, rtol=1e-3, atol=1e-4)
    backbone, before = load_file(tmp_path / "model" / BACKBONE_FILE), load_file(vit)
    assert all(torch.equal(backbone[name], before[name]) for name in before)


def test_it_trains_the_backbone_and_the_number_of_workers_changes_nothing(
    catalog: Catalog, vit: Path, tmp_path: Path
) -> None:
    for workers in (0, 2):
        pretrain_end_to_end(catalog, tmp_path / str(workers), cutting(vit, workers), TINY)
    assert weights(tmp_path / "0") == weights(tmp_path / "2")
    assert metrics(tmp_path / "0") == metrics(tmp_path / "2")
    trained, before = load_file(tmp_path / "0" / BACKBONE_FILE), load_file(vit)
    assert not any(torch.equal(trained[name], before[name]) for name in before)


def test_the_trained_backbone_is_one_for_extract_and_its_features_fit_the_model(
    catalog: Catalog, vit: Path, tmp_path: Path
) -> None:
    model = pretrain_end_to_end(catalog, tmp_path / "model", cutting(vit), TINY)
    backbone = tmp_path / "model" / BACKBONE_FILE
    store = api.extract(
        catalog, tmp_path / "store", backbone=str(backbone), engine="torch", workers=0
    )
    card = read_card(tmp_path / "model")
    assert card.backbone["weights"]["sha256"] == store.manifest.backbone.weights.sha256
    assert (card.videos, card.backbone["end_to_end"]["drop"]) == (18, 0.9)
    vectors = api.embed(store, model=model)
    assert np.isfinite(vectors.vectors).all()
    assert "vit.safetensors in this folder" in (tmp_path / "model" / "README.md").read_text()


@pytest.mark.slow
def test_it_learns_on_real_videos(tmp_path: Path, vit: Path) -> None:
    for number in range(16):
        write_video(tmp_path / "videos" / f"{number}.mp4", seed=number, colour=number)
    api.pretrain_end_to_end(
        str(tmp_path / "videos"), str(tmp_path / "model"), backbone=vit, drop=0.5,
        extract={"workers": 0}, epochs=25, batch_size=16, learning_rate=1e-3, backbone_lr_scale=0.3,
        clips_per_set=4, model={"width": 32, "num_layers": 1, "dropout": 0.0},
    )  # fmt: skip
    lines = metrics(tmp_path / "model")
    for name, fraction in (("loss", 0.95), ("set_contrast", 0.75)):
        first, last = (np.mean([line[name] for line in some]) for some in (lines[:3], lines[-3:]))
        assert last < fraction * first, name


def test_a_resumed_training_equals_an_uninterrupted_one(
    catalog: Catalog, vit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(TINY, epochs=3)
    pretrain_end_to_end(catalog, tmp_path / "whole", cutting(vit), config)
    monkeypatch.setattr(trainer, "CHECKPOINT_SECONDS", 0.0)
    epoch = trainer.PretrainingRun._epoch

    def stopped(self: trainer.PretrainingRun) -> trainer.Metrics:
        if self.epoch == 2:
            raise KeyboardInterrupt
        return epoch(self)

    with monkeypatch.context() as patch:
        patch.setattr(trainer.PretrainingRun, "_epoch", stopped)
        with pytest.raises(KeyboardInterrupt):
            pretrain_end_to_end(catalog, tmp_path / "parts", cutting(vit), config)
    with pytest.raises(TrainingError, match=r"another run .*\(end_to_end.drop 0.9, now 0.0\)"):
        pretrain_end_to_end(catalog, tmp_path / "parts", cutting(vit), config, ALL_TOKENS)
    pretrain_end_to_end(catalog, tmp_path / "parts", cutting(vit), config)
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole")
    assert metrics(tmp_path / "parts") == metrics(tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.delattr(trainer.PretrainingRun, "_epoch")  # it is finished: nothing is trained
        pretrain_end_to_end(catalog, tmp_path / "parts", cutting(vit), config)


def test_without_a_number_of_epochs_held_out_videos_decide(
    tmp_path: Path, vit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clipset.training.budget.MIN_HELD_OUT", 1)
    monkeypatch.setattr("clipset.training.budget.FEWEST_STEPS", 4)
    monkeypatch.setattr("clipset.training.budget.STEPS_PER_ROOT_VIDEO", 1)
    for number in range(20):  # a tenth of them is two: a single one would have no negatives
        write_video(tmp_path / "videos" / f"{number}.mp4", seed=number, seconds=0.5)
    api.pretrain_end_to_end(
        tmp_path / "videos", tmp_path / "model", backbone=vit, extract={"workers": 0},
        batch_size=20, clips_per_set=2, model={"width": 32, "num_layers": 1},
    )  # fmt: skip
    card = read_card(tmp_path / "model")
    assert (card.videos, card.held_out) == (18, 2)
    assert all("validation_loss" in line for line in metrics(tmp_path / "model"))


@pytest.fixture
def spoilt(tmp_path: Path) -> Path:
    """Eight videos of which two cannot be read."""
    for number in range(8):
        write_video(tmp_path / "videos" / f"{number}.mp4", seed=number, seconds=0.5)
    (tmp_path / "videos" / "3.mp4").write_bytes(b"")
    (tmp_path / "videos" / "5.mp4").write_text("this is no video")
    return tmp_path / "videos"


def test_videos_that_cannot_be_read_are_left_out_counted_and_said(
    spoilt: Path, vit: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = [
        "--set=extract.workers=0", "--set=pretrain.clips_per_set=2", "--set=pretrain.batch_size=4",
        "--set=pretrain.model={width = 32, num_layers = 1}", "--epochs=2", "--json",
    ]  # fmt: skip
    words = ["pretrain", "--end-to-end", spoilt, "--backbone", vit, "--out", tmp_path / "model"]
    assert run(*words, *options) == 0
    out, err = capfd.readouterr()
    result = msgspec.json.decode(out)
    assert result["videos"] == 6
    assert set(result["unreadable"]) == {"3.mp4", "5.mp4"}
    assert err.count("left out 3.mp4: empty file") == 1
    assert err.count("left out 5.mp4") == 1
    assert msgspec.json.decode((tmp_path / "model" / "unreadable.json").read_bytes()).keys() == {
        "3.mp4",
        "5.mp4",
    }
    assert [line["unreadable"] for line in metrics(tmp_path / "model")] == [2, 2]


def test_a_video_that_fails_later_changes_the_draws_of_no_other(
    spoilt: Path, vit: Path, tmp_path: Path, step_losses: list[dict[str, float]]
) -> None:
    """Batches of one video each: a bad video costs its own step, all others stay the same."""
    settings: dict[str, Any] = {
        "backbone": vit, "extract": {"workers": 0}, "epochs": 1, "batch_size": 1,
        "clips_per_set": 4, "standardise": False, "learning_rate": 0.0,
        "model": {"width": 32, "num_layers": 1, "dropout": 0.0},
    }  # fmt: skip
    api.pretrain_end_to_end(spoilt, tmp_path / "spoilt", **settings)
    some = list(step_losses)
    step_losses.clear()
    for number in (3, 5):
        write_video(spoilt / f"{number}.mp4", seed=number, seconds=0.5)
    api.pretrain_end_to_end(spoilt, tmp_path / "whole", **settings)
    assert len(some) == 6
    assert [step for step in step_losses if step in some] == some


@pytest.mark.parametrize("drop", [1.0, 0.96, -0.1])
def test_too_many_dropped_tokens_are_refused_in_one_line(
    drop: float, vit: Path, small_videos: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["pretrain", "--end-to-end", small_videos, "--backbone", vit, "--out", tmp_path / "m"]
    assert run(*words, f"--drop={drop}") == 2
    assert capfd.readouterr().err == (
        f"clipset: drop must lie between 0 and 0.95, got {drop}: some tokens must remain\n"
    )
    assert not (tmp_path / "m").exists()


def test_bad_input_is_one_line_each(
    vit: Path, small_videos: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def refused(*words: object) -> str:
        assert run("pretrain", *words, "--out", tmp_path / "model", "--set=extract.workers=0") != 0
        [line] = capfd.readouterr().err.splitlines()
        return line

    line = refused("--end-to-end", small_videos, "--backbone", "efficientnet_lite0")
    assert "efficientnet_lite0 cannot be trained end to end: it is no video transformer" in line
    (tmp_path / "empty").mkdir()
    assert "no videos" in refused("--end-to-end", tmp_path / "empty", "--backbone", vit)
    assert "need --end-to-end" in refused(small_videos, "--drop", "0.5")
    line = refused(
        "--end-to-end", small_videos, "--backbone", vit, "--set=pretrain.validate_every=1"
    )
    assert "validate_every needs" in line
    line = refused(
        "--end-to-end", small_videos, "--backbone", vit, "--set=pretrain.batch_from=similar"
    )
    assert "batches of similar videos need the stored features" in line
    write_video(tmp_path / "one" / "a.mp4")
    line = refused("--end-to-end", tmp_path / "one", "--backbone", vit)
    assert "at least 2 videos, got 1" in line
    for name in "ab":
        (tmp_path / "bad" / f"{name}.mp4").parent.mkdir(exist_ok=True)
        (tmp_path / "bad" / f"{name}.mp4").write_text("no video")
    words = ["--end-to-end", tmp_path / "bad", "--backbone", vit, "--epochs=1"]
    assert run("pretrain", *words, "--out", tmp_path / "model", "--set=extract.workers=0") == 2
    assert "2 of 2 videos cannot be read (a.mp4: " in capfd.readouterr().err


def test_a_batch_that_does_not_fit_is_refused_before_the_first_step(
    catalog: Catalog, vit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_module, "available_memory", lambda: 6_000_000)
    with pytest.raises(TrainingError, match=r"batches of 5 videos .* batch_size \d would fit"):
        pretrain_end_to_end(catalog, tmp_path, cutting(vit), TINY)


def test_layers_and_other_networks_are_no_transformer_to_train(
    catalog: Catalog, vit: Path, tmp_path: Path
) -> None:
    with pytest.raises(BackboneError, match="cannot be trained end to end"):
        pretrain_end_to_end(catalog, tmp_path, replace(cutting(vit), layers="0,1"), TINY)
