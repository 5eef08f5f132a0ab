"""MoCo v3: its loss against a slow loop, its momentum encoder, and its sparse views."""

import math

import pytest
import torch

from clipset.errors import TrainingError
from clipset.networks.video_transformers import VideoMAEConfig
from clipset.ssl.methods import MoCo, contrast

TINY = VideoMAEConfig(
    embed_dim=16, depth=1, num_heads=2, mlp_dim=32, patch_size=8, frames=4, size=32
)


def test_the_contrast_is_the_published_one() -> None:
    torch.manual_seed(0)
    queries, keys = torch.randn(5, 7), torch.randn(5, 7)
    total = 0.0
    for i in range(5):
        logits = []
        for j in range(5):
            product = sum(float(a) * float(b) for a, b in zip(queries[i], keys[j], strict=True))
            logits.append(product / float(queries[i].norm()) / float(keys[j].norm()) / 0.2)
        total += math.log(sum(math.exp(logit) for logit in logits)) - logits[i]
    assert contrast(queries, keys).item() == pytest.approx(2 * 0.2 * total / 5, rel=1e-5)


def test_the_loss_compares_each_view_with_the_momentum_encoder_s_other_view() -> None:
    torch.manual_seed(0)
    method = MoCo(TINY, hidden_dim=32)
    for average in method.teacher.parameters():
        average.data.add_(0.1 * torch.randn_like(average))
    views = torch.randn(2, 6, 4, 3, 32, 32)
    loss = method(views)
    queries = [method.prediction(method.projection(method.encoder(view))) for view in views]
    keys = [method.teacher[1](method.teacher[0](view)) for view in views]
    expected = contrast(queries[0], keys[1]) + contrast(queries[1], keys[0])
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    loss.backward()
    assert all(parameter.grad is None for parameter in method.teacher.parameters())
    assert all(p.grad is None for p in method.encoder.patch_embed.parameters())
    assert method.encoder.blocks[0].mlp.fc1.weight.grad.abs().sum() > 0


@pytest.mark.parametrize(("progress", "momentum"), [(0.0, 0.99), (0.5, 0.995), (1.0, 1.0)])
def test_the_momentum_rises_from_099_to_1(progress: float, momentum: float) -> None:
    method = MoCo(TINY, hidden_dim=32)
    weight, average = method.encoder.blocks[0].mlp.fc1.weight, None
    with torch.no_grad():
        weight.add_(1.0)
    before = method.teacher[0].blocks[0].mlp.fc1.weight.clone()
    method.update_teacher(progress)
    average = method.teacher[0].blocks[0].mlp.fc1.weight
    torch.testing.assert_close(average, momentum * before + (1 - momentum) * weight)


def test_sparse_views_are_few_tokens_and_the_targets_are_whole() -> None:
    torch.manual_seed(0)
    method = MoCo(TINY, drop=0.9, hidden_dim=32)
    visible = method.draw_visible(50, torch.device("cpu"))
    assert visible is not None
    assert visible.shape == (50, 4)  # of 32 tokens
    assert (visible.diff(dim=1) > 0).all()
    assert visible.unique().tolist() == list(range(32))
    counts: dict[str, list[int]] = {"own": [], "teacher": []}
    blocks = {"own": method.encoder.blocks[0], "teacher": method.teacher[0].blocks[0]}
    for name, block in blocks.items():
        block.register_forward_hook(lambda _m, i, _o, name=name: counts[name].append(i[0].shape[1]))
    method(torch.randn(2, 3, 4, 3, 32, 32))
    assert counts == {"own": [4], "teacher": [32, 32]}


def test_dropping_all_tokens_is_refused() -> None:
    with pytest.raises(TrainingError, match="drop must leave some of 32 tokens"):
        MoCo(TINY, drop=1.0)
