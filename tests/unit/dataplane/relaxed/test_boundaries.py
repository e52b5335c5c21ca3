"""One worker in relaxed modes: what it may not be misled by, and what it must not wait for."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.shares import Share
from holdfast.core.sync.modes import TakenPush
from holdfast.dataplane.relaxed.pushes import PushRecord
from holdfast.dataplane.relaxed.relaxed_member import Boundary, Course
from tests.unit.dataplane.members import LANES, WouldWait
from tests.unit.dataplane.relaxed.of_modes import ALL, relaxed_of

STEPS = 4


COURSE = Course(0, STEPS, lambda step: [3] * LANES)


def test_a_slice_that_a_dead_worker_was_at_keeps_nobody_from_going_quiet() -> None:
    relaxed = relaxed_of()
    assert relaxed.pull()
    relaxed.board.row = 1
    relaxed.board.begin_undo(0, 3)  # and its owner is gone
    relaxed._controls.pausing = True  # type: ignore[misc]
    assert not relaxed.pull()
    relaxed.board.clear_undo(1)
    assert relaxed.pull()


def test_who_is_asked_for_quiet_while_it_waits_for_a_slice_hears_it(monkeypatch: pytest.MonkeyPatch) -> None:
    relaxed = relaxed_of()
    relaxed.board.row = 1
    relaxed.board.begin_undo(0, 3)
    looks: list[int] = []

    def look() -> None:
        looks.append(1)
        monkeypatch.setattr(relaxed._controls, "pausing", len(looks) == 5)

    monkeypatch.setattr(relaxed._controls, "look", look)
    assert not relaxed.pull() and len(looks) == 5


def test_a_commit_set_that_is_made_during_a_look_does_not_count_as_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cell of the one before last is used again, so what was read may be of a version that is not there yet."""
    relaxed = relaxed_of()
    pushes, board = relaxed.pushes, relaxed.board
    for lane in range(LANES):
        pushes.push(lane, PushRecord(3, 3, 3, 0.5, 0.0, 0.0))
    pushes.decide(3, [TakenPush(0, 3)])
    counts, calls = pushes._counts, []

    def slow(version: int) -> list[int]:
        if not calls:  # between the look at the versions and the look at the commit sets, others go on
            calls.append(version)
            for index in range(len(relaxed.space.layout.slices)):
                board.publish(index, 4)
            pushes.decide(4, [TakenPush(lane, 3) for lane in range(1, LANES)])
        return counts(version)

    monkeypatch.setattr(pushes, "_counts", slow)
    clocks: Any = relaxed._clocks()
    assert (clocks.applied, clocks.taken) == ([4, 3, 3, 3], [4] * LANES)


def test_where_the_mode_is_to_change_all_lanes_go_to_the_furthest_one_and_no_further() -> None:
    relaxed = relaxed_of()
    relaxed.pushes.push(1, PushRecord(3, 3, 0, 0.0, 0.0, 0.0))
    relaxed.settle(True, 0)
    assert relaxed.next_unit(COURSE) == (3, Share(0, 1))
    for lane in (0, 2, 3):
        relaxed.pushes.push(lane, PushRecord(3, 3, 0, 0.0, 0.0, 0.0))
    assert relaxed.next_unit(COURSE) is None, "the pass is complete: the boundary is before the next one"
    assert relaxed.next_unit(Course(1, STEPS, COURSE.counts)) == Boundary(0)
    relaxed.settle(False, 0)
    assert relaxed.next_unit(Course(1, STEPS, COURSE.counts)) == (0, ALL), "nobody wants it any more"


def test_in_the_middle_of_a_pass() -> None:
    relaxed = relaxed_of()
    relaxed.settle(True, 0)
    assert relaxed.next_unit(COURSE) == Boundary(3)
    relaxed.stop()
    assert relaxed.next_unit(COURSE) is None, "a run that is to end does, at the same boundary"


@pytest.mark.parametrize("op", [0, 1])
def test_nobody_stands_before_replicas_hold_the_version(op: int) -> None:
    """Whoever is lost while all stand takes nothing along."""
    relaxed = relaxed_of()
    relaxed.pushes.guard(3)
    relaxed.settle(True, 0)
    with pytest.raises(WouldWait):
        relaxed.next_unit(Course(op, STEPS, COURSE.counts, done=3))
    relaxed.pushes.hold(3)
    assert relaxed.next_unit(Course(op, STEPS, COURSE.counts, done=3)) == Boundary(3)


def test_a_pass_that_another_mode_has_begun_and_this_one_has_not() -> None:
    """The mode is to change again before anybody has gone on with the pass: it is where it was."""
    relaxed = relaxed_of()
    relaxed.settle(True, 0)
    assert relaxed.next_unit(Course(1, STEPS, COURSE.counts, done=2)) == Boundary(2)


def test_a_pass_that_somebody_else_begins_during_a_look_is_not_over_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read of the lanes is of the pass before, in which all of them have come to the end."""
    relaxed = relaxed_of()
    relaxed.pushes.go_on_from(STEPS)
    relaxed.pushes.begin(0, STEPS, 3, done=STEPS)
    relaxed.at = type(relaxed.at)(worker=0, owner=[1] * len(relaxed.at.owner), driver=[0] * LANES, members=(0, 1))
    own_up = relaxed._own_up

    def begins(clocks: Any) -> bool:
        if not relaxed.pushes.begun(1):
            relaxed.pushes.begin(1, STEPS, 3)
        return own_up(clocks)

    monkeypatch.setattr(relaxed, "_own_up", begins)
    monkeypatch.setattr(relaxed._controls, "wait", lambda changed: None)
    assert relaxed.next_unit(Course(1, STEPS, COURSE.counts)) == (0, ALL)


def test_units_of_the_next_pass_are_not_those_of_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins during the look of somebody who has not noticed that this one is complete."""
    relaxed = relaxed_of()
    relaxed.pushes.go_on_from(STEPS)
    relaxed.pushes.begin(0, STEPS, 3, done=STEPS)
    clocks = relaxed._clocks

    def slow() -> Any:
        if not relaxed.pushes.over(0):
            relaxed.pushes.begin(1, STEPS, 3)
        return clocks()

    monkeypatch.setattr(relaxed, "_clocks", slow)
    assert relaxed.next_unit(COURSE) is None


def test_a_pass_that_somebody_else_is_about_to_begin() -> None:
    """Half-made, it is waited for by those who are in it; those who were in the one before leave that."""
    relaxed = relaxed_of()
    relaxed.pushes._words[0] = -2
    assert relaxed.next_unit(COURSE) is None
    relaxed.at = type(relaxed.at)(worker=0, owner=[1] * len(relaxed.at.owner), driver=[1] * LANES, members=(0, 1))
    with pytest.raises(WouldWait):
        relaxed.next_unit(Course(1, STEPS, COURSE.counts))
