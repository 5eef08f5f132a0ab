"""InfoNCE in tiles against all logits at once."""

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from clipset.model.info_nce import info_nce


def plain_info_nce(
    queries: Tensor, keys: Tensor, positive_index: Tensor, temperature: float
) -> tuple[Tensor, float]:
    logits = queries @ keys.T / temperature
    num_correct = float((logits.argmax(dim=1) == positive_index).sum())
    return F.cross_entropy(logits, positive_index, reduction="sum"), num_correct


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 40),
    more=st.integers(0, 90),
    tile=st.sampled_from([1, 7, 64, 200, 1000, 100_000]),
    temperature=st.sampled_from([0.01, 0.2, 1.0]),
    seed=st.integers(0, 2**31),
)
def test_tiles_of_any_size_give_the_plain_loss_and_gradients(
    rows: int, more: int, tile: int, temperature: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    queries = F.normalize(torch.randn(rows, 6, generator=generator), dim=1).requires_grad_()
    keys = F.normalize(torch.randn(rows + more, 6, generator=generator), dim=1).requires_grad_()
    positive_index = torch.randint(rows + more, (rows,), generator=generator)
    loss, num_correct = info_nce(queries, keys, positive_index, temperature, tile_size=tile)
    expected, expected_correct = plain_info_nce(queries, keys, positive_index, temperature)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5 * rows)
    assert float(num_correct) == expected_correct
    scale = 1e-5 / temperature
    for ours, theirs in zip(
        torch.autograd.grad(2 * loss, (queries, keys)),
        torch.autograd.grad(2 * expected, (queries, keys)),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=scale)


def test_no_queries_are_no_loss_and_still_has_a_gradient() -> None:
    queries, keys = torch.zeros(0, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    loss, num_correct = info_nce(queries, keys, torch.zeros(0, dtype=torch.int64), 0.2)
    loss.backward()
    assert (loss.item(), num_correct.item()) == (0.0, 0.0)
    assert keys.grad is not None
    assert not keys.grad.any()


def test_a_collapsed_model_finds_nothing() -> None:
    same = F.normalize(torch.ones(8, 4), dim=1)
    assert float(info_nce(same, same, torch.arange(8), 0.2)[1]) == 0.0
