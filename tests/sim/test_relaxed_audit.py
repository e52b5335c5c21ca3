"""What the simulation of relaxed modes is judged by."""

from __future__ import annotations

import pytest

from holdfast.core.sync.modes import TakenPush, parse
from holdfast.testing.model import Violation
from holdfast.testing.relaxed.relaxed_audit import LaneProgress, check_commit_set, check_shares, most_stale


def check(mode: str, found: list[TakenPush], pushed: list[int], waiting: set[int], steps: int = 20) -> None:
    check_commit_set(parse(mode), found, pushed, waiting, steps)


# ------------------------------------------------------------ commit sets


def test_a_push_goes_into_the_first_commit_set_that_can_take_it() -> None:
    with pytest.raises(Violation, match="a commit set of 2 pushes leaves out step 0 of lane 2"):
        check("quorum:2", [TakenPush(0, 0), TakenPush(1, 0)], [1, 1, 1], {0, 1, 2})
    check("quorum:2", [TakenPush(0, 0), TakenPush(1, 0), TakenPush(2, 0)], [1, 1, 1], {0, 1, 2})


@pytest.mark.parametrize("taken", [TakenPush(1, 1), TakenPush(1, 3), TakenPush(0, 0)])
def test_no_push_is_taken_twice_or_before_it_is_there(taken: TakenPush) -> None:
    with pytest.raises(Violation, match=f"takes step {taken.step} of lane {taken.lane}, which has pushed"):
        check("async", [taken], [1, 3], {1})
    with pytest.raises(Violation, match="takes step 2 of lane 1, which has pushed 3"):
        check("async", [TakenPush(1, 2)] * 2, [1, 3], {1})
    check("async", [TakenPush(1, 2)], [1, 3], {1})


def test_a_commit_set_waits_for_lanes_that_can_give_something() -> None:
    with pytest.raises(Violation, match="takes 1 pushes and did not wait for lane 0"):
        check("quorum:2", [TakenPush(1, 0)], [0, 1, 0], {1})
    with pytest.raises(Violation, match="takes 2 pushes and did not wait for lane 2"):
        check("exact", [TakenPush(0, 0), TakenPush(1, 0)], [1, 1, 0], {0, 1})
    check("quorum:2", [TakenPush(1, 0), TakenPush(2, 0)], [0, 1, 1], {1, 2})


def test_a_commit_set_does_not_wait_for_lanes_that_are_too_far_ahead() -> None:
    check("quorum:2", [TakenPush(2, 0)], [9, 9, 1], {2})
    with pytest.raises(Violation, match="did not wait for lane 0"):
        check("quorum:2", [TakenPush(2, 0)], [8, 9, 1], {2})


def test_a_commit_set_does_not_wait_for_lanes_that_are_done() -> None:
    check("quorum:2", [TakenPush(2, 0)], [1, 1, 1], {2}, steps=1)


def test_a_commit_set_takes_whole_shares() -> None:
    whose = {0: (0, 1), 1: (1, 3), 2: (1, 3), 3: (1, 3)}
    check_shares([TakenPush(0, 4)], whose)
    check_shares([TakenPush(lane, 4) for lane in (1, 2, 3)], whose)
    with pytest.raises(Violation, match=r"takes lanes \[0, 1, 3\], and one of its pushes is for 1 to 3"):
        check_shares([TakenPush(lane, 4) for lane in (0, 1, 3)], whose)


# ------------------------------------------------------------ staleness


@pytest.mark.parametrize(
    ("mode", "most"),
    [("exact", 0), ("bounded:3", 14), ("local:5", 0), ("quorum:3", 11), ("quorum:1", 34), ("async", 40)],
)
def test_how_stale_a_push_can_be(mode: str, most: int) -> None:
    assert most_stale(parse(mode), lanes=3, steps=20) == most


# ------------------------------------------------------------ liveness


def test_a_lane_that_gets_on_does_not_starve() -> None:
    progress = LaneProgress(2)
    assert all(progress.starved(20.0 * step, [step, step], steps=10) is None for step in range(11))
    assert progress.starved(10_000.0, [10, 10], steps=10) is None, "lanes that are done wait for nothing"


def test_a_lane_starves_whatever_the_others_do() -> None:
    progress = LaneProgress(2)
    assert progress.starved(0.0, [0, 0], steps=10) is None
    assert progress.starved(20.0, [1, 0], steps=10) is None
    assert progress.starved(40.0, [2, 0], steps=10) == 1


def test_of_lanes_that_starve_the_furthest_behind_is_named() -> None:
    progress = LaneProgress(3)
    assert progress.starved(0.0, [4, 3, 5], steps=10) is None
    assert progress.starved(40.0, [4, 3, 5], steps=10) == 1


def test_a_lane_whose_steps_were_taken_back_has_not_starved() -> None:
    progress = LaneProgress(1)
    assert progress.starved(0.0, [5], steps=10) is None
    assert progress.starved(20.0, [3], steps=10) is None
    assert progress.starved(40.0, [3], steps=10) is None
