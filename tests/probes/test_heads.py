"""A grid of heads trained at once is the same as its heads trained one after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn, optim

from clipset.model.config import ModelConfig
from clipset.probes.attentive import AttentiveStack
from clipset.probes.base import ProbeSetup
from clipset.probes.config import EvaluateConfig, ProbeTraining
from clipset.probes.heads import (
    EPSILON,
    HeadClassifier,
    HeadGrid,
    HeadSettings,
    head_axes,
    loss_gradient,
)
from clipset.probes.inputs import ClipInputs, HeadInputs, divide_into_sets
from clipset.probes.linear import LinearProbe, LinearStack
from clipset.probes.mlp import MLPStack
from clipset.probes.search import ValidationCurves, count_epochs, grid_points, score_outputs
from clipset.probes.task import EvaluationTask, HeldOut, LabelledVideos
from clipset.recipe import load_settings
from clipset.representation import concat_parts
from clipset.sets.batch import ClipBatch, mean_over_clips
from clipset.sets.sampling import draw_batches
from clipset.sets.stored_clips import equal_chunks
from clipset.training.checkpoint import ScaleModel
from clipset.training.optim import cosine_schedule

CONFIG = ProbeTraining(epochs=6, batch_sizes=(16,), num_clips=4)
FULL = replace(
    CONFIG,
    head_learning_rates=(1e-3, 3e-3, 1e-2, 3e-2),
    optimizers=("adamw", "sgd"),
    batch_norm=(True, False),
)
KINDS: dict[str, Any] = {
    "linear": LinearStack,
    "mlp": partial(MLPStack, hidden=8),
    "attentive": AttentiveStack,
}


def inputs(*, numbers: bool = False, videos: int = 40) -> HeadInputs:
    generator = Generator().manual_seed(0)
    classes = torch.arange(videos) % 4
    features = torch.randn(videos, 6, 10, generator=generator) + classes[:, None, None]
    return head_inputs(features, classes.float() - 1.5 if numbers else classes)


def head_inputs(features: Tensor, labels: Tensor, valid: Tensor | None = None) -> HeadInputs:
    clips = ClipBatch(features, features[..., :6], valid)
    sets = divide_into_sets(clips, CONFIG.num_clips, Generator().manual_seed(5))
    return HeadInputs(clips, labels, sets, ClipInputs(None))


def train(
    kind: str, settings: Sequence[HeadSettings], data: HeadInputs,
    config: ProbeTraining = CONFIG, drop_after: dict[int, set[int]] | None = None,
) -> HeadGrid:  # fmt: skip
    """All epochs of a grid; after some of them, only some heads are kept."""
    num_outputs = 1 if data.labels.is_floating_point() else 4
    grid = HeadGrid(
        KINDS[kind], data, dict(enumerate(settings)), video_index=torch.arange(len(data.labels)),
        num_outputs=num_outputs, num_epochs=config.epochs, seed=3,
    )  # fmt: skip
    for epoch in range(1, config.epochs + 1):
        grid.run_epoch()
        if drop_after and epoch in drop_after:
            grid.keep(drop_after[epoch])
    return grid


def first_clips(data: HeadInputs) -> Tensor:
    assert isinstance(data.clips, ClipBatch)
    return data.clips.features[:, :3]


@pytest.mark.parametrize("numbers", [False, True], ids=["classes", "numbers"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_grid_at_once_equals_its_heads_one_after_another(kind: str, numbers: bool) -> None:
    config = replace(FULL, head_learning_rates=(1e-3, 1e-2), batch_sizes=(8, 16))
    settings, data = grid_points(HeadSettings, head_axes(config)), inputs(numbers=numbers)
    assert len(settings) == 64
    together = train(kind, settings, data, config).predict(first_clips(data))
    for number, setting in list(enumerate(settings))[::9]:
        alone = train(kind, (setting,), data, config).predict(first_clips(data))[0]
        torch.testing.assert_close(together[number], alone, atol=1e-4, rtol=0, equal_nan=True)


def test_a_linear_head_is_a_plain_linear_layer_after_batch_norm() -> None:
    """The same batches through torch's own modules and optimiser."""
    data = inputs()
    settings = tuple(
        HeadSettings(learning_rate=r, weight_decay=d, batch_size=16)
        for r in (1e-3, 1e-2, 0.1)
        for d in (0.01, 1.0)
    )
    grid = train("linear", settings, data)
    for number, setting in enumerate(settings):
        layer = plain_loop(data, setting)
        stack = grid.groups[0].stack.weights
        torch.testing.assert_close(stack["w"][number], layer.weight.data, atol=1e-4, rtol=0)
        torch.testing.assert_close(stack["bias"][number], layer.bias.data, atol=1e-4, rtol=0)


