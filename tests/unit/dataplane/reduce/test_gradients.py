"""The lane slots against the definition of the sum, and who gave what."""

from __future__ import annotations

import itertools

import pytest
import torch

from holdfast.core.tree import Node, reference_sum
from holdfast.dataplane.reduce import finite
from holdfast.dataplane.reduce.work import StepWork
from tests.unit.dataplane.members import LANES, Worker

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


@pytest.mark.parametrize("small", [1 << 16, 100, 0])
def test_a_glance_at_a_slot_sees_what_is_wrong_with_any_parameter(small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large matrices are looked at by a row and a column each, and what lies between them as one."""
    monkeypatch.setattr(finite, "_SMALL", small)
    gradients = Worker(0, 0).gradients
    some = [torch.ones_like(p) for p in Worker(0, 0).space.trainable]
    for lane in range(LANES):
        gradients.fill(7, lane, some, None)
        assert gradients.clean()
        gradients.show()
    for entry, parameter in enumerate(some):
        wrong = [*some[:entry], torch.full_like(parameter, float("nan")), *some[entry + 1 :]]
        gradients.fill(8, 2, wrong, None)
        assert not gradients.clean()
        gradients.forget()  # the same lane may be filled again
        gradients.fill(8, 2, some, None)
        assert gradients.clean()
        gradients.forget()
