from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.lanes import Unit, assign, rebalanced, shares, step_seconds

crews = st.lists(st.integers(0, 50), min_size=1, max_size=6, unique=True)
speeds = st.floats(0.001, 10.0)


def test_units_are_names() -> None:
    assert Unit(3, 1) == Unit(3, 1)
    assert sorted([Unit(3, 1), Unit(2, 5), Unit(3, 0)]) == [Unit(2, 5), Unit(3, 0), Unit(3, 1)]


@given(st.integers(0, 500), st.integers(1, 70))
def test_shares_tile_the_batch(batch: int, num_lanes: int) -> None:
    parts = shares(batch, num_lanes)
    assert len(parts) == num_lanes
    assert [position for part in parts for position in part] == list(range(batch))
    sizes = [len(part) for part in parts]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1


def test_shares_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="a batch of 8 cannot be shared among 0 lanes"):
        shares(8, 0)


@given(st.integers(1, 70), crews, st.data())
def test_every_lane_has_one_driver_and_runs_are_contiguous(
    num_lanes: int, crew: list[int], data: st.DataObject
) -> None:
    seconds = data.draw(st.dictionaries(st.sampled_from(crew), speeds | st.just(0.0)))
    driver = assign(num_lanes, crew, seconds)
    assert len(driver) == num_lanes
    assert set(driver) <= set(crew)
    seats = [crew.index(worker) for worker in driver]
    assert seats == sorted(seats)


@given(st.integers(1, 9), st.lists(speeds, min_size=1, max_size=3))
def test_no_other_split_is_faster(num_lanes: int, speed: list[float]) -> None:
    seconds = dict(enumerate(speed))
    best = min(
        max(count * speed[worker] for worker, count in enumerate(counts))
        for counts in product(range(num_lanes + 1), repeat=len(speed))
        if sum(counts) == num_lanes
    )
    assert step_seconds(assign(num_lanes, list(seconds), seconds), seconds) == pytest.approx(best)


@given(st.integers(1, 70), crews)
def test_without_measurements_counts_differ_by_at_most_one(num_lanes: int, crew: list[int]) -> None:
    counts = Counter(dict.fromkeys(crew, 0))
    counts.update(assign(num_lanes, crew, {}))
    assert max(counts.values()) - min(counts.values()) <= 1


def test_assign_by_hand() -> None:
    assert assign(4, [1], {}) == (1, 1, 1, 1)
    assert assign(4, [1, 2], {}) == (1, 1, 2, 2)
    assert assign(8, [3, 1], {3: 0.1, 1: 0.3}) == (3, 3, 3, 3, 3, 3, 1, 1)
    assert assign(4, [1, 2], {1: 0.1, 2: 9.0}) == (1, 1, 1, 1)
    assert assign(2, [1, 2, 3], {}) == (1, 2)


def test_ties_go_where_runs_are_aligned() -> None:
    assert Counter(assign(7, [1, 2, 3, 4], {})) == {1: 2, 2: 2, 3: 2, 4: 1}
    # 2 + 2 + 2 + 3 lanes cut the run into 5 partial sums, 3 + 2 + 2 + 2 into 8.
    assert assign(9, [1, 2, 3, 4], {}) == (1, 1, 2, 2, 3, 3, 4, 4, 4)


def test_a_worker_without_measurement_counts_as_the_median() -> None:
    seconds = {1: 0.1, 2: 0.3, 3: 0.2, 4: 0.0, 5: float("nan"), 6: float("inf")}
    for unknown in (4, 5, 6, 7):
        crew = [1, 2, 3, unknown]
        assert assign(12, crew, seconds) == assign(12, crew, {1: 0.1, 2: 0.3, 3: 0.2, unknown: 0.2})


@pytest.mark.parametrize(("num_lanes", "workers"), [(0, [1]), (4, []), (4, [1, 1])])
def test_impossible_assignments_are_refused(num_lanes: int, workers: list[int]) -> None:
    with pytest.raises(ValueError, match="cannot be assigned"):
        assign(num_lanes, workers, {})


def test_step_seconds() -> None:
    assert step_seconds((1, 1, 2), {1: 0.5, 2: 0.7}) == 1.0
    assert step_seconds((1, 1, 2), {}) == 2.0


def test_a_small_gain_changes_nothing() -> None:
    current = (1, 1, 1, 1, 2, 2, 2, 2)
    assert rebalanced(current, [1, 2], {1: 0.1, 2: 0.1}, gain=0.15) is None
    assert rebalanced(current, [1, 2], {1: 0.1, 2: 0.13}, gain=0.15) is None
    assert rebalanced(current, [1, 2], {}, gain=0.15) is None


def test_a_real_gain_comes_with_its_reason() -> None:
    current = (1, 1, 1, 1, 2, 2, 2, 2)
    assert rebalanced(current, [1, 2], {1: 0.1, 2: 0.3}, gain=0.15) == (
        (1, 1, 1, 1, 1, 1, 2, 2),
        "a step should take 0.6 s and not 1.2 s (50% less): worker 2 takes 0.3 s a lane (median 0.2 s) "
        "and goes from 4 to 2 lanes",
    )
    assert rebalanced(current, [1, 2], {1: 0.1, 2: 0.3}, gain=0.6) is None


def test_a_joiner_without_measurement_is_given_lanes() -> None:
    assert rebalanced((1, 1, 1, 1), [1, 2], {}, gain=0.15) == (
        (1, 1, 2, 2),
        "worker 1 goes from 4 to 2 lanes; no speeds are measured yet",
    )


def test_an_assignment_to_somebody_gone_is_always_replaced() -> None:
    assert rebalanced((1, 1, 3, 3), [1, 2], {1: 0.1, 2: 0.1}, gain=0.15) == (
        (1, 1, 2, 2),
        "lanes 2, 3 have no driver in the crew: gone are workers 3",
    )


@given(st.integers(1, 40), crews, crews, st.data())
def test_a_rebalance_names_only_the_crew_and_is_then_content(
    num_lanes: int, before: list[int], crew: list[int], data: st.DataObject
) -> None:
    seconds = data.draw(st.dictionaries(st.sampled_from(crew), speeds))
    current = assign(num_lanes, before, {})
    change = rebalanced(current, crew, seconds, gain=0.15)
    if change is None:
        assert set(current) <= set(crew)
        return
    new, _ = change
    assert len(new) == num_lanes and set(new) <= set(crew)
    assert rebalanced(new, crew, seconds, gain=0.15) is None
