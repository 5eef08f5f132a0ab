"""The model's losses: options, ranks, padding, learning without collapse."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from tests.model.ranks import run_ranks
from torch import Tensor

from clipset.errors import ModelError
from clipset.model import scale
from clipset.model.config import ModelConfig
from clipset.model.losses import Gather, ScaleLosses
from clipset.model.scale import ScaleNetwork

TINY = ModelConfig(
    width=32, num_layers=2, projection_hidden=(16, 16), projection_dim=8, dropout=0.0
)
Sets = tuple[Tensor, Tensor, Tensor]


def batch(videos: int, clips: int = 4, *, dim: int = 10, numbers: int = 6, seed: int = 0) -> Sets:
    generator = torch.Generator().manual_seed(seed)
    low = torch.rand(2, videos, clips, 3, generator=generator)
    boxes = torch.cat([low, low + 0.2, low[..., :2]], dim=-1)[..., :numbers]
    features = torch.randn(2, videos, clips, dim, generator=generator)
    return features, boxes, torch.rand(2, videos, clips, generator=generator) < 0.4


def make(config: ModelConfig = TINY, dim: int = 10) -> ScaleNetwork:
    torch.manual_seed(0)
    return ScaleNetwork(dim, config)


OPTIONS = {
    "recommended": TINY,
    "paper": replace(TINY, negatives="all"),
    "official": replace(TINY, symmetric=False, average=True),
    "masked clips alone": replace(TINY, losses="masked"),
    "sets alone": replace(TINY, losses="set"),
    "clusters": replace(TINY, set_loss="clustering", prototypes=12),
    "regression": replace(TINY, set_loss="regression"),
}


@pytest.mark.parametrize("config", OPTIONS.values(), ids=OPTIONS)
def test_two_ranks_with_uneven_shards_equal_one(config: ModelConfig) -> None:
    model, (features, boxes, masked) = make(config).train(), batch(7)
    alone = model.losses(features, boxes, masked)
    names = [name for name, value in model.named_parameters() if value.requires_grad]
    trained = [value for value in model.parameters() if value.requires_grad]
    expected = torch.autograd.grad(alone.total, trained, allow_unused=True)
    again = make(config).train()
    trained = [value for value in again.parameters() if value.requires_grad]
    if config.losses != "masked" and config.set_loss != "contrast":
        again.eval()  # threads share the teacher, which may take only one step

    def work(gather: Gather) -> ScaleLosses:
        part = slice(0, 4) if gather.rank == 0 else slice(4, 7)
        return again.losses(features[:, part], boxes[:, part], masked[:, part], gather=gather)

    rank_losses = run_ranks(2, work)
    for name in ScaleLosses.__dataclass_fields__:
        mean = torch.stack([getattr(losses, name) for losses in rank_losses]).mean()
        torch.testing.assert_close(mean, getattr(alone, name), rtol=1e-5, atol=1e-5)
    total = torch.stack([losses.total for losses in rank_losses]).mean()
    computed = torch.autograd.grad(total, trained, allow_unused=True)
    for name, ours, theirs in zip(names, computed, expected, strict=True):
        assert (ours is None) == (theirs is None), name
        if ours is not None and theirs is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("config", OPTIONS.values(), ids=OPTIONS)
def test_every_trained_weight_gets_a_gradient(config: ModelConfig) -> None:
    model = make(config).train()
    model.losses(*batch(6)).total.backward()
    lost = [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None]
    assert lost == []


@pytest.mark.parametrize("config", OPTIONS.values(), ids=OPTIONS)
def test_padding_does_not_change_the_losses(config: ModelConfig) -> None:
    model, (features, boxes, masked) = make(config).eval(), batch(5)
    plain = model.losses(features, boxes, masked)
    filled = [
        torch.cat([part, torch.full_like(part[:, :, :2], value)], dim=2)
        for part, value in ((features, torch.nan), (boxes, 0.5), (masked, True))
    ]
    valid = F.pad(torch.ones_like(masked), (0, 2))
    computed = model.losses(filled[0], filled[1], filled[2], valid)
    for name in ScaleLosses.__dataclass_fields__:
        torch.testing.assert_close(
            getattr(computed, name), getattr(plain, name), rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("num_parts", [1, 2])
@pytest.mark.parametrize("config", [TINY, replace(TINY, average=True)], ids=["sums", "means"])
def test_a_large_batch_compares_masked_clips_in_parts(
    monkeypatch: pytest.MonkeyPatch, config: ModelConfig, num_parts: int
) -> None:
    features, boxes, masked = batch(5)
    model = make(replace(config, losses="masked")).eval()
    monkeypatch.setattr(scale, "PART_SIZE", masked.numel() // num_parts - 1)
    computed = model.losses(features, boxes, masked)
    tokens, _ = model.encoder.encode_subset(
        *(part.flatten(0, 1) for part in (features, boxes, masked, masked))
    )
    predictions = F.normalize(model.predict_clip(tokens), dim=1)
    targets = F.normalize(model.project_clip(features[masked]), dim=1)
    video = torch.arange(5)[:, None].expand_as(masked)[masked]
    total, correct = 0.0, 0.0
    for part in range(num_parts):
        rows = video % num_parts == part
        own = torch.arange(int(rows.sum()))
        logits = (predictions[rows] @ targets[rows].T / TINY.temperature).detach()
        total += float(F.cross_entropy(logits, own, reduction="sum"))
        total += float(F.cross_entropy(logits.T, own, reduction="sum"))
        correct += float((logits.argmax(dim=1) == own).sum())
    expected = total / (2 * len(video) if config.average else 5)
    assert float(computed.total.detach()) == pytest.approx(expected, rel=1e-5)
    assert float(computed.masked_clip_accuracy) == pytest.approx(correct / len(video))


def test_a_large_batch_compares_everything_with_negatives_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    features, boxes, masked = batch(5)
    model = make(replace(TINY, losses="masked", negatives="all")).eval()
    whole = model.losses(features, boxes, masked).total
    monkeypatch.setattr(scale, "PART_SIZE", 1)
    torch.testing.assert_close(model.losses(features, boxes, masked).total, whole)


def test_two_ranks_compare_a_large_batch_in_the_same_parts_as_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scale, "PART_SIZE", 16)
    test_two_ranks_with_uneven_shards_equal_one(TINY)


def test_only_masked_clips_are_predicted() -> None:
    model, num_predicted = make(), []
    model.predict_clip.register_forward_hook(
        lambda _m, inputs, _o: num_predicted.append(len(inputs[0]))
    )
    features, boxes, masked = batch(5)
    model.losses(features, boxes, masked)
    assert num_predicted == [int(masked.sum())]


def test_boxes_of_another_kind_than_the_model_s_are_refused() -> None:
    features, boxes, masked = batch(3)
    with pytest.raises(ModelError, match="official boxes of 7 coordinates"):
        make(replace(TINY, box_coordinates="official")).losses(features, boxes, masked)


def toy_videos(seed: int) -> Sets:
    """Sets whose clips show one of six scenes, changing along time, with noise."""
    generator = torch.Generator().manual_seed(seed)
    scenes = torch.randn(6, 10, generator=torch.Generator().manual_seed(1))
    drift = torch.randn(6, 10, generator=torch.Generator().manual_seed(2))
    low = torch.rand(2, 36, 4, 3, generator=generator)
    scene = torch.arange(36).remainder(6)
    features = scenes[scene][:, None] + drift[scene][:, None] * low[..., 2:]
    features = 10 * (features + 0.3 * torch.randn(features.shape, generator=generator))
    rank = torch.rand(2, 36, 4, generator=generator).argsort(dim=-1)
    return features, torch.cat([low, low + 0.1], dim=-1), rank < 1


LEARNERS = {
    "recommended": TINY,
    "official": replace(TINY, symmetric=False, average=True),
    "clusters": replace(
        TINY, set_loss="clustering", losses="set", prototypes=24, teacher_momentum=0.9
    ),
    "regression": replace(TINY, set_loss="regression", losses="set", teacher_momentum=0.9),
    "regression without a slow teacher": replace(
        TINY, set_loss="regression", losses="set", teacher_momentum=0.0
    ),
}


@pytest.mark.parametrize("config", LEARNERS.values(), ids=LEARNERS)
def test_every_loss_learns_and_does_not_collapse(config: ModelConfig) -> None:
    model = make(config).train()
    adam = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    history = []
    for step in range(120):
        losses = model.losses(*toy_videos(step))
        adam.zero_grad()
        losses.total.backward()
        adam.step()
        history.append(losses.total.item())
    assert sum(history[-10:]) < 0.97 * sum(history[:10])
    features, boxes, _ = toy_videos(999)
    with torch.no_grad():
        tokens = [model.eval().encode(f, b).set_token for f, b in zip(features, boxes, strict=True)]
    one, two = (F.normalize(token - token.mean(dim=0), dim=-1) for token in tokens)
    scene = torch.arange(36).remainder(6)
    nearest = scene[(one @ two.T).argmax(dim=1)]
    assert (nearest == scene).float().mean() > 0.9  # a collapsed model would say one in six


def test_clusters_are_used_evenly_rather_than_one_alone() -> None:
    model = make(LEARNERS["clusters"]).train()
    adam = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    for step in range(120):
        adam.zero_grad()
        model.losses(*toy_videos(step)).total.backward()
        adam.step()
    features, boxes, _ = toy_videos(999)
    with torch.no_grad():
        cosines = model.clusters(model.project_set(model.encode(features[0], boxes[0]).set_token))
    assert cosines.argmax(dim=-1).unique().numel() >= 3


def test_the_teacher_follows_the_student_slowly_and_is_saved_with_it() -> None:
    config = OPTIONS["regression"]
    model = make(config).train()
    with torch.no_grad():
        model.encoder.set_token.add_(1.0)
    before = model.teacher.encoder.set_token.clone()
    model.losses(*batch(4))
    moved = model.teacher.encoder.set_token - before
    torch.testing.assert_close(moved, torch.full_like(moved, 1 - config.teacher_momentum))
    again = make(config)
    again.load_state_dict(model.state_dict())
    assert not any(p.requires_grad for p in again.teacher.parameters())
