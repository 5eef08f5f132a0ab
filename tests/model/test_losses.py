"""The losses against plain loops written straight from the paper's equations."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from clipset.model.config import ModelConfig
from clipset.model.losses import LossTerm, set_contrastive_loss
from clipset.model.losses import masked_clip_loss as product_loss
from clipset.model.scale import ScaleNetwork


def unit(vector: Tensor) -> list[float]:
    numbers = vector.tolist()
    norm = math.sqrt(sum(x**2 for x in numbers))
    return [x / norm for x in numbers]


def dot(one: list[float], two: list[float]) -> float:
    return sum(x * y for x, y in zip(one, two, strict=True))


def one_way(a: list[list[float]], b: list[list[float]], i: int, temperature: float) -> float:
    """Equation 2."""
    right = math.exp(dot(a[i], b[i]) / temperature)
    return -math.log(right / sum(math.exp(dot(a[i], bj) / temperature) for bj in b))


def symmetric(a: list[list[float]], b: list[list[float]], i: int, temperature: float) -> float:
    """Equation 3."""
    return one_way(a, b, i, temperature) + one_way(b, a, i, temperature)


def masked_by_hand(predicted: Tensor, target: Tensor, masked: Tensor, temperature: float) -> float:
    """Equation 6, the mean over the videos of the minibatch."""
    a = [unit(vector) for video in predicted for vector in video]
    b = [unit(vector) for video in target for vector in video]
    per_video = predicted.shape[1]
    total = 0.0
    for video in range(len(predicted)):
        for clip in range(per_video):
            if masked[video, clip]:
                total += symmetric(a, b, video * per_video + clip, temperature)
    return total / len(predicted)


def masked_clip_loss(
    predictions: Tensor, targets: Tensor, masked: Tensor, temperature: float
) -> LossTerm:
    """Equation 6 with the paper's choices, by the product's loss."""
    masked_index = masked.flatten().nonzero().squeeze(1)
    return product_loss(
        predictions.flatten(0, 1), targets.flatten(0, 1), masked_index, masked_index, temperature,
        num_videos=len(masked), num_masked=len(masked_index), symmetric=True, average=False,
    )  # fmt: skip


def test_masked_clip_loss_is_the_one_of_the_paper() -> None:
    generator = torch.Generator().manual_seed(0)
    predicted, target = torch.randn(2, 3, 6, 5, generator=generator).unbind()
    masked = torch.rand(3, 6, generator=generator) < 0.3
    loss = masked_clip_loss(predicted, target, masked, 0.2).loss
    assert loss.item() == pytest.approx(masked_by_hand(predicted, target, masked, 0.2), rel=1e-5)


def test_set_contrastive_loss_is_the_one_of_the_paper() -> None:
    first, second = torch.randn(2, 7, 5, generator=torch.Generator().manual_seed(1)).unbind()
    a, b = [unit(v) for v in first], [unit(v) for v in second]
    by_hand = sum(symmetric(a, b, i, 0.1) for i in range(7)) / 7  # equation 4
    loss = set_contrastive_loss(first, second, 0.1).loss
    assert loss.item() == pytest.approx(by_hand, rel=1e-5)


def test_the_whole_loss_is_the_plain_sum_over_two_sets_of_each_video() -> None:
    torch.manual_seed(0)
    config = ModelConfig(
        width=32, projection_hidden=(16, 16), projection_dim=8, dropout=0.0, negatives="all"
    )
    model = ScaleNetwork(10, config).eval()
    features, boxes = torch.randn(2, 4, 5, 10), torch.rand(2, 4, 5, 6)
    masked = torch.rand(2, 4, 5) < 0.4
    losses = model.losses(features, boxes, masked)
    predicted, target, whole = [], [], []
    for one_set in range(2):
        encoding = model.encoder(features[one_set], boxes[one_set], masked[one_set])
        predicted.append(model.predict_clip(encoding.clip_tokens))
        target.append(model.project_clip(features[one_set]))
        whole.append([unit(vector) for vector in model.project_set(encoding.set_token)])
    by_hand = masked_by_hand(
        torch.cat(predicted, 1), torch.cat(target, 1), torch.cat(list(masked), 1), 0.2
    )
    by_hand_set = sum(symmetric(*whole, i, 0.2) for i in range(4)) / 4
    assert losses.masked_clip.item() == pytest.approx(by_hand, rel=1e-5)
    assert losses.set_contrast.item() == pytest.approx(by_hand_set, rel=1e-5)
    assert losses.total.item() == pytest.approx(by_hand + by_hand_set, rel=1e-5)


def test_a_perfect_prediction_is_recognised_and_a_wrong_one_is_not() -> None:
    target = torch.eye(6).view(2, 3, 6)
    masked = torch.ones(2, 3, dtype=torch.bool)
    assert masked_clip_loss(target, target, masked, 0.1).accuracy == 1.0
    assert masked_clip_loss(target.roll(1, 1), target, masked, 0.1).accuracy == 0.0


def test_without_masked_clips_the_loss_is_zero_and_still_has_a_gradient() -> None:
    predicted = torch.randn(2, 3, 4, requires_grad=True)
    loss = masked_clip_loss(
        predicted, torch.randn(2, 3, 4), torch.zeros(2, 3, dtype=torch.bool), 0.2
    ).loss
    loss.backward()
    assert loss.item() == 0.0
    assert predicted.grad is not None


CHOICES = {
    "paper": ModelConfig(negatives="all"),
    "official": ModelConfig(symmetric=False, average=True),
    "recommended": ModelConfig(),
    "masked clips alone": ModelConfig(losses="masked"),
}


@pytest.mark.parametrize("config", CHOICES.values(), ids=CHOICES)
@pytest.mark.parametrize("everything", [False, True])
def test_a_batch_with_nothing_or_everything_masked_has_finite_losses_and_gradients(
    config: ModelConfig, everything: bool
) -> None:
    torch.manual_seed(0)
    small = replace(config, width=32, projection_hidden=(16, 16), projection_dim=8)
    model = ScaleNetwork(10, small)
    features, boxes = torch.randn(2, 4, 5, 10), torch.rand(2, 4, 5, 6)
    losses = model.losses(features, boxes, torch.full((2, 4, 5), everything))
    losses.total.backward()
    assert (losses.masked_clip.item() > 0) == everything
    assert losses.masked_clip_accuracy.isfinite()
    assert losses.total.isfinite()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert gradients
    assert all(gradient.isfinite().all() for gradient in gradients)
