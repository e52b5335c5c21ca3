"""Which units are verified follows from seed and step alone; the first steps are spread over the lanes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.verify import FIRST, SHARE, chosen

SEEDS = st.integers(0, 2**63 - 1)
LANES = st.lists(st.integers(0, 233), min_size=1, max_size=40, unique=True).map(sorted)


@given(SEEDS, st.integers(0, 2**40), LANES, st.floats(0.0, 1.0))
def test_a_lane_with_work_is_chosen_as_before(seed: int, step: int, lanes: list[int], share: float) -> None:
    lane = chosen(seed, step, lanes, share)
    assert lane == chosen(seed, step, tuple(lanes), share)
    assert lane is None or lane in lanes


@given(SEEDS, st.integers(0, 2**40), LANES, st.floats(1e-9, 1.0), st.floats(1e-9, 1.0))
def test_a_larger_share_takes_the_steps_of_a_smaller_one(
    seed: int, step: int, lanes: list[int], one: float, other: float
) -> None:
    less, more = (chosen(seed, step, lanes, share) for share in sorted((one, other)))
    assert less is None or less == more


@given(SEEDS, st.integers(0, 2**40), LANES)
def test_none_with_share_0_and_all_with_share_1(seed: int, step: int, lanes: list[int]) -> None:
    assert chosen(seed, step, lanes, 0.0) is None
    assert chosen(seed, step, lanes, 1.0) in lanes
    assert chosen(seed, step, [], 1.0) is None


@given(SEEDS, LANES)
def test_the_first_steps_are_verified_and_every_third_of_the_lanes_has_its_turn(seed: int, lanes: list[int]) -> None:
    taken = [chosen(seed, step, lanes, 1e-12) for step in FIRST]
    assert None not in taken and len(set(taken)) == min(len(lanes), len(FIRST))
    third = max(1, len(lanes) // 3)
    assert all(set(lanes[at : at + third]) & set(taken) for at in (0, third, 2 * third) if lanes[at : at + third])


def test_a_hundredth_of_the_later_steps_is_verified() -> None:
    number = sum(chosen(3, step, range(4), SHARE) is not None for step in range(20, 50_020))
    assert 400 < number < 600
    assert {chosen(3, step, range(4), 1.0) for step in range(20, 120)} == {0, 1, 2, 3}
