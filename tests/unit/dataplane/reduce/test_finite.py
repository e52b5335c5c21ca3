"""What is seen of a gradient that is not finite, as a whole and at a glance."""

from __future__ import annotations

import pytest
import torch

from holdfast.dataplane.reduce.finite import finite, unclean

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_one_number_that_is_not_finite(value: float, dtype: torch.dtype) -> None:
    values = torch.ones(1000, dtype=dtype)
    assert finite(values)
    values[417] = value
    assert not finite(values)
    assert unclean([torch.ones(3), None, values.view(10, 100)], whole=False) == [2]


def test_large_numbers_are_finite_though_their_sum_is_not() -> None:
    large = torch.full((1000,), 3e38)
    assert finite(large) and unclean([large, large.view(10, 100)], whole=True) == []


def test_what_a_layer_does_with_a_nan_is_seen_at_a_board_snapshot() -> None:
    """A gradient of a layer is made of products: whatever comes in or back as NaN fills a row or a column."""
    for layer, shape in ((torch.nn.Linear(300, 400), (4, 300)), (torch.nn.Conv2d(64, 128, 3), (2, 64, 5, 5))):
        assert layer.weight.numel() > 1 << 16
        for into in (True, False):
            came = torch.randn(shape)
            if into:
                came.view(-1)[len(came.view(-1)) // 2] = NAN
            out = layer(came)
            back = torch.ones_like(out)
            if not into:
                back.view(-1)[len(back.view(-1)) // 2] = INF
            (weight,) = torch.autograd.grad(out, [layer.weight], back)
            assert unclean([weight], whole=False) == [0]


def test_a_board_snapshot_leaves_a_single_number_of_a_large_matrix_to_the_sum() -> None:
    matrix = torch.ones(300, 300)
    matrix[7, 8] = NAN
    assert unclean([matrix], whole=False) == []
    assert unclean([matrix], whole=True) == [0]


def test_what_is_refused_elsewhere_is_not_looked_at() -> None:
    assert unclean([torch.eye(3).to_sparse(), None], whole=True) == []
