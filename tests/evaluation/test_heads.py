"""A grid of heads trained at once is the same as its heads trained one after another."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn, optim

from clipset.evaluation.config import ProbeTraining
from clipset.evaluation.heads import (
    EPSILON,
    HeadGrid,
    HeadInputs,
    HeadSetting,
    fit_heads,
    list_settings,
)
from clipset.evaluation.inputs import divide_into_sets, encode_sets, set_inputs
from clipset.evaluation.selection import best_of, count_epochs, rungs, score, survivors
from clipset.evaluation.stacks import AttentiveStack, LinearStack, MLPStack, slopes
from clipset.evaluation.task import LabelledVideos
from clipset.model.config import ModelConfig
from clipset.model.encoder import SetEncoder
from clipset.representation import concat_parts
from clipset.sets.batch import ClipBatch, mean_over_clips
from clipset.sets.sampling import draw_batches
from clipset.training.optim import cosine_schedule

CONFIG = ProbeTraining(epochs=6, batch_size=16, num_clips=4)
KINDS: dict[str, Any] = {
    "linear": LinearStack,
    "mlp": partial(MLPStack, hidden=8),
    "attentive": partial(AttentiveStack, queries=2),
}


def inputs(*, numbers: bool = False, videos: int = 40) -> HeadInputs:
    generator = Generator().manual_seed(0)
    classes = torch.arange(videos) % 4
    features = torch.randn(videos, 6, 10, generator=generator) + classes[:, None, None]
    wanted = classes.float() - 1.5 if numbers else classes
    return HeadInputs(features, features[:, :3], wanted)


def train(
    kind: str, settings: tuple[HeadSetting, ...], data: HeadInputs, config: ProbeTraining = CONFIG
) -> HeadGrid:
    outputs = 1 if data.wanted.is_floating_point() else 4
    return fit_heads(
        KINDS[kind], data, settings, config, videos=torch.arange(len(data.wanted)),
        outputs=outputs, schedule=config.epochs, epochs=config.epochs, seed=3,
    )  # fmt: skip


@pytest.mark.parametrize("numbers", [False, True], ids=["classes", "numbers"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_grid_at_once_equals_its_heads_one_after_another(kind: str, numbers: bool) -> None:
    config = ProbeTraining(
        epochs=6, batch_size=16, num_clips=4, head_learning_rates=(1e-3, 1e-2),
        optimisers=("adamw", "sgd"), norms=(True, False), dropouts=(0.0, 0.3),
    )  # fmt: skip
    settings, data = list_settings(config), inputs(numbers=numbers)
    assert len(settings) == 32
    together = train(kind, settings, data, config).answer(data.regular)
    for number, setting in list(enumerate(settings))[::5]:
        alone = train(kind, (setting,), data, config).answer(data.regular)[0]
        torch.testing.assert_close(together[number], alone, atol=1e-4, rtol=0, equal_nan=True)


def test_a_linear_head_is_a_plain_linear_layer_after_batch_norm() -> None:
    """The same batches through torch's own modules and optimiser."""
    data = inputs()
    settings = tuple(HeadSetting(rate=r, decay=d) for r in (1e-3, 1e-2, 0.1) for d in (0.01, 1.0))
    grid = train("linear", settings, data)
    for number, setting in enumerate(settings):
        layer = plain_loop(data, setting)
        stack = grid.groups[0].stack.weights
        torch.testing.assert_close(stack["w"][number], layer.weight.data, atol=1e-4, rtol=0)
        torch.testing.assert_close(stack["bias"][number], layer.bias.data, atol=1e-4, rtol=0)


def plain_loop(data: HeadInputs, setting: HeadSetting) -> nn.Linear:
    norm, layer = nn.BatchNorm1d(10, affine=False), nn.Linear(10, 4)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    groups = [
        {"params": [layer.weight], "weight_decay": setting.decay},
        {"params": [layer.bias], "weight_decay": 0.0},
    ]
    optimiser = optim.AdamW(groups, lr=setting.rate, eps=EPSILON)
    generator = Generator().manual_seed(3)
    step = 0
    for _ in range(CONFIG.epochs):
        for videos in draw_batches(40, CONFIG.batch, generator):
            for group in optimiser.param_groups:
                group["lr"] = cosine_schedule(step, 18, peak=setting.rate, warmup_fraction=0.05)
            rows = data.draw(videos, CONFIG.clips, generator).flatten(0, 1)
            truth = data.wanted[videos].repeat_interleave(CONFIG.clips)
            loss = F.cross_entropy(layer(norm(rows)), truth)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            step += 1
    return layer


def test_heads_that_are_left_train_on_as_if_none_had_been_dropped() -> None:
    data = inputs()
    settings = list_settings(ProbeTraining(optimisers=("adamw", "sgd"), norms=(True, False)))

    def drop_most(grid: HeadGrid, epoch: int) -> None:
        if epoch == 2:
            grid.keep({1, 30, 70})

    whole = train("linear", settings, data).answer(data.regular)
    fewer = fit_heads(
        LinearStack, data, settings, CONFIG, videos=torch.arange(40), outputs=4, schedule=6,
        epochs=6, seed=3, after_epoch=drop_most,
    ).answer(data.regular)  # fmt: skip
    assert set(fewer) == {1, 30, 70}
    for number, found in fewer.items():
        torch.testing.assert_close(found, whole[number], atol=1e-4, rtol=0)


def test_statistics_are_those_of_all_random_clips() -> None:
    data = inputs()
    mean, std = data.statistics(torch.arange(20))
    rows = data.features[:20].flatten(0, 1)
    torch.testing.assert_close(mean, rows.mean(dim=0))
    torch.testing.assert_close(std, rows.std(dim=0, correction=0))


