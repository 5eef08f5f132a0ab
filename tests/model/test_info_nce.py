"""InfoNCE in tiles against all similarities at once."""

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from clipset.model.info_nce import info_nce


def plainly(
    asked: Tensor, candidates: Tensor, answer: Tensor, temperature: float
) -> tuple[Tensor, float]:
    logits = asked @ candidates.T / temperature
    found = float((logits.argmax(dim=1) == answer).sum())
    return F.cross_entropy(logits, answer, reduction="sum"), found


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
    asked = F.normalize(torch.randn(rows, 6, generator=generator), dim=1).requires_grad_()
    others = F.normalize(torch.randn(rows + more, 6, generator=generator), dim=1).requires_grad_()
    answer = torch.randint(rows + more, (rows,), generator=generator)
    loss, found = info_nce(asked, others, answer, temperature, tile_size=tile)
    wanted, found_plainly = plainly(asked, others, answer, temperature)
    torch.testing.assert_close(loss, wanted, rtol=1e-5, atol=1e-5 * rows)
    assert float(found) == found_plainly
    scale = 1e-5 / temperature
    for ours, theirs in zip(
        torch.autograd.grad(2 * loss, (asked, others)),
        torch.autograd.grad(2 * wanted, (asked, others)),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=scale)


def test_nothing_asked_is_no_loss_and_still_has_a_gradient() -> None:
    asked, others = torch.zeros(0, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    loss, found = info_nce(asked, others, torch.zeros(0, dtype=torch.int64), 0.2)
    loss.backward()
    assert (loss.item(), found.item()) == (0.0, 0.0)
    assert others.grad is not None
    assert not others.grad.any()


def test_a_collapsed_model_finds_nothing() -> None:
    same = F.normalize(torch.ones(8, 4), dim=1)
    assert float(info_nce(same, same, torch.arange(8), 0.2)[1]) == 0.0
