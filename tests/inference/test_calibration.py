"""Probabilities mean what they say."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from clipset.evaluation.calibration import (
    ReliabilityBin,
    apply_temperature,
    calibration_error,
    fit_temperature,
    prediction_calibration_error,
    reliability,
)


def calibrated_outputs(
    count: int, classes: int, sharpness: float, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Classes drawn from known probabilities, and what an over-sure classifier says of them."""
    generator = torch.Generator().manual_seed(seed)
    true = (2 * torch.randn(count, classes, generator=generator)).softmax(dim=1)
    drawn = torch.multinomial(true, 1, generator=generator).squeeze(1)
    return (true.log() * sharpness).softmax(dim=1), drawn


@pytest.mark.parametrize("sharpness", [0.5, 1.0, 3.0])
def test_the_temperature_takes_back_what_made_a_classifier_too_sure(sharpness: float) -> None:
    outputs, classes = calibrated_outputs(6000, 5, sharpness, seed=0)
    assert fit_temperature(outputs, classes) == pytest.approx(sharpness, rel=0.08)


def test_calibrated_probabilities_are_right_as_often_as_they_say() -> None:
    outputs, classes = calibrated_outputs(6000, 5, 3.0, seed=1)
    temperature = fit_temperature(outputs, classes)
    fresh, truth = calibrated_outputs(6000, 5, 3.0, seed=2)
    assert prediction_calibration_error(fresh, truth) > 0.15
    assert prediction_calibration_error(apply_temperature(fresh, temperature), truth) < 0.03


def test_the_temperature_changes_no_decision() -> None:
    outputs, _ = calibrated_outputs(200, 5, 1.0, seed=3)
    for temperature in (0.1, 7.0):
        tempered = apply_temperature(outputs, temperature)
        assert torch.equal(tempered.argmax(dim=1), outputs.argmax(dim=1))
        torch.testing.assert_close(tempered.sum(dim=1), torch.ones(200))


def test_a_few_videos_without_a_mistake_do_not_mean_certainty() -> None:
    classes = torch.arange(4) % 2
    outputs = 0.5 + 0.4 * (torch.nn.functional.one_hot(classes, 2) - 0.5)  # 0.7 for the truth
    sure = apply_temperature(outputs, fit_temperature(outputs, classes)).max(dim=1).values
    assert 0.85 < float(sure.max()) < 0.95  # (4 + 1.5) / (4 + 2)


def test_the_error_is_the_one_of_a_plain_loop() -> None:
    rng = np.random.default_rng(0)
    confidence = rng.random(500)
    right = (rng.random(500) < confidence**2).astype(np.float64)
    expected = 0.0
    for place in range(10):
        inside = [k for k in range(500) if place / 10 <= confidence[k] < (place + 1) / 10]
        gap = np.mean([confidence[k] for k in inside]) - np.mean([right[k] for k in inside])
        expected += len(inside) / 500 * abs(gap)
    bins = reliability(confidence, right)
    assert calibration_error(bins) == pytest.approx(expected)
    assert sum(each.count for each in bins) == 500


def test_a_confidence_of_one_is_in_the_last_bin_and_empty_bins_are_left_out() -> None:
    [only] = reliability(np.array([1.0, 0.95]), np.array([1.0, 0.0]))
    assert only == ReliabilityBin(low=0.9, high=1.0, count=2, confidence=0.975, accuracy=0.5)
    assert calibration_error([]) == 0.0
