"""The board's cells: what is written there, and what others read."""

from __future__ import annotations

import math

from holdfast.core.tree import Node
from holdfast.dataplane.memory.board import H_PACE, MAGIC, Board, ModeRecord, Undo, board_bytes
from holdfast.dataplane.memory.board_snapshot import BoardPlan, read_plan, read_rows, read_samples


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
