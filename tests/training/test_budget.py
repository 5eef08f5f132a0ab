"""Pre-training without a number of epochs ends when it stops paying."""

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.training.test_pretrain import SMALL, weights

from clipset.features.store import FeatureStore
from clipset.recipe import load_settings
from clipset.training import budget, trainer
from clipset.training.budget import (
    count_max_epochs,
    count_planned_epochs,
    find_plateau,
    hold_out,
    is_check_due,
    is_flat,
)
from clipset.training.checkpoint import read_card
from clipset.training.config import PretrainConfig
from clipset.training.optim import cosine_schedule
from clipset.training.pretrain import pretrain, ssl_videos

OPEN = replace(SMALL, epochs=None)


def lines(folder: Path) -> list[dict[str, float]]:
    return [msgspec.json.decode(x) for x in (folder / "metrics.jsonl").read_bytes().splitlines()]


def test_only_recommended_has_no_number_of_epochs() -> None:
    presets = {name: load_settings(PretrainConfig, name) for name in ("paper", "official")}
    assert {name: config.epochs for name, config in presets.items()} == {
        "paper": 500,
        "official": 200,
    }
    assert PretrainConfig().epochs is None


def test_more_videos_get_more_steps_but_less_than_in_proportion() -> None:
    videos = (20, 700, 3000, 240_000)
    totals = [count_max_epochs(n, -(-n // 512)) * -(-n // 512) for n in videos]
    assert totals == sorted(totals)
    assert totals[0] == budget.FEWEST_STEPS
    assert totals[-1] < totals[-2] * 240_000 / 3000


def curve(*losses: float) -> list[tuple[int, float]]:
    return [(epoch, loss) for epoch, loss in enumerate(losses, start=1)]


def test_the_learning_rate_falls_when_the_loss_is_flat() -> None:
    falling = curve(*(10 - 0.1 * epoch for epoch in range(60)))
    assert find_plateau(falling, 100) == 70
    assert count_planned_epochs(70, 100) == 100
    stopped = falling[:20] + [(20 + epoch, 8.1) for epoch in range(1, 30)]
    plateau = find_plateau(stopped, 100)
    assert 25 <= plateau <= 40
    assert count_planned_epochs(plateau, 100) == -(-plateau * 10 // 7)
    rising = falling[:20] + [(20 + epoch, 8.1 + epoch) for epoch in range(1, 30)]
    assert find_plateau(rising, 100) == plateau
    assert not is_flat([10.0, 9.0, 8.0, 7.0, 6.0, 5.0])


def test_a_decision_does_not_depend_on_what_comes_after() -> None:
    """So a training that is resumed decides as one that is not."""
    rng = np.random.default_rng(0)
    losses = curve(*(5 * np.exp(-np.arange(80) / 8) + rng.normal(0, 0.05, 80)).tolist())
    plateau = find_plateau(losses, 200)
    assert {find_plateau(losses[:end], 200) for end in range(plateau, 80)} == {plateau}


def test_the_learning_rate_stays_at_its_peak_until_it_falls_to_zero() -> None:
    rates = [
        cosine_schedule(step, 100, peak=2.0, warmup_fraction=0.1, decay_start=70)
        for step in range(101)
    ]
    assert rates[5] == 1.0
    assert set(rates[10:71]) == {2.0}
    assert rates[70:] == sorted(rates[70:], reverse=True)
    assert rates[100] == pytest.approx(0.0, abs=1e-12)


def test_held_out_videos_are_the_same_fraction_of_each_group() -> None:
    groups = np.repeat([0, 1, 2], [100, 200, 5])
    held_out = hold_out(groups, seed=0)
    assert np.bincount(groups[held_out], minlength=3).tolist() == [10, 20, 0]
    assert hold_out(groups, seed=0).tolist() == held_out.tolist()
    assert hold_out(groups, seed=1).tolist() != held_out.tolist()
    assert len(hold_out(np.zeros(159, int), seed=0)) == 0  # too few to tell anything
    assert len(hold_out(np.zeros(240_000, int), seed=0)) == budget.MAX_HELD_OUT


@pytest.mark.parametrize("size", [12, 15, 19])
def test_held_out_videos_of_small_groups_have_negatives(size: int) -> None:
    groups = np.repeat(np.arange(20), size)
    held_out = hold_out(groups, seed=0)
    assert len(held_out) == 2 * (len(groups) // 20)
    assert set(np.bincount(groups[held_out]).tolist()) <= {0, 2}
    assert len(hold_out(np.repeat(np.arange(2000), 15), seed=0)) == budget.MAX_HELD_OUT


def test_a_group_keeps_two_videos_to_contrast() -> None:
    groups = np.repeat(np.arange(20), [29] * 10 + [3] * 10)
    held_out = hold_out(groups, seed=0)
    assert len(held_out)
    assert set(groups[held_out]) <= set(range(10))


@pytest.mark.parametrize("max_epochs", [1, 7, 39, 40, 41, 60, 79, 80, 500])
def test_the_held_out_loss_is_measured_at_most_40_times_and_may_end_a_training_halfway(
    max_epochs: int,
) -> None:
    checked = [epoch for epoch in range(1, max_epochs + 1) if is_check_due(epoch, max_epochs)]
    assert checked[0] == 1
    assert len(checked) == min(max_epochs, budget.NUM_CHECKS)
    flat = [(epoch, 1.0) for epoch in checked]
    plateau = find_plateau(flat, max_epochs)
    assert plateau >= 0.45 * max_epochs


@pytest.fixture
def small_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """30 epochs of the small store, and a few held-out videos."""
    monkeypatch.setattr(budget, "STEPS_PER_ROOT_VIDEO", 1)
    monkeypatch.setattr(budget, "FEWEST_STEPS", 60)
    monkeypatch.setattr(budget, "HELD_OUT_PART", 0.3)
    monkeypatch.setattr(budget, "MIN_HELD_OUT", 3)
    monkeypatch.setattr(budget, "MIN_CHECKS", 9)


@pytest.mark.usefixtures("small_budget")
def test_training_ends_early_and_the_card_says_so(
    small_store: FeatureStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(budget, "is_flat", lambda _: False)
    whole = pretrain(small_store, tmp_path / "whole", OPEN, seed=3).card
    monkeypatch.setattr(budget, "is_flat", lambda _: True)
    pretrain(small_store, tmp_path / "early", OPEN, seed=3)
    early = read_card(tmp_path / "early")
    assert read_card(tmp_path / "whole").steps == 60
    assert early.steps < 40
    assert "held-out training videos was flat" in capsys.readouterr().err
    assert early.videos + early.held_out == len(ssl_videos(small_store, "train"))
    assert (whole.videos, whole.held_out) == (early.videos, early.held_out)
    checked = [line for line in lines(tmp_path / "whole") if "validation_loss" in line]
    assert [line["epoch"] for line in checked] == [e for e in range(1, 31) if is_check_due(e, 30)]
    rates = [line["learning_rate"] for line in lines(tmp_path / "early")]
    assert rates[-1] < 0.2 * max(rates)


@pytest.mark.usefixtures("small_budget")
def test_a_training_without_epochs_that_was_stopped_ends_with_the_same_weights(
    small_store: FeatureStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "is_flat", lambda losses: len(losses) > 11)
    monkeypatch.setattr(trainer, "CHECKPOINT_SECONDS", 0.0)
    pretrain(small_store, tmp_path / "whole", OPEN)
    epoch = trainer.PretrainingRun._epoch

    def stop(run: trainer.PretrainingRun) -> trainer.Metrics:
        if run.epoch == 14:  # the learning rate has begun to fall
            raise KeyboardInterrupt
        return epoch(run)

    monkeypatch.setattr(trainer.PretrainingRun, "_epoch", stop)
    with pytest.raises(KeyboardInterrupt):
        pretrain(small_store, tmp_path / "stopped", OPEN)
    monkeypatch.setattr(trainer.PretrainingRun, "_epoch", epoch)
    pretrain(small_store, tmp_path / "stopped", OPEN)
    assert weights(tmp_path / "stopped") == weights(tmp_path / "whole")
    assert len(lines(tmp_path / "stopped")) == len(lines(tmp_path / "whole"))
