"""Rounds of a pass that another mode has begun, and where they end when the mode is to change again."""

from __future__ import annotations

from holdfast.core.clocks import parse
from holdfast.core.staleness import Staleness
from holdfast.core.standing import Crewed
from holdfast.exchange import annex, optimizer
from holdfast.exchange.inner import Inner
from holdfast.exchange.local import Local, outer_optimizer
from holdfast.exchange.paced import Boundary, Course
from holdfast.exchange.pushes import Pushes, Record
from holdfast.exchange.pushslots import PushSlots
from holdfast.transport.arena import Arena, Sections
from tests.unit.exchange.crewed import LANES, Worker

STEPS = 10
COURSE = Course(0, STEPS, lambda step: [3] * LANES)


def local_of() -> Local:
    """A worker with all lanes and slices; three steps of the pass were made in another mode, and 20 before it."""
    one, mode = Worker(0, 0), parse("local:3")
    sections = Sections()
    annex.add_sections(sections, one.room, mode)
    room = Arena(sections)
    local = Local(one.space, one.board, one.slots, one.slices, one.buffers, one.controls)
    pushes = Pushes(room.section("pushes"), LANES, 1)
    pushes.go_on_from(23)
    pushes.begin(0, STEPS, 7, done=3, rounds=True)
    for index in range(len(one.space.layout.slices)):
        one.board.publish(index, 7)
    local.set_pace(mode, Staleness(), pushes, PushSlots(one.space, room, LANES, 1), lambda step: one.member.hyper)
    sizes = optimizer.state_sizes(one.space, one.schemas)
    inner = Inner(lambda name: (room if annex.passing(name) else one.arena).section(name), sizes)
    inner.begin(7)
    local.set_inner(one.user, one.schemas, inner, outer_optimizer(one.user, 0.5, 0.5), lambda views: None)
    local.install(0, Crewed([0], [0], [0] * LANES))
    return local


def make_a_round(local: Local) -> None:
    """All lanes have made the round at hand, and none had samples in it."""
    for lane in range(LANES):
        local.pushes.push(lane, Record(local.pushes.pushed(lane), local.version, 0, 0.0, 0.0, 0.0))
        local._lanes.pop(lane, None)


def test_rounds_are_counted_from_where_the_pass_goes_on() -> None:
    """Of seven steps that are left, the last round has one."""
    local = local_of()
    assert local.committed() == 23, "also before this worker has asked for a unit"
    assert local.next_unit(COURSE) == (3, 0)
    make_a_round(local)
    assert local.next_unit(COURSE) == (6, 0) and local.committed() == 26
    make_a_round(local)
    assert local.next_unit(COURSE) == (9, 0) and local.committed() == 29
    make_a_round(local)
    assert local.next_unit(COURSE) is None and local.committed() == 30


def test_where_the_mode_is_to_change_the_round_at_hand_is_made_to_its_end() -> None:
    local = local_of()
    assert local.next_unit(COURSE) == (3, 0)
    local.settle(True, 8)
    assert local.next_unit(COURSE) == (3, 0)
    make_a_round(local)
    assert local.next_unit(COURSE) == Boundary(6)
    local.settle(True, 8)
    assert local.next_unit(COURSE) == Boundary(6), "said again, when somebody was lost: the same"
    local.settle(False, 0)
    assert local.next_unit(COURSE) == (6, 0), "nobody wants it any more"


def test_a_round_in_which_the_pass_ends() -> None:
    """The boundary is before the next pass, also where the version that was named is beyond it."""
    local = local_of()
    local.settle(True, 30)
    for step in (3, 6, 9):
        assert local.next_unit(COURSE) == (step, 0)
        make_a_round(local)
    assert local.next_unit(COURSE) is None
    assert local.next_unit(Course(1, STEPS, COURSE.counts)) == Boundary(0)


def test_a_run_that_is_to_end_does_so_where_all_lanes_are() -> None:
    local = local_of()
    make_a_round(local)
    assert local.next_unit(COURSE) == (6, 0)
    local.stop()
    local.settle(True, 30)
    assert local.next_unit(COURSE) is None and local.committed() == 26
