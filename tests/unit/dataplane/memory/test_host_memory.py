"""What another way of keeping step finds in memory: mode sections, records of buffers, versions."""

from __future__ import annotations

import os

import pytest

from holdfast.control.protocol.messages import Reached
from holdfast.core.sync.modes import TakenPush, parse
from holdfast.dataplane.memory.board import ModeRecord
from holdfast.dataplane.memory.host_memory import HostMemory
from holdfast.dataplane.memory.sections import lay_out_mode, passing
from holdfast.dataplane.relaxed.pushes import PushRecord
from holdfast.dataplane.wire.primary_sync import PrimarySync
from tests.unit.dataplane.members import LANES
from tests.unit.dataplane.memories import Ground
from tests.unit.dataplane.wire.ports import Port


def test_the_mode_of_a_generation_is_laid_out_before_anybody_hears_of_it() -> None:
    ground = Ground()
    before = ground.host_memory.view()
    assert before is not None and not before.manifest.relaxed and "pushes" not in before.manifest.sections
    reached = Reached(1, "bounded:4", version=7, step=5)
    view = ground.host_memory.view(reached)
    assert view is not None and view.manifest.relaxed
    assert view.board.pace() == ModeRecord(1, "bounded:4", len(ground.map), view.board.pace().size, 7, 5)  # type: ignore[union-attr]
    told = PrimarySync(view).pushes.told(7)
    assert told is not None and (told.op, told.base, told.done, told.pushed) == (0, 5, 5, [0] * LANES)
    room = lay_out_mode(ground.worker.space.room(LANES), parse("bounded:4"))
    begin = len(ground.map)
    laid = {
        name: (at - begin, size) for name, (at, size) in view.manifest.sections.items() if passing(name)
    }
    assert laid == room.spans, "a worker, which knows the model, lays it out in the same way"
    view.section("push-present")[0] = 1
    again = ground.host_memory.view(reached)
    assert again is not None and again.section("push-present")[0] == 1, "said again, it is no news"


def test_a_generation_begins_with_lanes_that_count_for_themselves() -> None:
    """One of them may push again, and be read, before the driver of another has looked."""
    ground, reached = Ground(), Reached(1, "async", version=7, step=5)
    ground.host_memory.begin(reached)
    view = ground.host_memory.view(reached)
    assert view is not None and view.manifest.relaxed
    pushes = PrimarySync(view).pushes
    pushes.begin(0, 9, 7)
    pushes.push(0, PushRecord(0, 7, 32, 0.5, 0.0, 0.0, LANES))
    assert pushes._pushed.tolist()[1:] == [0] * (LANES - 1) and pushes.all_pushed() == [1] * LANES
    ground.host_memory.begin(reached)
    assert len(set(pushes._pushed.tolist()[1:])) == 1 and pushes._pushed[1] and pushes.all_pushed() == [1] * LANES


def test_memory_of_a_mode_that_is_over_is_given_back() -> None:
    ground = Ground()
    size = os.fstat(ground.fd).st_blocks
    view = ground.host_memory.view(Reached(1, "bounded:4", 7, 7))
    assert view is not None
    for name in view.manifest.sections:
        if passing(name):
            view.section(name)[:] = bytes([1]) * view.manifest.sections[name][1]
    assert os.fstat(ground.fd).st_blocks > size + 40
    view = ground.host_memory.view(Reached(2, "exact", 20, 12))
    assert view is not None and not view.manifest.relaxed and "pushes" not in view.manifest.sections
    assert os.fstat(ground.fd).st_blocks <= size
    view = ground.host_memory.view(Reached(3, "async", 30, 22))
    assert view is not None and not any(view.section("pushes")[16 * 8 :])


def test_a_record_of_buffers_lies_where_the_step_says() -> None:
    """The host that holds the state finds what a lane gave where the lane's own host has put it."""
    holds = []
    for _ in range(2):
        view = Ground().host_memory.view(Reached(1, "bounded:4", 3, 3))
        assert view is not None
        holds.append(view)
    away, primary = map(PrimarySync, holds)
    flags, size = len(holds[0].manifest.buffers), holds[0].manifest.buffers_size
    assert flags and size
    for primary_sync in (away, primary):
        primary_sync.pushes.begin(0, 9, 3, done=3)
    place = 3 % 2 * LANES + 1  # step 3 of lane 1
    holds[0].section("buffers-changed")[place * flags : (place + 1) * flags] = bytes([1] * flags)
    holds[0].section("buffers")[(2 + place) * size : (3 + place) * size] = bytes([9]) * size
    away.pushes.push(1, PushRecord(3, 3, 5, 0.5, 0.0, 0.0))
    record, body = away.record(TakenPush(1, 3))
    primary.land_record(1, record, memoryview(body), {1})
    assert primary.pushes.pushed(1) == 4 and primary.record(TakenPush(1, 3)) == (record, body)


def test_a_mode_that_the_run_goes_back_to_finds_its_pushes_where_it_left_them() -> None:
    """All that was made since is lost. A host that was not there meanwhile never left that mode."""
    ground = Ground()
    for reached, again in ((Reached(1, "async", 3, 3), 3), (Reached(4, "bounded:2", 3, 3), 6)):
        view = ground.host_memory.view(reached)
        assert view is not None
        pushes = PrimarySync(view).pushes
        pushes.begin(0, 9, 3, done=3)
        pushes.push(1, PushRecord(3, 3, 5, 0.5, 0.0, 0.0))
        view = ground.host_memory.view(Reached(again, reached.sync, 3, 3))
        assert view is not None and view.board.pace_serial() == again
        assert PrimarySync(view).pushes.clocks(3, 9).pushed == [3, 4, 3, 3]


def test_a_mode_that_the_run_was_started_with_and_goes_back_to_has_its_pushes_in_the_arena() -> None:
    primary = Port(primary=True)
    host_memory = HostMemory(primary.arena._map)
    primary.pushes.begin(0, 9, 0)
    primary.push(2, 7)
    view = host_memory.view(Reached(2, "bounded:2"))
    assert view is not None and view.manifest.sections == primary.view.manifest.sections
    assert view.board.pace() == ModeRecord(2, "bounded:2") and PrimarySync(view).pushes.clocks(0, 9).pushed == [
        0,
        0,
        1,
        0,
    ]


@pytest.mark.parametrize("version", [3, 5])
def test_a_state_whose_clocks_are_given_up_is_none(version: int) -> None:
    """A primary that others went on without, and that comes back to another mode: it counts where all stood."""
    ground = Ground()
    view = ground.host_memory.view(Reached(1, "async", 0, 0))
    assert view is not None
    for index in range(len(view.manifest.slices)):
        view.board.publish(index, 3)
    assert view.board.level() == 3
    view = ground.host_memory.view(Reached(2, "bounded:2", version, version))
    assert view is not None and view.board.level() == (3 if version == 3 else -1)
