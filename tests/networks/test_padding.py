"""Padding as TensorFlow's SAME does it."""

import pytest
import torch

from clipset.networks.convolutional import SameConv2d, max_pool_same, same_padding


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding"),
    [(224, 3, 2, (0, 1)), (225, 3, 2, (1, 1)), (112, 5, 2, (1, 2)), (112, 7, 2, (2, 3)),
     (7, 5, 1, (2, 2)), (56, 2, 2, (0, 0)), (7, 2, 2, (0, 1)), (9, 1, 2, (0, 0))],
)  # fmt: skip
def test_padding_is_what_tensorflow_calls_same(
    size: int, kernel: int, stride: int, padding: tuple[int, int]
) -> None:
    assert same_padding(size, kernel, stride) == padding


@pytest.mark.parametrize(("height", "width"), [(6, 6), (7, 7), (6, 7)])
def test_a_same_convolution_equals_a_slow_loop(height: int, width: int) -> None:
    conv = SameConv2d(1, 1, 3, 2, bias=False).requires_grad_(False)
    noise = torch.Generator().manual_seed(0)
    conv.weight.copy_(torch.randn(conv.weight.shape, generator=noise))
    image = torch.randn(1, 1, height, width, generator=noise)
    result = conv(image)[0, 0]
    (top, _), (left, _) = same_padding(height, 3, 2), same_padding(width, 3, 2)
    assert result.shape == (-(-height // 2), -(-width // 2))
    for row in range(result.shape[0]):
        for column in range(result.shape[1]):
            total = 0.0
            for i in range(3):
                for j in range(3):
                    y, x = 2 * row - top + i, 2 * column - left + j
                    if 0 <= y < height and 0 <= x < width:
                        total += float(conv.weight[0, 0, i, j] * image[0, 0, y, x])
            assert result[row, column].item() == pytest.approx(total, abs=1e-5)


def test_pooling_pads_on_the_far_side_first() -> None:
    row = torch.tensor([1.0, 5.0, 2.0, 7.0]).view(1, 1, 1, 1, 4)
    pooled = max_pool_same(row, (1, 1, 3), (1, 1, 2))
    assert pooled.flatten().tolist() == [5.0, 7.0]
    pooled = max_pool_same(row[..., :3], (1, 1, 3), (1, 1, 2))
    assert pooled.flatten().tolist() == [5.0, 5.0]
