"""InfoNCE in tiles against all similarities at once."""

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from clipset.model.info_nce import one_way_info_nce
from clipset.model.losses import overlapping_pairs


def plainly(
    asked: Tensor, candidates: Tensor, answer: Tensor, temperature: float, excluded: Tensor | None
) -> tuple[Tensor, float]:
    logits = asked @ candidates.T / temperature
    if excluded is not None:
        logits = logits.index_put((excluded[0], excluded[1]), torch.tensor(-torch.inf))
    found = float((logits.argmax(dim=1) == answer).sum())
    return F.cross_entropy(logits, answer, reduction="sum"), found


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 40),
    more=st.integers(0, 90),
    tile=st.sampled_from([1, 7, 64, 200, 1000, 100_000]),
    temperature=st.sampled_from([0.01, 0.2, 1.0]),
    exclude=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_tiles_of_any_size_give_the_plain_loss_and_gradients(
    rows: int, more: int, tile: int, temperature: float, exclude: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    asked = F.normalize(torch.randn(rows, 6, generator=generator), dim=1).requires_grad_()
    others = F.normalize(torch.randn(rows + more, 6, generator=generator), dim=1).requires_grad_()
    answer = torch.randint(rows + more, (rows,), generator=generator)
    excluded = None
    if exclude:
        chosen = torch.rand(rows, rows + more, generator=generator) < 0.2
        chosen[torch.arange(rows), answer] = False
        excluded = chosen.nonzero().T
    loss, found = one_way_info_nce(asked, others, answer, temperature, excluded=excluded, tile=tile)
    wanted, found_plainly = plainly(asked, others, answer, temperature, excluded)
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
    loss, found = one_way_info_nce(asked, others, torch.zeros(0, dtype=torch.int64), 0.2)
    loss.backward()
    assert (loss.item(), found.item()) == (0.0, 0.0)
    assert others.grad is not None
    assert not others.grad.any()


def test_a_collapsed_model_finds_nothing() -> None:
    same = F.normalize(torch.ones(8, 4), dim=1)
    assert float(one_way_info_nce(same, same, torch.arange(8), 0.2)[1]) == 0.0


def boxes_by_hand() -> tuple[Tensor, Tensor]:
    """One video, two sets of two clips, on one axis: [0, 1], [0.5, 2], [1, 2], [3, 4]."""
    low = torch.tensor([[[[0.0], [0.5]]], [[[1.0], [3.0]]]])
    high = torch.tensor([[[[1.0], [2.0]]], [[[2.0], [4.0]]]])
    return low, high


def test_other_clips_of_a_video_that_overlap_the_asked_one_are_known() -> None:
    low, high = boxes_by_hand()
    everything = torch.ones(2, 1, 2, dtype=torch.bool)
    pairs = {
        tuple(pair) for pair in overlapping_pairs(low, high, everything, everything).T.tolist()
    }
    assert pairs == {(0, 1), (1, 0), (1, 2), (2, 1)}  # those that only touch do not overlap
    second = torch.tensor([[[False, True]], [[False, False]]])
    assert overlapping_pairs(low, high, second, everything).T.tolist() == [[0, 0], [0, 2]]