@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_heads_divide_by_the_same_deviation_in_training_and_in_prediction(scale: float) -> None:
    """That of torch's batch norm, which matters where features hardly vary."""
    features = scale * torch.randn(40, 4, 10, generator=Generator().manual_seed(0))
    data = head_inputs(features, torch.arange(40) % 4)
    settings = (HeadSettings(learning_rate=1e-2, weight_decay=0.0, batch_size=16),)
    grid = train("linear", settings, data)
    normed = F.batch_norm(features.flatten(0, 1), None, None, training=True).view_as(features)
    torch.testing.assert_close(grid._normalise(features), normed)
    expected = grid.groups[0].stack.predict(normed, False)[0]
    torch.testing.assert_close(grid.predict(features)[0], expected)
    torch.testing.assert_close(grid._normalise(features[:1, :1]), normed[:1, :1])
    classifier = HeadClassifier(grid.only_head(), ClipInputs(None), LinearStack)
    outputs = classifier(data.clips).softmax(dim=-1).mean(dim=1)
    torch.testing.assert_close(outputs, expected)


def plain_loop(data: HeadInputs, setting: HeadSettings) -> nn.Linear:
    norm, layer = nn.BatchNorm1d(10, affine=False), nn.Linear(10, 4)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    groups = [
        {"params": [layer.weight], "weight_decay": setting.weight_decay},
        {"params": [layer.bias], "weight_decay": 0.0},
    ]
    optimiser = optim.AdamW(groups, lr=setting.learning_rate, eps=EPSILON)
    generator = Generator().manual_seed(3)
    step = 0
    for _ in range(CONFIG.epochs):
        for videos in draw_batches(40, 16, generator):
            for group in optimiser.param_groups:
                group["lr"] = cosine_schedule(
                    step, 18, peak=setting.learning_rate, warmup_fraction=0.05
                )
            rows = data.draw(videos, generator).flatten(0, 1)
            truth = data.labels[videos].repeat_interleave(CONFIG.num_clips)
            loss = F.cross_entropy(layer(norm(rows)), truth)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            step += 1
    return layer


def test_heads_that_are_left_train_on_as_if_none_had_been_dropped() -> None:
    data = inputs()
    settings = grid_points(HeadSettings, head_axes(FULL))
    whole = train("linear", settings, data).predict(first_clips(data))
    fewer = train("linear", settings, data, drop_after={2: {1, 30, 60}}).predict(first_clips(data))
    assert set(fewer) == {1, 30, 60}
    for number, outputs in fewer.items():
        torch.testing.assert_close(outputs, whole[number], atol=1e-4, rtol=0)


def test_statistics_are_those_of_all_random_clips() -> None:
    data = inputs()
    mean, std = data.statistics(torch.arange(20))
    rows = data.clips.features[:20].flatten(0, 1)
    torch.testing.assert_close(mean, rows.mean(dim=0))
    torch.testing.assert_close(std, rows.std(dim=0, correction=0))


@pytest.mark.parametrize("kind", KINDS)
def test_what_fills_up_for_clips_that_are_not_there_is_never_seen(kind: str) -> None:
    """Whatever stands in the place of missing clips, training and predictions are the same."""
    data = inputs()
    valid = torch.ones(40, 6, dtype=torch.bool)
    valid[::3, 4:] = False
    features = data.clips.features
    answers = []
    for filling in (0.0, 99.0):
        filled = head_inputs(features.masked_fill(~valid[..., None], filling), data.labels, valid)
        settings = (HeadSettings(learning_rate=1e-2, weight_decay=0.1, batch_size=16),)
        grid = train(kind, settings, filled)
        chunks = equal_chunks(filled.clips, 7)
        answers.append(torch.cat([grid.predict(clips.features)[0] for _, clips in chunks]))
    torch.testing.assert_close(*answers, atol=1e-5, rtol=0)
    whole = mean_over_clips(features, valid)
    torch.testing.assert_close(whole[0], features[0, :4].mean(dim=0))
    torch.testing.assert_close(whole[1], features[1].mean(dim=0))


def small_model() -> ScaleModel:
    torch.manual_seed(0)
    return ScaleModel(10, ModelConfig(width=32, num_layers=1)).eval()


def labelled() -> LabelledVideos:
    boxes = torch.rand(40, 6, 6, generator=Generator().manual_seed(1))
    clips = ClipBatch(inputs().clips.features, boxes)
    return LabelledVideos(clips, clips, torch.arange(40) % 4, (None,) * 40)


