"""One worker where lanes need not keep step: what it may not be misled by, and what it must not wait for."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.clocks import Taken
from holdfast.exchange.paced import Boundary, Course
from holdfast.exchange.pushes import Record
from tests.unit.exchange.crewed import LANES, WouldWait
from tests.unit.exchange.loose import paced_of

STEPS = 4


COURSE = Course(0, STEPS, lambda step: [3] * LANES)


def test_a_slice_that_a_dead_worker_was_at_keeps_nobody_from_going_quiet() -> None:
    paced = paced_of()
    assert paced.pull()
    paced.board.row = 1
    paced.board.begin_undo(0, 3)  # and its owner is gone
    paced._controls.pausing = True  # type: ignore[misc]
    assert not paced.pull()
    paced.board.clear_undo(1)
    assert paced.pull()


def test_who_is_asked_for_quiet_while_it_waits_for_a_slice_hears_it(monkeypatch: pytest.MonkeyPatch) -> None:
    paced = paced_of()
    paced.board.row = 1
    paced.board.begin_undo(0, 3)
    looks: list[int] = []

    def look() -> None:
        looks.append(1)
        monkeypatch.setattr(paced._controls, "pausing", len(looks) == 5)

    monkeypatch.setattr(paced._controls, "look", look)
    assert not paced.pull() and len(looks) == 5


def test_a_docket_that_is_made_during_a_look_does_not_count_as_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cell of the one before last is used again, so what was read may be of a version that is not there yet."""
    paced = paced_of()
    pushes, board = paced.pushes, paced.board
    for lane in range(LANES):
        pushes.push(lane, Record(3, 3, 3, 0.5, 0.0, 0.0))
    pushes.decide(3, [Taken(0, 3)])
    counts, calls = pushes._counts, []

    def slow(version: int) -> list[int]:
        if not calls:  # between the look at the versions and the look at the dockets, others go on
            calls.append(version)
            for index in range(len(paced.space.layout.slices)):
                board.publish(index, 4)
            pushes.decide(4, [Taken(lane, 3) for lane in range(1, LANES)])
        return counts(version)

    monkeypatch.setattr(pushes, "_counts", slow)
    clocks: Any = paced._clocks()
    assert (clocks.applied, clocks.taken) == ([4, 3, 3, 3], [4] * LANES)


def test_where_the_mode_is_to_change_all_lanes_go_to_the_furthest_one_and_no_further() -> None:
    paced = paced_of()
    paced.pushes.push(1, Record(3, 3, 0, 0.0, 0.0, 0.0))
    paced.settle(True, 0)
    assert paced.next_unit(COURSE) == (3, 0)
    for lane in (0, 2, 3):
        paced.pushes.push(lane, Record(3, 3, 0, 0.0, 0.0, 0.0))
    assert paced.next_unit(COURSE) is None, "the pass is complete: the boundary is before the next one"
    assert paced.next_unit(Course(1, STEPS, COURSE.counts)) == Boundary(0)
    paced.settle(False, 0)
    assert paced.next_unit(Course(1, STEPS, COURSE.counts)) == (0, 0), "nobody wants it any more"


def test_in_the_middle_of_a_pass() -> None:
    paced = paced_of()
    paced.settle(True, 0)
    assert paced.next_unit(COURSE) == Boundary(3)
    paced.stop()
    assert paced.next_unit(COURSE) is None, "a run that is to end does, at the same boundary"


@pytest.mark.parametrize("op", [0, 1])
def test_nobody_stands_before_replicas_hold_the_version(op: int) -> None:
    """Whoever is lost while all stand takes nothing along."""
    paced = paced_of()
    paced.pushes.guard(3)
    paced.settle(True, 0)
    with pytest.raises(WouldWait):
        paced.next_unit(Course(op, STEPS, COURSE.counts, done=3))
    paced.pushes.hold(3)
    assert paced.next_unit(Course(op, STEPS, COURSE.counts, done=3)) == Boundary(3)


def test_a_pass_that_another_mode_has_begun_and_this_one_has_not() -> None:
    """The mode is to change again before anybody has gone on with the pass: it is where it was."""
    paced = paced_of()
    paced.settle(True, 0)
    assert paced.next_unit(Course(1, STEPS, COURSE.counts, done=2)) == Boundary(2)


def test_a_pass_that_somebody_else_begins_during_a_look_is_not_over_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read of the lanes is of the pass before, in which all of them have come to the end."""
    paced = paced_of()
    paced.pushes.go_on_from(STEPS)
    paced.pushes.begin(0, STEPS, 3, done=STEPS)
    paced.at = type(paced.at)(worker=0, owner=[1] * len(paced.at.owner), driver=[0] * LANES, members=(0, 1))
    own_up = paced._own_up

    def begins(clocks: Any) -> bool:
        if not paced.pushes.begun(1):
            paced.pushes.begin(1, STEPS, 3)
        return own_up(clocks)

    monkeypatch.setattr(paced, "_own_up", begins)
    monkeypatch.setattr(paced._controls, "wait", lambda changed: None)
    assert paced.next_unit(Course(1, STEPS, COURSE.counts)) == (0, 0)


def test_units_of_the_next_pass_are_not_those_of_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins during the look of somebody who has not noticed that this one is complete."""
    paced = paced_of()
    paced.pushes.go_on_from(STEPS)
    paced.pushes.begin(0, STEPS, 3, done=STEPS)
    clocks = paced._clocks

    def slow() -> Any:
        if not paced.pushes.over(0):
            paced.pushes.begin(1, STEPS, 3)
        return clocks()

    monkeypatch.setattr(paced, "_clocks", slow)
    assert paced.next_unit(COURSE) is None


def test_a_pass_that_somebody_else_is_about_to_begin() -> None:
    """Half-made, it is waited for by those who are in it; those who were in the one before leave that."""
    paced = paced_of()
    paced.pushes._words[0] = -2
    assert paced.next_unit(COURSE) is None
    paced.at = type(paced.at)(worker=0, owner=[1] * len(paced.at.owner), driver=[1] * LANES, members=(0, 1))
    with pytest.raises(WouldWait):
        paced.next_unit(Course(1, STEPS, COURSE.counts))
