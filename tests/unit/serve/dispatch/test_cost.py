"""What a batch costs, as it is learned."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.serve.dispatch.cost import Cost


@given(a=st.floats(1e-5, 1e-2), b=st.floats(1e-5, 1e-1), sizes=st.lists(st.integers(1, 64), min_size=30, max_size=60))
def test_a_line_is_found_where_sizes_differ(a, b, sizes):
    cost = Cost()
    for n in [1, 64, *sizes]:
        cost.learn(n, a * n + b)
    assert cost.expected(32) == pytest.approx(a * 32 + b, rel=0.35)
    assert cost.expected(1) <= cost.expected(64)


def test_batches_of_one_size_give_half_to_each_part():
    cost = Cost()
    for _ in range(10):
        cost.learn(8, 0.008)
    assert cost.expected(8) == pytest.approx(0.008)
    assert cost.expected(16) == pytest.approx(0.012)


def test_one_stall_of_the_machine_counts_for_little():
    cost = Cost()
    for n in (1, 2, 4, 8) * 20:
        cost.learn(n, 0.001 + 0.0005 * n)
    before = cost.expected(4)
    cost.learn(4, 3.0)
    assert cost.expected(4) < 1.2 * before


def test_a_machine_that_became_slow_is_believed_within_a_hundred_batches():
    cost = Cost()
    for n in (1, 2, 4, 8) * 20:
        cost.learn(n, 0.001 + 0.0005 * n)
    for n in (1, 2, 4, 8) * 25:
        cost.learn(n, 3 * (0.001 + 0.0005 * n))
    assert cost.expected(8) == pytest.approx(3 * 0.005, rel=0.15)


def test_batches_grow_to_twice_the_largest_at_the_most():
    cost = Cost()
    assert cost.fitting(10.0) == 1
    for n in (1, 2, 4):
        cost.learn(n, 0.001 * n)
    assert cost.fitting(10.0) == 8


def test_at_least_one_item_is_computed_however_long_it_takes():
    cost = Cost()
    cost.learn(1, 5.0)
    assert cost.fitting(0.01) == 1