def test_cached_sets_have_no_clip_twice_and_every_division_has_every_clip() -> None:
    clips = labelled().random
    sets = divide_into_sets(clips, 3, Generator().manual_seed(0), num_divisions=2)
    assert sets.shape == (40, 4, 3)
    halves = sets.view(40, 2, 6).sort(dim=-1).values
    assert torch.equal(halves, torch.arange(6).expand(40, 2, 6))
    assert divide_into_sets(clips, 4, Generator(), num_divisions=1).shape == (40, 1, 4)
    assert divide_into_sets(clips, 99, Generator()).shape == (40, 4, 6)


@pytest.mark.parametrize("part", ["set", "token"])
def test_a_drawn_set_comes_with_its_own_tokens(part: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    videos, model = labelled(), small_model()
    monkeypatch.setattr(LinearProbe, "token", part)
    task = EvaluationTask(tuple("abcd"), videos, HeldOut((), videos.regular, videos.classes))
    config = EvaluateConfig(training=replace(CONFIG, num_clips=3))
    setup = ProbeSetup(task=task, model=model, config=config, seed=0)
    data = LinearProbe(setup, "scale").inputs
    drawn = torch.tensor([5, 7, 5])
    rows = data.draw(drawn, Generator().manual_seed(4))
    assert rows.shape == (3, 3, 42)
    which = torch.randint(8, (3,), generator=Generator().manual_seed(4))
    for row, video, index in zip(rows, drawn, which, strict=True):
        picked = data.sets[video, index]
        random = videos.random
        clips = ClipBatch(random.features[video, picked][None], random.boxes[video, picked][None])
        tokens = concat_parts(model.encoder, clips, (part,))
        by_hand = torch.cat([clips.features, tokens], dim=-1)[0]
        torch.testing.assert_close(row, by_hand.detach(), atol=1e-5, rtol=1e-4)


def test_tokens_of_sets_are_cached_without_gradients() -> None:
    clips = labelled().random
    sets = divide_into_sets(clips, 3, Generator())
    encoder = small_model().encoder
    tokens = HeadInputs(clips, torch.arange(40) % 4, sets, ClipInputs(encoder)).tokens
    assert tokens is not None
    assert tokens.shape == (40, 8, 1, 32)
    assert not tokens.requires_grad


def test_the_weaker_half_is_dropped_after_a_quarter_and_a_half() -> None:
    assert ValidationCurves(2, 40, 2).halving_epochs == {10, 20}
    assert ValidationCurves(2, 4, 2).halving_epochs == {1, 2}
    assert ValidationCurves(2, 1, 2).halving_epochs == set()
    assert ValidationCurves(2, 40, 0).halving_epochs == set()
    curves = ValidationCurves(4, 2, 1)
    curves.scores = [[(0.5, 0.0)], [(0.7, -1.0), (0.2, 0.0)], [(0.7, -0.5)], [(0.1, 0.0)]]
    assert curves.better_half(range(4)) == {1, 2}
    assert curves.best(early_stopping=True) == (2, 1)
    assert curves.best(early_stopping=False) == (1, 2)


def test_a_head_that_diverged_is_never_selected() -> None:
    truth = torch.tensor([0, 0])
    lost = score_outputs(torch.full((2, 2), torch.nan), truth)
    assert lost < score_outputs(torch.tensor([[0.0, 1.0], [0.0, 1.0]]), truth)
    assert score_outputs(torch.tensor([[torch.inf]]), torch.tensor([1.0]))[0] == -torch.inf


def test_long_training_ends_after_enough_steps_but_never_within_the_first_epoch() -> None:
    config = ProbeTraining(epochs=40, batch_sizes=(64,))
    assert count_epochs(180, config, 1000) == 40
    assert count_epochs(9537, config, 1000) == 7
    assert count_epochs(240_000, config, 1000) == 1
    assert count_epochs(9537, replace(config, batch_sizes=(512, 64)), 1000) == 7
    assert count_epochs(240_000, load_settings(EvaluateConfig, "paper").training, 10**6) == 60


def test_heads_that_are_sure_of_themselves_multiply_no_denormal_numbers() -> None:
    """Processors are many times slower with them, and probabilities so small move no weight."""
    answers = 60.0 * torch.randn(2, 3, 4, 9, generator=Generator().manual_seed(0))
    wanted = torch.tensor([1, 5, 8])[None, :, None].expand(2, 3, 4)
    found = loss_gradient(answers, wanted, 1.0)
    plain = answers.softmax(dim=-1) - F.one_hot(wanted, 9)
    torch.testing.assert_close(found, plain, atol=1e-6, rtol=0)
    assert not bool(((found != 0) & (found.abs() < 1e-13)).any())
