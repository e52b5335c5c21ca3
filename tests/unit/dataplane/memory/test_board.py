"""The board's cells: what is written there, and what others read."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.shares import LostPart, Share
from holdfast.core.tree import Node
from holdfast.dataplane.memory.board import (
    BACKLOG,
    H_PACE,
    MAGIC,
    UNIT_LANE,
    UNIT_WORKER,
    Board,
    ModeRecord,
    ShareFacts,
    Undo,
    board_bytes,
    units,
)
from holdfast.dataplane.memory.board_snapshot import BoardPlan, read_plan, read_rows, read_samples
from holdfast.errors import FrameError


def board_of(lanes: int = 3, rows: int = 4, slices: int = 5) -> tuple[bytearray, Board]:
    memory = bytearray(board_bytes(lanes, rows, slices))
    return memory, Board(memoryview(memory), lanes, rows, slices)


def test_nothing_is_read_before_the_board_is_made() -> None:
    memory, board = board_of()
    assert read_rows(memoryview(memory)) == [] and read_plan(memoryview(memory)) == BoardPlan(0, 0, 0)
    assert read_rows(memoryview(memory)[:64]) == []
    board.format()
    assert board.words[0] == MAGIC and read_rows(memoryview(memory)) == []


def test_a_row_as_the_launcher_sees_it() -> None:
    memory, board = board_of()
    board.format()
    board.claim(2, 9, 4711)
    assert math.isnan(read_rows(memoryview(memory))[0].loss), "a loss of 0 would be one"
    board.put_loss(0.5)
    board.put_samples([5, 6, 7])
    board.put_plan(10, 3, 64)
    (row,) = read_rows(memoryview(memory))
    assert (row.row, row.worker, row.pid, row.unit_step, row.unit_lane, row.loss, row.waiting_for) == (
        2, 9, 4711, -1, -1, 0.5, -1,
    )  # fmt: skip
    assert read_samples(memoryview(memory), 2) == [5, 6, 7]
    board.put_samples(range(100))
    assert read_samples(memoryview(memory), 2) == list(range(64))
    assert read_plan(memoryview(memory)) == BoardPlan(10, 3, 64)


def test_undo_is_one_word_and_survives_the_next_holder_of_the_row() -> None:
    _, board = board_of()
    board.format()
    board.claim(1, 0, 1)
    assert board.undo(1) is None
    for undo in (Undo(0, 0), Undo(4, 7), Undo(2**24 - 2, 2**38)):
        board.begin_undo(*undo)
        assert board.undo(1) == undo
    board.claim(1, 5, 2)
    assert board.undo(1) == undo
    board.clear_undo(1)
    assert board.undo(1) is None


def test_operations_epochs_norms_and_results() -> None:
    _, board = board_of()
    board.format()
    assert (board.op(), board.epoch(), board.op_closed(0)) == ((-1, 0), (-1, 0), False)
    board.begin_op(0, 7, 0)
    board.begin_op(1, 9, 3)
    assert board.op() == (1, 9) and board.op_kind() == 3
    board.close_op(1)
    assert board.op_closed(0) and board.op_closed(1) and not board.op_closed(2)
    board.begin_epoch(4, 1)
    assert board.epoch() == (4, 1)
    board.publish_norm(3, 2, 0.25)
    board.publish(4, 6)
    assert board.norms() == [0.0, 0.0, 0.0, 0.25, 0.0] and board.summed()[3] == 2 and board.versions()[4] == 6
    board.put_result(1, 3, 5, 0.5, 1.0, 2.0)
    board.put_result(1, 4, 6, 0.25, 0.0, 0.0)  # a step ahead: the facts of two steps lie side by side
    assert board.result(1, 3) == (5, 0.5, 1.0, 2.0)


def test_a_slot_is_shown_for_its_step_only() -> None:
    _, board = board_of()
    board.format()
    board.close_slot(1, 4, 2)
    assert board.nodes(4) == [Node(1, 2)] and board.nodes(3) == []
    board.open_slot(1)
    assert board.nodes(4) == []


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


# ---------------------------------------------------------------- shares of a plain loop


def formatted() -> Board:
    _, board = board_of()
    board.format()
    return board


def give(board: Board, lane: int, step: int, facts: ShareFacts | None) -> None:
    """A worker gives what it computed for `step`: a share, or a lane."""
    board.open_slot(lane)
    board.put_result(lane, step, 5, 0.5, 0.0, 0.0)
    if facts is not None:
        board.put_share(step, facts)
    board.close_slot(lane, step, 1)
    board.close_facts(lane, step)


def share_of(first: int, last: int) -> ShareFacts:
    return ShareFacts(Share(first, last), 0, 1, False)


@given(
    st.integers(0, 1023), st.integers(0, 1024), st.integers(0, 16384), st.integers(0, 16384),
    st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1), st.booleans(),
)  # fmt: skip
def test_a_share_is_read_as_it_was_put(
    first: int, last: int, begin: int, end: int, turn: int, beyond: int, weighted: bool
) -> None:
    board = Board(memoryview(bytearray(board_bytes(1024, 1, 1))), 1024, 1, 1)
    board.put_result(first, 7, 5, 0.5, 0.0, 0.0)
    assert board.share(first, 7) is None, "it is a lane until it is said to be a share"
    facts = ShareFacts(Share(first, last, begin, end), turn, beyond, weighted)
    board.put_share(7, facts)
    assert board.share(first, 7) == facts and board.share(first, 8) is None
    board.put_result(first, 7, 5, 0.5, 0.0, 0.0)
    assert board.share(first, 7) is None


def test_which_shares_of_a_step_were_given() -> None:
    board = formatted()
    give(board, 0, 4, share_of(0, 2))
    assert board.given(4) == [0] and board.given(5) == []
    give(board, 2, 4, None)
    assert board.given(4) == [0], "a lane is no share"
    give(board, 2, 4, share_of(2, 3))
    assert board.given(4) == [0, 2]
    board.open_slot(0)
    assert board.given(4) == [2], "its gradient is being written"
    board.put_result(1, 4, 5, 0.5, 0.0, 0.0)
    board.put_share(4, share_of(1, 2))
    board.close_slot(1, 4, 1)
    assert board.given(4) == [2], "what it gave besides is not whole yet"


def test_shares_that_will_never_come_are_forgotten_and_lanes_are_not() -> None:
    board = formatted()
    for lane in (0, 1):
        for step in (4, 5):
            give(board, lane, step, share_of(lane, lane + 1))
    for step in (4, 5):
        give(board, 2, step, None)
    board.forget_shares(4, [1])
    assert board.known(4) == [1, 2] and board.known(5) == [2]
    assert board.result(1, 4)[0] == 5


def test_what_was_shown_of_a_step_may_be_shown_anew() -> None:
    board = formatted()
    board.put_work(4, [0, 2])
    board.put_work(4, [1])
    assert board.work(4) == [0, 2] and board.work_bits(4) == 0b101
    board.forget_work(5)
    assert board.work(4) == [0, 2], "of that step nothing was shown"
    board.forget_work(4)
    assert board.work(4) is None and board.work_bits(4) == 0
    board.put_work(4, [1])
    assert board.work(4) == [1]


def test_what_a_unit_has_been() -> None:
    board = formatted()
    assert units(board.words) == ""
    board.note_units(UNIT_WORKER)
    board.note_units(UNIT_WORKER)
    assert units(board.words) == "worker"
    board.note_units(UNIT_LANE)
    assert units(board.words) == "lane and worker"


# ---------------------------------------------------------------- the backlog


def parts(*numbers: int) -> tuple[LostPart, ...]:
    return tuple(LostPart(number % 2, number, 10 * number, 100 * number) for number in numbers)


class Killed(Exception):
    """The writer is gone."""


class Dying:
    """Words of a writer that is killed before so many stores are done."""

    def __init__(self, words: memoryview, stores: int) -> None:
        self.words, self.stores = words, stores

    def __getitem__(self, index: Any) -> Any:
        return self.words[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        if not self.stores:
            raise Killed
        self.stores -= 1
        self.words[index] = value


def dies(board: Board, stores: int, version: int, left: tuple[LostPart, ...]) -> bool:
    """Is the writer killed before it has written all?"""
    words, board.words = board.words, Dying(board.words, stores)  # type: ignore[assignment]
    try:
        board.put_backlog(version, left)
    except Killed:
        return True
    finally:
        board.words = words
    return False


def test_the_backlog_of_a_version_holds_until_the_next_one() -> None:
    board = formatted()
    assert board.backlog(0) == board.backlog(9) == ()
    board.put_backlog(3, parts(1, 2))
    assert (board.backlog(2), board.backlog(3), board.backlog(7)) == ((), parts(1, 2), parts(1, 2))
    board.put_backlog(4, parts(2, 3, 4))
    assert (board.backlog(3), board.backlog(4)) == (parts(1, 2), parts(2, 3, 4)), "a copy each"
    board.put_backlog(9, ())
    assert (board.backlog(8), board.backlog(9)) == (parts(2, 3, 4), ())
    full = parts(*range(BACKLOG * board.num_lanes))
    board.put_backlog(10, full)
    board.put_backlog(11, full[1:])
    assert (board.backlog(10), board.backlog(11)) == (full, full[1:])


@pytest.mark.parametrize("before", [(), parts(1), parts(1, 2, 3)])
@pytest.mark.parametrize("left", [(), parts(4), parts(4, 5, 6, 7)])
def test_a_writer_of_the_backlog_may_die_at_any_store(before: tuple[LostPart, ...], left: tuple[LostPart, ...]) -> None:
    stores = 0
    while True:
        board = formatted()
        board.put_backlog(5, parts(8, 9))  # the older copy, which is written over
        board.put_backlog(6, before)
        died = dies(board, stores, 7, left)
        assert board.backlog(6) == before
        assert board.backlog(7) == (before if died else left)
        for again in range(stores + 1):  # who takes its place may have something else to write, and die as well
            dies(board, again, 7, parts(3, 2, 1))
            assert board.backlog(6) == before
        board.put_backlog(7, left)
        assert (board.backlog(6), board.backlog(7)) == (before, left)
        if not died:
            break
        stores += 1
    assert stores == 2 + 4 * len(left)


def test_the_backlog_goes_with_the_state_to_another_host() -> None:
    board, other = formatted(), board_of()[1]
    board.put_backlog(3, parts(1, 2))
    board.put_backlog(4, parts(2))
    for slice_ in range(5):
        board.publish(slice_, 4)
    assert other.land_state(memoryview(board.state_words())) == 4
    assert (other.backlog(3), other.backlog(4)) == (parts(1, 2), parts(2))


def test_a_backlog_that_has_no_room_is_refused() -> None:
    board, other = formatted(), board_of()[1]
    board.words[board._backlog + 1] = BACKLOG * board.num_lanes + 1
    with pytest.raises(FrameError, match=r"it brings a backlog of more than 48 parts"):
        other.land_state(memoryview(board.state_words()))
    board.words[board._backlog + 1] = -1
    with pytest.raises(FrameError, match=r"it brings a backlog of more than 48 parts"):
        other.land_state(memoryview(board.state_words()))


def test_operations_after_the_newest_loop_are_forgotten() -> None:
    board, other = formatted(), board_of()[1]
    assert (board.rewind_op(), board.op()) == (-1, (-1, 0)), "there was none"
    for op, first_step, kind in ((1, 0, -1), (2, 5, 7), (3, 5, 0), (4, 9, 7), (5, 9, 2)):
        board.begin_op(op, first_step, kind)
    other.land_state(memoryview(board.state_words()))
    assert other.op() == (5, 9)
    assert (other.rewind_op(), other.op(), other.op_kind()) == (3, (3, 5), 0)
