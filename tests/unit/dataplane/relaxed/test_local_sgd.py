"""Rounds of a pass that another mode has begun, and where they end when the mode is to change again."""

from __future__ import annotations

from holdfast.core.shares import Share
from holdfast.dataplane.relaxed.local_sgd import LocalMember
from holdfast.dataplane.relaxed.pushes import PushRecord
from holdfast.dataplane.relaxed.relaxed_member import Boundary, Course
from tests.unit.dataplane.members import LANES
from tests.unit.dataplane.relaxed.of_modes import local_of

STEPS = 10
COURSE = Course(0, STEPS, lambda step: [3] * LANES)


def make_a_round(on_host: LocalMember) -> None:
    """All lanes have made the round at hand, and none had samples in it."""
    for lane in range(LANES):
        on_host.pushes.push(lane, PushRecord(on_host.pushes.pushed(lane), on_host.version, 0, 0.0, 0.0, 0.0))
        on_host._lanes.pop(lane, None)


def test_rounds_are_counted_from_where_the_pass_goes_on() -> None:
    """Of seven steps that are left, the last round has one."""
    on_host = local_of()
    assert on_host.committed() == 23, "also before this worker has asked for a unit"
    assert on_host.next_unit(COURSE) == (3, Share(0, 1))
    make_a_round(on_host)
    assert on_host.next_unit(COURSE) == (6, Share(0, 1)) and on_host.committed() == 26
    make_a_round(on_host)
    assert on_host.next_unit(COURSE) == (9, Share(0, 1)) and on_host.committed() == 29
    make_a_round(on_host)
    assert on_host.next_unit(COURSE) is None and on_host.committed() == 30


def test_where_the_mode_is_to_change_the_round_at_hand_is_made_to_its_end() -> None:
    on_host = local_of()
    assert on_host.next_unit(COURSE) == (3, Share(0, 1))
    on_host.settle(True, 8)
    assert on_host.next_unit(COURSE) == (3, Share(0, 1))
    make_a_round(on_host)
    assert on_host.next_unit(COURSE) == Boundary(6)
    on_host.settle(True, 8)
    assert on_host.next_unit(COURSE) == Boundary(6), "said again, when somebody was lost: the same"
    on_host.settle(False, 0)
    assert on_host.next_unit(COURSE) == (6, Share(0, 1)), "nobody wants it any more"


def test_a_round_in_which_the_pass_ends() -> None:
    """The boundary is before the next pass, also where the version that was named is beyond it."""
    on_host = local_of()
    on_host.settle(True, 30)
    for step in (3, 6, 9):
        assert on_host.next_unit(COURSE) == (step, Share(0, 1))
        make_a_round(on_host)
    assert on_host.next_unit(COURSE) is None
    assert on_host.next_unit(Course(1, STEPS, COURSE.counts)) == Boundary(0)


def test_a_run_that_is_to_end_does_so_where_all_lanes_are() -> None:
    on_host = local_of()
    make_a_round(on_host)
    assert on_host.next_unit(COURSE) == (6, Share(0, 1))
    on_host.stop()
    on_host.settle(True, 30)
    assert on_host.next_unit(COURSE) is None and on_host.committed() == 26
