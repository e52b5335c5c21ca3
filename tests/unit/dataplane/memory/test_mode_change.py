"""What another way of keeping step finds in memory: pushes that go on, mode sections, records of buffers, versions."""

from __future__ import annotations

import os

import pytest

from holdfast.control.protocol.messages import Reached
from holdfast.core.sync.modes import TakenPush, parse
from holdfast.dataplane.memory import mode_sections
from holdfast.dataplane.memory.arena import Arena, Sections, discard, grow
from holdfast.dataplane.memory.board import H_PACE, Board, ModeRecord, board_bytes
from holdfast.dataplane.memory.host_memory import HostMemory
from holdfast.dataplane.reduce.work import StepWork
from holdfast.dataplane.relaxed.pushes import P_OP, Pushes, PushRecord, pushes_bytes
from holdfast.dataplane.wire.primary_sync import PrimarySync
from tests.unit.dataplane.members import LANES, Worker, install, work_of
from tests.unit.dataplane.memories import Ground
from tests.unit.dataplane.wire.ports import Port

# ---------------------------------------------------------------- pushes


def pushes_of(lanes: int = 3) -> Pushes:
    return Pushes(memoryview(bytearray(pushes_bytes(lanes))), lanes)


@pytest.mark.parametrize("version", [7, 8])
def test_a_pass_goes_on_where_another_mode_left_it(version: int) -> None:
    pushes = pushes_of()
    pushes.go_on_from(23)
    assert not pushes.begun(4) and not pushes.over(0) and pushes.committed(lambda: 0) == 23
    pushes.begin(4, 10, version, done=3)
    assert (pushes.base, pushes.resumed) == (20, 3)
    clocks = pushes.clocks(version, 10)
    assert (clocks.pushed, clocks.taken, clocks.applied) == ([3] * 3, [3] * 3, [3] * 3)
    assert pushes.begun(4) and not pushes.over(4) and pushes.over(3)
    assert not pushes.decided(version) and pushes.furthest() == 3
    assert pushes.committed(lambda: 3) == 23
    pushes.push(1, PushRecord(3, version, 5, 0.5, 0.0, 0.0))
    pushes.decide(version, [TakenPush(1, 3)])
    assert pushes.commit_set(version) == [TakenPush(1, 3)] and pushes.newest(version) == 3
    assert pushes.clocks(version + 1, 10).applied == [3, 4, 3]
    pushes.begin(5, 8, version + 1)
    assert (pushes.base, pushes.resumed, pushes.total) == (30, 0, 8)
    assert pushes.clocks(version + 1, 8).applied == [0] * 3


def test_a_pass_that_goes_on_in_rounds() -> None:
    """What was done of it counts as steps, and not as pushes: a push is of a whole round."""
    pushes = pushes_of()
    pushes.go_on_from(23)
    pushes.begin(4, 10, 7, done=3, rounds=True)
    assert (pushes.base, pushes.resumed, pushes.total, pushes.furthest(), pushes.made(7)) == (20, 3, 10, 0, 0)
    for lane in range(3):
        pushes.push(lane, PushRecord(0, 7, 5, 0.5, 0.0, 0.0))
    pushes.decide(7, [TakenPush(lane, 0) for lane in range(3)])
    assert (pushes.made(7), pushes.made(8), pushes.furthest()) == (0, 1, 1)
    told = pushes.told(8)
    mirror = pushes_of()
    assert told is not None
    mirror.mirror(told, ())
    assert (mirror.made(8), mirror.resumed) == (1, 3)


