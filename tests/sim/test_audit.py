"""What the simulation of servers is judged by, and the clocks that it counts with."""

from __future__ import annotations

import random

import pytest

from holdfast.core.sync.modes import Clocks, TakenPush, held_back, parse
from holdfast.testing.model import Violation
from holdfast.testing.server_audit import Audit, most_stale
from holdfast.testing.server_clocks import Tally
from holdfast.testing.server_pushes import Push, Record


def audit(mode: str, lanes: int = 3, steps: int = 20) -> Audit:
    return Audit(parse(mode), lanes, slices=2, steps=steps)


def give(judge: Audit, step: int, *lanes: int, read: int = 0) -> list[Push]:
    pushes = [Push(lane, step, attempt=0, read=read) for lane in lanes]
    for push in pushes:
        judge.completed(push)
    return pushes


def make(judge: Audit, step: int) -> None:
    """A version of a whole step, whose pushes were all computed from the first parameters."""
    pushes, record = give(judge, step, 0, 1, 2), Record()
    judge.decided(tuple(TakenPush(lane, step) for lane in range(3)))
    record.version = step + 1
    judge.published(0, record, pushes)


# ------------------------------------------------------------ commit sets


def test_a_push_goes_into_the_first_commit_set_that_can_take_it() -> None:
    judge = audit("quorum:2")
    give(judge, 0, 0, 1, 2)
    with pytest.raises(Violation, match="version 0 leaves out step 0 of lane 2, which has pushed 1, taken 0"):
        judge.decided((TakenPush(0, 0), TakenPush(1, 0)))


def test_a_lane_has_room_for_one_push() -> None:
    judge = audit("bounded:2")
    give(judge, 0, 0)
    with pytest.raises(Violation, match=r"there is no room for .*step=1.*: only 0 steps are applied"):
        judge.arrived(Push(0, 1, attempt=0, read=0))


def test_no_push_is_taken_twice_or_before_it_is_there() -> None:
    judge = audit("async")
    give(judge, 0, 1)
    judge.decided((TakenPush(1, 0),))
    for taken in (TakenPush(1, 0), TakenPush(1, 1), TakenPush(0, 0)):
        with pytest.raises(Violation, match=f"takes step {taken.step} of lane {taken.lane}"):
            judge.decided((taken,))


def test_a_commit_set_waits_for_lanes_that_can_give_something() -> None:
    judge = audit("quorum:2")
    give(judge, 0, 1)
    with pytest.raises(Violation, match="version 0 takes 1 pushes and did not wait for lane 0"):
        judge.decided((TakenPush(1, 0),))


def test_nobody_waits_for_lanes_that_are_done() -> None:
    judge = audit("quorum:2", steps=1)
    give(judge, 0, 0, 1)
    judge.decided((TakenPush(0, 0), TakenPush(1, 0)))
    give(judge, 0, 2)
    judge.decided((TakenPush(2, 0),))


# ------------------------------------------------------------ staleness


@pytest.mark.parametrize(
    ("mode", "most"),
    [("exact", 0), ("bounded:3", 14), ("local:5", 0), ("quorum:3", 11), ("quorum:1", 34), ("async", 40)],
)
def test_how_stale_a_push_can_be(mode: str, most: int) -> None:
    assert most_stale(parse(mode), lanes=3, steps=20) == most


def test_a_push_that_is_staler_is_seen() -> None:
    judge = audit("bounded:1")
    for step in range(2):
        make(judge, step)
    with pytest.raises(Violation, match=r"read=0.* was computed 2 steps ahead of its parameters: too stale"):
        make(judge, 2)


def test_a_push_that_too_many_versions_went_before_is_seen() -> None:
    judge = audit("quorum:3")
    judge._most_stale = 2
    for step in range(3):
        make(judge, step)
    with pytest.raises(Violation, match=r"read=0.* goes into version 3: too stale for quorum:3"):
        make(judge, 3)


# ------------------------------------------------------------ tally


@pytest.mark.parametrize("seed", range(20))
def test_a_tally_says_what_looking_at_all_lanes_says(seed: int) -> None:
    rng = random.Random(seed)
    lanes, mode = rng.randrange(1, 8), parse(rng.choice(["exact", "bounded:2", "quorum:1", "async"]))
    tally = Tally(30, lanes)
    for _ in range(200):
        able = [lane for lane in range(lanes) if tally.pushed[lane] > tally.applied[lane]]
        if able and rng.random() < 0.4:
            tally.apply(rng.sample(able, rng.randrange(1, len(able) + 1)))
        else:
            tally.push(rng.randrange(lanes))
        plain = Clocks(*tally)
        assert (tally.slowest, tally.late) == (plain.slowest, plain.late)
        for lane in range(lanes):
            assert held_back(mode, tally, lane) == held_back(mode, plain, lane)
