"""What another way of keeping step finds in memory: pushes that go on, an annex, records of buffers, versions."""

from __future__ import annotations

import os

import pytest
import torch
from torch import nn

from holdfast.core.clocks import Taken, parse
from holdfast.exchange import annex, buffers
from holdfast.exchange.board import H_PACE, Board, Pace, board_bytes
from holdfast.exchange.buffers import Buffers
from holdfast.exchange.pushes import P_OP, Pushes, Record, pushes_bytes
from holdfast.exchange.space import Space
from holdfast.exchange.work import StepWork
from holdfast.transport.arena import Arena, Sections, grow
from tests.unit.exchange.crewed import LANES, Worker, install, work_of

# ---------------------------------------------------------------- pushes


def pushes_of(lanes: int = 3, depth: int = 2, fill: int = 0) -> Pushes:
    return Pushes(memoryview(bytearray([fill]) * pushes_bytes(lanes, depth)), lanes, depth)


@pytest.mark.parametrize("version", [7, 8])
def test_a_pass_goes_on_where_another_mode_left_it(version: int) -> None:
    pushes = pushes_of(fill=7)  # whatever lay there before
    pushes.resume(4, 10, version, base=20, done=3)
    clocks = pushes.clocks(version, 10)
    assert (clocks.pushed, clocks.taken, clocks.applied) == ([3] * 3, [3] * 3, [3] * 3)
    assert pushes.begun(4) and not pushes.over(4) and pushes.over(3)
    assert not pushes.decided(version) and pushes.furthest() == 3
    assert pushes.committed(lambda: 3) == 23
    pushes.push(1, Record(3, version, 5, 0.5, 0.0, 0.0))
    pushes.decide(version, [Taken(1, 3)])
    assert pushes.docket(version) == [Taken(1, 3)] and pushes.newest(version) == 3
    assert pushes.clocks(version + 1, 10).applied == [3, 4, 3]
    pushes.begin(5, 8, version + 1)
    assert (pushes.base, pushes.total, pushes.clocks(version + 1, 8).applied) == (30, 8, [0] * 3)


def test_who_dies_while_it_begins_a_pass_leaves_the_one_before_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half-made, the words say neither that the old pass goes on nor that the new one has begun."""
    pushes = pushes_of()
    pushes.begin(0, 6, 0)

    def killed(version: int) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(pushes, "_docket", killed)
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


# ---------------------------------------------------------------- the board and the annex


def test_the_pace_on_the_board() -> None:
    board = Board(memoryview(bytearray(board_bytes(3, 4, 5))), 3, 4, 5)
    board.format()
    assert board.pace() is None and board.pace_serial() == 0
    for pace in (Pace(1, "bounded:64", 8192, 4096, 12, 12), Pace(2, "exact", 0, 0, 40, 17), Pace(3, "quorum:234")):
        board.put_pace(pace)
        assert (board.pace(), board.pace_serial()) == (pace, pace.serial)
    board.words[H_PACE] = 2
    assert board.pace() == Pace(2, "exact", 0, 0, 40, 17), "who dies before the last store leaves what counted"


def test_an_annex_is_clear_of_the_one_before() -> None:
    taken = (0, 0)
    for size in (40, 40, 10, 90, 30, 5):
        begin = annex.place(100, size, taken)
        assert begin >= 100 and (begin >= sum(taken) or begin + size <= taken[0])
        taken = (begin, size)


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
        room.discard(annex.names(sections))
        assert os.fstat(fd).st_blocks == 0 and bytes(room.section("pushes")) == bytes(5000)
    finally:
        os.close(fd)


def test_a_mode_that_needs_more_records_of_buffers_has_them_in_its_annex() -> None:
    model = nn.BatchNorm1d(2)
    space = Space([model], torch.optim.SGD(model.parameters(), lr=0.1))
    base, room = Sections(), Sections()
    buffers.add_sections(base, space, 2)
    annex.add_sections(room, space, 2, parse("bounded:3"), 2)
    assert {"pushes", "push-present", "push-buffers", "push-buffers-changed"} < set(room.spans)
    one = Buffers([model], space, Arena(base), 2)
    one.seed()
    one.use_records(Arena(room), 4)
    for step in range(4):  # all of them in flight at once
        model.running_mean.fill_(step + 1.0)
        one.record(0, step, 0)
    for step in range(4):
        one.merge(step, [0], {0: 1}, {0: step})
        one.advance(step)
        assert model.running_mean.tolist() == [step + 1.0] * 2
    one.use_records(None, 1)
    model.running_mean.fill_(9.0)
    one.record(0, 4)
    one.merge(4, [0], {0: 1})
    one.advance(4)
    assert model.running_mean.tolist() == [9.0] * 2


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