def test_who_dies_while_it_begins_a_pass_leaves_the_one_before_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half-made, the words say neither that the old pass goes on nor that the new one has begun."""
    pushes = pushes_of()
    pushes.begin(0, 6, 0)

    def killed(version: int) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(pushes, "_commit_set", killed)
        pushes.begin(1, 9, 6)
    assert pushes.over(0) and not pushes.over(1) and not pushes.begun(1)
    assert pushes.committed(lambda: 99) == 6
    pushes.begin(1, 9, 6)
    assert pushes.begun(1) and (pushes.base, pushes.total) == (6, 9)


def test_how_far_the_run_is_while_a_pass_begins_between_two_looks() -> None:
    pushes, looks = pushes_of(), [0]
    pushes.begin(0, 6, 0)

    def applied() -> int:
        looks[0] += 1
        if looks[0] == 1:
            pushes.begin(1, 9, 6)
            return 6
        return 0

    assert pushes.committed(applied) == 6 and looks == [2]
    assert pushes._words[P_OP] == 2


# ---------------------------------------------------------------- the board and the mode sections


def test_the_pace_on_the_board() -> None:
    board = Board(memoryview(bytearray(board_bytes(3, 4, 5))), 3, 4, 5)
    board.format()
    assert board.pace() is None and board.pace_serial() == 0
    for pace in (
        ModeRecord(1, "bounded:64", 8192, 4096, 12, 12),
        ModeRecord(2, "exact", 0, 0, 40, 17),
        ModeRecord(3, "quorum:234"),
    ):
        board.put_pace(pace)
        assert (board.pace(), board.pace_serial()) == (pace, pace.serial)
    board.words[H_PACE] = 2
    assert board.pace() == ModeRecord(2, "exact", 0, 0, 40, 17), "who dies before the last store leaves what counted"


def test_memory_that_grows_and_is_given_back() -> None:
    fd = os.memfd_create("test")
    try:
        os.ftruncate(fd, 4096)
        grow(fd, 3 * 4096)
        grow(fd, 4096)
        assert os.fstat(fd).st_size == 3 * 4096
        sections = Sections()
        sections.add("pushes", 5000)
        room = Arena(sections, fd=fd, begin=4096)
        room.section("pushes")[:] = bytes([1]) * 5000
        assert os.pread(fd, 1, 4096) == b"\1" and os.fstat(fd).st_blocks == 16
        discard(fd, [(4096, 5000)])
        assert os.fstat(fd).st_blocks == 0 and bytes(room.section("pushes")) == bytes(5000)
    finally:
        os.close(fd)


# ---------------------------------------------------------------- what a host does when a mode is news


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
    room = Sections()
    mode_sections.add_sections(room, ground.worker.space.room(LANES), parse("bounded:4"))
    begin = len(ground.map)
    laid = {
        name: (at - begin, size) for name, (at, size) in view.manifest.sections.items() if mode_sections.passing(name)
    }
    assert laid == room.spans, "a worker, which knows the model, lays it out in the same way"
    view.section("push-present")[0] = 1
    again = ground.host_memory.view(reached)
    assert again is not None and again.section("push-present")[0] == 1, "said again, it is no news"


def test_memory_of_a_mode_that_is_over_is_given_back() -> None:
    ground = Ground()
    size = os.fstat(ground.fd).st_blocks
    view = ground.host_memory.view(Reached(1, "bounded:4", 7, 7))
    assert view is not None
    for name in view.manifest.sections:
        if mode_sections.passing(name):
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


# ---------------------------------------------------------------- exact steps after others


def test_steps_that_are_versions_ahead_are_the_same_steps() -> None:
    """What was counted beyond one version a step does not matter to a step, only to where the board says so."""
    plain, ahead = Worker(0, 0), Worker(0, 0)
    for index in range(len(ahead.space.layout.slices)):
        ahead.board.publish(index, 5)
    for one in (plain, ahead):
        install([one], [0] * LANES)
    for number in range(3):
        work = work_of(number)
        later = StepWork(number, work.lanes, work.counts, ahead=5)
        while plain.turn(work) != "done":
            pass
        while ahead.turn(later) != "done":
            pass
        assert ahead.state() == plain.state()
    assert (plain.board.versions(), ahead.board.versions()) == ([3] * 4, [8] * 4)
    assert ahead.through(2) and not ahead.through(3), "its row shows steps"
