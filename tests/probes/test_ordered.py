"""The ridge classifier of the clips in order: solved by videos or by channels, it is the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Generator, Tensor

from clipset.evaluation.suite import run_suite
from clipset.model.config import ModelConfig
from clipset.model.encoder import SetEncoder
from clipset.probes import ordered
from clipset.probes.config import EvaluateConfig, ProbeName, ProbeTraining
from clipset.probes.inputs import VideoInputs
from clipset.probes.ordered import Ridge
from clipset.probes.task import EvaluationTask, HeldOut, LabelledVideos
from clipset.sets.batch import ClipBatch
from clipset.training.checkpoint import ScaleModel

DIM, ENCODER_WIDTH = 8, 32
WIDTH = 9 * DIM  # of a time course
ROWS: tuple[ProbeName, ...] = ("ordered", "scale_ordered")


def make_labels(num_videos: int) -> Tensor:
    """Classes of unequal size."""
    return torch.tensor([0, 0, 1, 0, 0, 1, 0, 2]).repeat(num_videos)[:num_videos]


def make_clips(labels: Tensor, seed: int) -> ClipBatch:
    generator = Generator().manual_seed(seed)
    features = torch.randn(len(labels), 8, DIM, generator=generator)
    features[..., :3] += torch.eye(3)[labels][:, None]
    return ClipBatch(features, torch.zeros(len(labels), 8, 6))


def make_ridge(num_videos: int, *, regression: bool) -> Ridge:
    labels = make_labels(num_videos)
    clips = make_clips(labels, 0)
    targets = clips.features[:, 0, 3] + labels if regression else labels
    return Ridge(VideoInputs(None, has_course=True), clips, targets, 1 if regression else 3)


@pytest.mark.parametrize("regression", [False, True], ids=["classes", "targets"])
@pytest.mark.parametrize("left_out", [4096, 30], ids=["all left out", "some left out"])
@pytest.mark.parametrize("num_videos", [WIDTH - 4, WIDTH + 4, 3 * WIDTH])
def test_ridge_is_the_same_by_its_videos_and_by_its_channels(
    num_videos: int, left_out: int, regression: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ordered, "MAX_LEFT_OUT", left_out)
    monkeypatch.setattr(ordered, "LEFT_OUT_BLOCK", 25)
    monkeypatch.setattr(ordered, "BLOCK_SIZE", 50)
    queries = VideoInputs(None, has_course=True)(make_clips(make_labels(20), 1))
    predictions: list[list[Tensor]] = []
    for is_dual in (False, True):
        monkeypatch.setattr(Ridge, "is_dual", is_dual)
        ridge = make_ridge(num_videos, regression=regression)
        predictions.append([])
        for equal_parts in (True, False, True):
            vectors = ridge.standardise(queries, equal_parts)
            for penalty in ordered.PENALTIES:
                weight = ridge.solve(penalty, equal_parts)
                predictions[-1].append(ridge.predict(weight, vectors, 10.0))
    torch.testing.assert_close(*map(torch.stack, predictions), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("num_videos", [WIDTH - 4, WIDTH + 4])
def test_scores_are_as_large_as_those_of_left_out_videos_with_few_and_many_videos(
    num_videos: int,
) -> None:
    """The factor is that of a plain loop which leaves out one video after another."""
    ridge = make_ridge(num_videos, regression=False)
    labels = make_labels(num_videos)
    vectors = ridge.standardise(ridge.inputs(make_clips(labels, 0)), True).double()
    targets = torch.eye(3).double()[labels]
    targets -= targets.mean(dim=0)
    penalty = vectors.square().sum() / num_videos * torch.eye(WIDTH)

    def solve(videos: Tensor) -> Tensor:
        gram = vectors[videos].T @ vectors[videos]
        return torch.linalg.solve(gram + penalty, vectors[videos].T @ targets[videos])

    everything = torch.arange(num_videos)
    scores = torch.stack([vectors[v] @ solve(everything[everything != v]) for v in everything])
    slope = (scores * targets).sum() / scores.square().sum()
    assert slope > 1.01
    expected = slope * solve(everything)
    torch.testing.assert_close(ridge.solve(1.0, True).double(), expected, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("num_videos", [60, 90, 110, 150, 400])
def test_without_tokens_both_rows_of_clips_in_order_are_equal_for_any_number_of_videos(
    num_videos: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where there are fewer videos than channels with tokens, and more than without."""
    encode_subset = SetEncoder.encode_subset

    def zero(self: SetEncoder, *inputs: Any) -> tuple[Tensor, Tensor]:
        clip_tokens, set_token = encode_subset(self, *inputs)
        return torch.zeros_like(clip_tokens), torch.zeros_like(set_token)

    monkeypatch.setattr(SetEncoder, "encode_subset", zero)
    labels, test_labels = make_labels(num_videos), make_labels(80)
    clips = make_clips(labels, 0)
    task = EvaluationTask(
        tuple("abc"),
        LabelledVideos(clips, clips, labels, (None,) * num_videos),
        HeldOut(tuple(map(str, range(80))), make_clips(test_labels, 1), test_labels),
    )
    torch.manual_seed(0)
    model = ScaleModel(DIM, ModelConfig(width=ENCODER_WIDTH, num_layers=1)).eval()
    config = EvaluateConfig(num_seeds=1, training=ProbeTraining(epochs=1))
    suite = run_suite(task, model, config, probes=ROWS)
    baseline, scale = suite.results
    assert baseline.settings == scale.settings
    assert baseline.num_candidates == scale.num_candidates == 40
    one, two = (suite.predictions.outputs[result.key] for result in suite.results)
    np.testing.assert_allclose(one, two, atol=1e-3)
    assert baseline.value == scale.value


def test_the_products_of_many_videos_can_be_solved_although_they_are_rounded() -> None:
    """The deviations of a video add up to zero, so that the matrix is singular."""
    ridge = make_ridge(4000, regression=False)
    ridge.num_videos = 10**9  # as if there were as many: the penalty is less than the rounding
    for equal_parts in (False, True):
        assert ridge.solve(min(ordered.PENALTIES), equal_parts).isfinite().all()
