"""The blocks of the vision transformers."""

import pytest
import torch
import torch.nn.functional as F

from clipset.networks.video_transformers import resize_trilinear, sinusoid_table


@pytest.mark.parametrize("grid", [(8, 4, 4), (16, 5, 5), (8, 5, 7), (3, 4, 4), (16, 4, 4)])
def test_resizing_space_then_time_is_one_trilinear_interpolation(
    grid: tuple[int, int, int],
) -> None:
    table = torch.randn(8, 4, 4, 6, generator=torch.Generator().manual_seed(0))
    at_once = F.interpolate(table.movedim(-1, 0)[None], size=grid, mode="trilinear")
    expected = at_once[0].movedim(0, -1)
    torch.testing.assert_close(resize_trilinear(table, grid), expected, atol=1e-6, rtol=0)


def test_the_sinusoid_table_counts_positions_in_pairs_of_channels() -> None:
    table = sinusoid_table(5, 4).double()
    assert table[3, 0] == pytest.approx(float(torch.tensor(3.0).sin()), abs=1e-6)
    assert table[3, 1] == pytest.approx(float(torch.tensor(3.0).cos()), abs=1e-6)
    assert table[3, 2] == pytest.approx(float(torch.tensor(0.03).sin()), abs=1e-6)
