"""A member in a plain loop: what it takes a step to consist of, and what it keeps of shares."""

from __future__ import annotations

import torch

from holdfast.core.roles import Assignment
from holdfast.core.shares import Share
from holdfast.core.tree import Node
from holdfast.dataplane.memory.arena_view import ArenaView
from holdfast.dataplane.memory.board import UNIT_LANE, UNIT_WORKER, ShareFacts
from holdfast.dataplane.memory.board_snapshot import of_shares
from holdfast.dataplane.memory.manifest import read_manifest
from holdfast.dataplane.reduce.work import StepWork, UnitResult
from tests.unit.dataplane.members import Worker


def work(*lanes: int, step: int = 0) -> StepWork:
    return StepWork(step, lanes, (0,) * 4, weighted=False)


def facts(first: int, last: int) -> ShareFacts:
    return ShareFacts(Share(first, last), 0, 1, False)


def give(worker: Worker, first: int, last: int, *lanes: int, step: int = 0) -> None:
    made = StepWork(step, lanes, tuple(last - first if lane == first else 0 for lane in range(4)), weighted=False)
    gradients = [torch.ones_like(parameter) for parameter in worker.space.trainable]
    worker.member.give(made, facts(first, last), 1, gradients, UnitResult(1.0, 0.0, 0.0))


def view_of(worker: Worker) -> ArenaView:
    memory = memoryview(worker.arena._map)
    manifest = read_manifest(memory)
    assert manifest is not None
    return ArenaView(memory, manifest)


def test_a_host_that_follows_takes_a_step_for_what_came_of_it() -> None:
    """The crew's shares begin with lanes 0 and 3 by now; when this host began to follow, one worker had all lanes."""
    worker = Worker(1, 1)
    worker.member.install(1, Assignment([0, 1], [0, 1], [0] * 4, [0, 1], summed=True, following=True))
    assert worker.member.expected(0) == ()
    came: list[Share] = []
    worker.member.settle_backlog = lambda found: (came.extend(one.share for one in found), ())[1]
    for first, last in ((0, 3), (3, 4)):
        worker.board.put_result(first, 0, last - first, 0.5, 0.0, 0.0)
        worker.board.put_share(0, facts(first, last))
        worker.board.close_facts(first, 0)
    for index, piece in enumerate(worker.space.layout.slices):
        worker.gradients.sum_of(piece).fill_(1.0)
        worker.board.publish_norm(index, 1, 0.0)
    worker.member.complete(work())
    assert came == [Share(0, 3), Share(3, 4)]
    assert (worker.member.version, worker.member.facts.samples) == (1, 4)


def test_a_share_that_does_not_count_leaves_nothing_behind() -> None:
    worker = Worker(0, 0)
    worker.member.install(0, Assignment([0], [0], [0] * 4))
    give(worker, 0, 2, 0, 2)
    give(worker, 2, 4, 0, 2)
    assert (worker.board.given(0), worker.board.known(0)) == ([0, 2], [0, 2])
    view_of(worker).begin(frozenset(range(4)), frozenset({2}))
    assert (worker.board.given(0), worker.board.known(0), worker.board.nodes(0)) == ([2], [2], [Node(2, 1)])


def test_a_share_of_which_the_gradient_is_missing_is_forgotten_on_a_lone_host_too() -> None:
    worker = Worker(0, 0)
    worker.member.install(0, Assignment([0], [0], [0] * 4))
    give(worker, 0, 2, 0, 2)
    worker.board.put_result(2, 0, 2, 0.5, 0.0, 0.0)
    worker.board.put_share(0, facts(2, 4))
    worker.board.close_facts(2, 0)  # killed before it could show the gradient
    view_of(worker).forget_shares({0})
    assert worker.board.known(0) == worker.board.given(0) == [0]


def test_a_place_is_in_use_until_the_step_of_what_lies_there_is_over() -> None:
    worker = Worker(0, 0)
    worker.member.install(0, Assignment([0], [0], [0] * 4))
    give(worker, 0, 2, 0)
    view = view_of(worker)
    assert view.in_use(Node(0, 1), 1)
    assert not view.in_use(Node(0, 1), 0), "of the same step it may be corrected"
    assert not view.in_use(Node(2, 1), 1)
    worker.member.complete(StepWork(0, (0,), (2, 0, 0, 0), weighted=False))
    assert not view.in_use(Node(0, 1), 1)


def test_a_board_tells_whether_steps_were_made_of_shares() -> None:
    worker = Worker(0, 0)
    memory = memoryview(worker.arena._map)
    worker.board.note_units(UNIT_LANE)
    assert not of_shares(memory)
    worker.board.note_units(UNIT_WORKER)
    assert of_shares(memory)
