"""Laws of the set encoder."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clipset.errors import ModelError
from clipset.model.config import ModelConfig
from clipset.model.encoder import SetEncoder, dropout


def small_encoder(seed: int = 0) -> SetEncoder:
    torch.manual_seed(seed)
    return SetEncoder(6, ModelConfig(width=32, num_layers=2)).eval()


@settings(max_examples=20, deadline=None)
@given(clips=st.integers(1, 9), seed=st.integers(0, 2**31))
def test_the_order_of_the_clips_does_not_change_the_set_token(clips: int, seed: int) -> None:
    encoder = small_encoder()
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(2, clips, 6, generator=generator)
    boxes = torch.rand(2, clips, 6, generator=generator)
    order = torch.randperm(clips, generator=generator)
    straight, mixed = encoder(features, boxes), encoder(features[:, order], boxes[:, order])
    torch.testing.assert_close(straight.set_token, mixed.set_token, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(
        straight.clip_tokens[:, order], mixed.clip_tokens, atol=1e-5, rtol=1e-4
    )


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_the_features_of_masked_clips_do_not_influence_the_output(seed: int) -> None:
    encoder = small_encoder()
    generator = torch.Generator().manual_seed(seed)
    features, other = torch.randn(2, 3, 5, 6, generator=generator).unbind()
    boxes = torch.rand(3, 5, 6, generator=generator)
    masked = torch.rand(3, 5, generator=generator) < 0.5
    changed = torch.where(masked[..., None], other, features)
    before, after = encoder(features, boxes, masked), encoder(changed, boxes, masked)
    assert torch.equal(before.clip_tokens, after.clip_tokens)
    assert torch.equal(before.set_token, after.set_token)


def test_where_a_clip_is_changes_what_the_set_means() -> None:
    encoder = small_encoder()
    features, boxes = torch.randn(1, 4, 6), torch.rand(1, 4, 6)
    swapped = boxes[:, [1, 0, 2, 3]]
    assert not torch.allclose(
        encoder(features, boxes).set_token, encoder(features, swapped).set_token
    )


def test_one_video_of_a_batch_does_not_see_the_others() -> None:
    encoder = small_encoder()
    features, boxes = torch.randn(3, 4, 6), torch.rand(3, 4, 6)
    together, alone = encoder(features, boxes), encoder(features[1:2], boxes[1:2])
    torch.testing.assert_close(together.set_token[1:2], alone.set_token, atol=1e-6, rtol=1e-5)


def test_features_are_standardised_before_anything_else() -> None:
    encoder = small_encoder()
    features, boxes = torch.randn(2, 4, 6), torch.rand(2, 4, 6)
    before = encoder(features, boxes).set_token
    encoder.set_statistics(torch.full((6,), 3.0), torch.full((6,), 2.0))
    torch.testing.assert_close(encoder(features * 2 + 3, boxes).set_token, before)


def test_a_width_that_heads_cannot_share_is_refused() -> None:
    with pytest.raises(ModelError, match="multiple of head_dim 32"):
        ModelConfig(width=100)


@settings(max_examples=20, deadline=None)
@given(clips=st.integers(1, 6), padding=st.integers(1, 4), seed=st.integers(0, 2**31))
def test_padding_does_not_influence_the_output(clips: int, padding: int, seed: int) -> None:
    encoder = small_encoder()
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(2, clips + padding, 6, generator=generator)
    boxes = torch.rand(2, clips + padding, 6, generator=generator)
    valid = (torch.arange(clips + padding) < clips).expand(2, -1)
    features[:, clips:] = torch.nan
    alone = encoder(features[:, :clips], boxes[:, :clips])
    filled = encoder(features, boxes, valid=valid)
    torch.testing.assert_close(filled.set_token, alone.set_token, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(
        filled.clip_tokens[:, :clips], alone.clip_tokens, atol=1e-5, rtol=1e-4
    )


@settings(max_examples=20, deadline=None)
@given(layers=st.integers(1, 3), seed=st.integers(0, 2**31))
def test_some_tokens_are_the_same_as_among_all(layers: int, seed: int) -> None:
    torch.manual_seed(0)
    encoder = SetEncoder(6, ModelConfig(width=32, num_layers=layers)).eval()
    generator = torch.Generator().manual_seed(seed)
    features, boxes = torch.randn(3, 5, 6, generator=generator), torch.rand(3, 5, 6)
    masked, needed = torch.rand(2, 3, 5, generator=generator).unbind()
    whole = encoder(features, boxes, masked < 0.3)
    tokens, set_token = encoder.encode_subset(features, boxes, masked < 0.3, needed < 0.4)
    torch.testing.assert_close(tokens, whole.clip_tokens[needed < 0.4], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(set_token, whole.set_token, atol=1e-5, rtol=1e-4)


def test_dropping_keeps_the_mean_and_drops_the_requested_fraction() -> None:
    torch.manual_seed(0)
    values = torch.ones(100_001, requires_grad=True)
    dropped = dropout(values, 0.1, True)
    fraction = (dropped == 0).float().mean().item()
    assert fraction == pytest.approx(0.1, abs=0.005)
    assert dropped.mean().item() == pytest.approx(1.0, abs=0.005)
    dropped.sum().backward()
    assert values.grad is not None
    assert torch.equal(values.grad, dropped.detach())
    assert dropout(values, 0.1, False) is values