@pytest.mark.parametrize("kind", KINDS)
def test_what_fills_up_for_clips_that_are_not_there_is_never_seen(kind: str) -> None:
    """Whatever stands in the place of missing clips, training and predictions are the same."""
    data = inputs()
    valid = torch.ones(40, 6, dtype=torch.bool)
    valid[::3, 4:] = False
    answers = []
    for filling in (0.0, 99.0):
        features = data.features.masked_fill(~valid[..., None], filling)
        partial_data = HeadInputs(features, features, data.wanted, valid=valid, regular_valid=valid)
        settings = (HeadSetting(rate=1e-2, decay=0.1),)
        answers.append(train(kind, settings, partial_data).answer(features, valid)[0])
    torch.testing.assert_close(*answers, atol=1e-5, rtol=0)
    whole = mean_over_clips(data.features, valid)
    torch.testing.assert_close(whole[0], data.features[0, :4].mean(dim=0))
    torch.testing.assert_close(whole[1], data.features[1].mean(dim=0))


def small_encoder() -> Any:
    torch.manual_seed(0)
    return SetEncoder(10, ModelConfig(width=32, num_layers=1)).eval()


def labelled() -> LabelledVideos:
    data = inputs()
    boxes = torch.rand(40, 6, 6, generator=Generator().manual_seed(1))
    clips = ClipBatch(data.features, boxes)
    return LabelledVideos(clips, clips, torch.arange(40) % 4, (None,) * 40)


def test_cached_sets_have_no_clip_twice_and_every_division_has_every_clip() -> None:
    clips = labelled().random
    config = ProbeTraining(num_clips=3, set_draws=2)
    sets = divide_into_sets(clips, config, Generator().manual_seed(0))
    assert sets.shape == (40, 4, 3)
    halves = sets.view(40, 2, 6).sort(dim=-1).values
    assert torch.equal(halves, torch.arange(6).expand(40, 2, 6))
    fewer = divide_into_sets(clips, ProbeTraining(num_clips=4, set_draws=1), Generator())
    assert fewer.shape == (40, 1, 4)
    assert divide_into_sets(clips, ProbeTraining(num_clips=99), Generator()).shape == (40, 4, 6)


@pytest.mark.parametrize("part", ["set", "token"])
def test_a_drawn_set_stands_next_to_its_own_tokens(part: Any) -> None:
    train, encoder = labelled(), small_encoder()
    data = set_inputs(train, encoder, ProbeTraining(num_clips=3, set_draws=2), part, seed=0)
    videos = torch.tensor([5, 7, 5])
    rows = data.draw(videos, 3, Generator().manual_seed(4))
    assert rows.shape == (3, 3, 42)
    which = torch.randint(4, (3,), generator=Generator().manual_seed(4))
    assert data.sets is not None
    for row, video, number in zip(rows, videos, which, strict=True):
        chosen = data.sets[video, number]
        clips = ClipBatch(
            train.random.features[video, chosen][None], train.random.boxes[video, chosen][None]
        )
        by_hand = concat_parts(encoder, clips, ("clip", part))[0]
        torch.testing.assert_close(row, by_hand.detach(), atol=1e-5, rtol=1e-4)


def test_tokens_of_sets_are_cached_without_gradients() -> None:
    train, encoder = labelled(), small_encoder()
    sets = divide_into_sets(train.random, ProbeTraining(num_clips=3), Generator())
    tokens: Tensor = encode_sets(encoder, train.random, sets, "set")
    assert tokens.shape == (40, 8, 1, 32)
    assert not tokens.requires_grad


def test_the_weaker_half_is_dropped_after_a_quarter_and_a_half() -> None:
    assert rungs(40, 2) == {10, 20}
    assert rungs(4, 2) == {1, 2}
    assert rungs(1, 2) == set()
    assert rungs(40, 0) == set()
    curves = {0: [(0.5, 0.0)], 1: [(0.7, -1.0), (0.2, 0.0)], 2: [(0.7, -0.5)], 3: [(0.1, 0.0)]}
    assert survivors(curves, curves) == {1, 2}
    assert best_of(curves) == (2, 1)


def test_a_head_that_diverged_is_never_chosen() -> None:
    truth = torch.tensor([0, 0])
    lost = score(torch.full((2, 2), torch.nan), truth)
    assert lost < score(torch.tensor([[0.0, 1.0], [0.0, 1.0]]), truth)
    assert score(torch.tensor([[torch.inf]]), torch.tensor([1.0]))[0] == -torch.inf


def test_long_training_ends_after_enough_steps_but_never_within_the_first_epoch() -> None:
    config = ProbeTraining(epochs=40, batch_size=64)
    assert count_epochs(180, config, 1000) == 40
    assert count_epochs(9537, config, 1000) == 7
    assert count_epochs(240_000, config, 1000) == 1


def test_heads_that_are_sure_of_themselves_multiply_no_denormal_numbers() -> None:
    """Processors are many times slower with them, and probabilities so small move no weight."""
    answers = 60.0 * torch.randn(2, 3, 4, 9, generator=Generator().manual_seed(0))
    wanted = torch.tensor([1, 5, 8])[None, :, None].expand(2, 3, 4)
    found = slopes(answers, wanted, 1.0)
    plain = answers.softmax(dim=-1) - F.one_hot(wanted, 9)
    torch.testing.assert_close(found, plain, atol=1e-6, rtol=0)
    assert not bool(((found != 0) & (found.abs() < 1e-13)).any())
