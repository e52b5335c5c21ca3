"""An order is a permutation for any n, the same everywhere, and shows no structure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.order import MAX_SAMPLES, Order, _network
from holdfast.errors import UsageError

Ids = npt.NDArray[np.int64]


@given(st.integers(1, 3000), st.integers(), st.integers(0, 5), st.none() | st.integers(1, 3100))
def test_an_order_is_a_permutation(n: int, seed: int, epoch: int, block: int | None) -> None:
    ids = Order(n, seed, epoch, block=block).ids(0, n)
    assert ids.dtype == np.int64
    assert np.array_equal(np.sort(ids), np.arange(n))


def test_all_small_sizes_and_blocks_are_permutations() -> None:
    for n in range(1, 40):
        for block in [None, *range(1, n + 2)]:
            assert sorted(Order(n, 9, 1, block=block).ids(0, n).tolist()) == list(range(n)), (n, block)


@given(st.integers(1, 2000), st.none() | st.integers(1, 300), st.data())
def test_any_part_can_be_had_alone(n: int, block: int | None, data: st.DataObject) -> None:
    order = Order(n, 5, 2, block=block)
    start = data.draw(st.integers(0, n))
    stop = data.draw(st.integers(start, n))
    assert np.array_equal(order.ids(start, stop), order.ids(0, n)[start:stop])


@pytest.mark.parametrize("n", [MAX_SAMPLES, MAX_SAMPLES - 1, 2**47 + 12345, 2**32 + 1, 10**12])
def test_huge_orders_cost_nothing(n: int) -> None:
    for block in (None, 1000):
        order = Order(n, 1, 1, block=block)
        ids = np.concatenate([order.ids(0, 5000), order.ids(n - 5000, n)])
        assert len(set(ids.tolist())) == 10000
        assert ids.min() >= 0 and ids.max() < n


@given(st.integers(1, 500), st.integers(1, 60))
def test_blocks_stay_together(n: int, block: int) -> None:
    ids = Order(n, 3, 3, block=block).ids(0, n) // block
    changes = int(np.count_nonzero(np.diff(ids)))
    assert changes == -(-n // block) - 1


def test_the_same_ids_on_every_machine() -> None:
    assert Order(1000, 42, 7).ids(0, 8).tolist() == [466, 923, 243, 723, 257, 266, 231, 682]
    assert Order(10**12, 42, 7).ids(5, 8).tolist() == [519499897988, 399719898061, 731060579521]
    assert Order(1000, 42, 7, block=64).ids(500, 508).tolist() == [357, 376, 367, 334, 321, 383, 342, 338]


def test_without_shuffle_the_order_is_that_of_the_source() -> None:
    assert Order(10, 0, 0, shuffle=False).ids(3, 7).tolist() == [3, 4, 5, 6]


def test_seeds_epochs_and_blocks_have_orders_of_their_own() -> None:
    n = 2000
    orders = [Order(n, 0, 0), Order(n, 0, 1), Order(n, 1, 0), Order(n, 0, 0, block=50), Order(n, 0, 1, block=50)]
    ids = [order.ids(0, n) for order in orders]
    for i in range(len(ids)):
        for j in range(i):
            assert np.count_nonzero(ids[i] == ids[j]) < 12  # 1 expected (Poisson), a few more within blocks
    inside = (ids[3] % 50).reshape(-1, 50)
    assert len({tuple(row) for row in inside.tolist()}) == 40


def chi_square(table: npt.NDArray[np.float64]) -> float:
    expected = table.sum() / table.size
    return float(((table - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("n", [10_000, 16_385, 99_991])
@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_an_order_shows_no_structure(n: int, epoch: int) -> None:
    ids = Order(n, 11, epoch).ids(0, n).astype(np.float64)
    deciles = 10
    table, _, _ = np.histogram2d(np.arange(n), ids, bins=deciles, range=[[0, n], [0, n]])
    assert chi_square(table) < 150  # 81 degrees of freedom: mean 81, standard deviation 13
    for lag in (1, 2, 7, 64, 100):
        assert abs(np.corrcoef(ids[:-lag], ids[lag:])[0, 1]) < 5 / np.sqrt(n)
    for modulus in (2, 3, 16):
        table, _, _ = np.histogram2d(np.arange(n) % modulus, ids % modulus, bins=modulus)
        assert chi_square(table) < modulus**2 + 6 * modulus * np.sqrt(2)
    steps = np.diff(ids)
    assert len(np.unique(steps)) > 0.5 * n
    other = Order(n, 11, epoch + 1).ids(0, n).astype(np.float64)
    assert abs(np.corrcoef(ids, other)[0, 1]) < 5 / np.sqrt(n)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 7, 10, 16])
def test_small_orders_send_every_sample_everywhere(n: int) -> None:
    epochs = 2000
    table = np.zeros((n, n))
    for epoch in range(epochs):
        table[np.arange(n), Order(n, 0, epoch).ids(0, n)] += 1
    assert np.abs(table / epochs - 1 / n).max() < 0.25 / n + 0.05


def test_a_part_costs_what_the_part_is_large() -> None:
    """No clock here: the network may be sent through few positions more than were asked for."""
    for n in (4**8 + 1, 10**6, 2**33 + 5):
        network = _network(n, 1)
        assert n <= network.left * network.right < n + network.left


@pytest.mark.parametrize(
    ("n", "shuffle", "block"), [(0, True, None), (MAX_SAMPLES + 1, True, None), (5, True, 0), (5, False, 2)]
)
def test_impossible_orders_are_refused(n: int, shuffle: bool, block: int | None) -> None:
    with pytest.raises(UsageError):
        Order(n, 0, 0, shuffle=shuffle, block=block)


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (0, 11)])
def test_positions_outside_are_refused(start: int, stop: int) -> None:
    with pytest.raises(ValueError, match="do not lie in"):
        Order(10, 0, 0).ids(start, stop)
