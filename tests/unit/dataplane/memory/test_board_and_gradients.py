"""The board's cells, and the lane slots against the definition of the sum."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from holdfast.core.tree import Node, reference_sum
from holdfast.dataplane.memory.board import MAGIC, Board, Undo, board_bytes
from holdfast.dataplane.memory.board_snapshot import BoardPlan, read_plan, read_rows, read_samples
from holdfast.dataplane.reduce.work import StepWork
from tests.unit.dataplane.members import LANES, Worker


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


# ---------------------------------------------------------------- slots


STEPS = itertools.count()  # never twice: a slot of an older step says nothing


@pytest.fixture(scope="module")
def worker() -> Worker:
    return Worker(0, 0)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2), (2, 0, 1, 3)])
@pytest.mark.parametrize("counts", [(3, 3, 3, 3), (4, 3, 3, 3), (1, 1, 1, 0)])
def test_the_sum_is_the_definitions_bit_for_bit(worker: Worker, order: tuple[int, ...], counts: tuple[int, ...]):
    """Whatever the order of the lanes, and wherever a generation's change stops the merging."""
    lanes = tuple(lane for lane, count in enumerate(counts) if count)
    source = torch.Generator().manual_seed(0)
    gradients = {
        lane: [torch.randn(p.shape, generator=source) for p in worker.space.trainable] for lane in range(LANES)
    }
    for forgotten in (None, *lanes):
        step = next(STEPS)
        work = StepWork(step, lanes, counts)
        for lane in order:
            if lane in lanes:
                worker.gradients.fill(step, lane, gradients[lane], work.weight(lane))
                worker.gradients.show()
            if lane == forgotten:
                worker.gradients.install([9] * LANES, 0)
        nodes = worker.board.nodes(step)
        assert sum(node.span for node in nodes) >= len(lanes)
        for piece in worker.space.layout.slices:
            total = worker.slices.scratch(piece)
            worker.gradients.total(piece, nodes, work.lanes, work.factor, total)
            for part in piece.pieces:
                leaves = {}
                for lane in lanes:
                    flat = gradients[lane][part.entry].flatten()[part.offset : part.offset + part.stop - part.start]
                    leaves[lane] = flat if work.weight(lane) is None else flat * work.weight(lane)
                expected = reference_sum(leaves, LANES, torch.add) * work.factor
                assert torch.equal(total[part.start - piece.start : part.stop - piece.start], expected)


def test_presence_and_culprits(worker: Worker) -> None:
    count = len(worker.space.trainable)
    some = [torch.zeros_like(p) for p in worker.space.trainable]
    worker.gradients.install([9] * LANES, 0)
    worker.gradients.fill(500, 0, [None, *some[1:]], None)
    worker.gradients.show()
    assert worker.gradients.absent(500, [0]) == frozenset({0})
    worker.gradients.fill(500, 2, [*some[:-1], torch.full_like(some[-1], float("nan"))], None)
    worker.gradients.show()
    assert worker.gradients.absent(500, [0, 2]) == frozenset() and worker.gradients.absent(500, [2]) == frozenset()
    last = worker.space.layout.slices[-1]
    assert count - 1 in {part.entry for part in last.pieces}
    assert worker.gradients.culprits(last, worker.board.nodes(500)) == [Node(2, 1)]
