"""`next_action`: by hand on single boards, and explored with crews that race, die and are replaced."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from operator import add

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.lanes import assign
from holdfast.core.sync.exact import (
    Action,
    Advance,
    Arrive,
    BoardView,
    Compute,
    Finish,
    Quiesce,
    StepView,
    Sum,
    Wait,
    next_action,
)
from holdfast.core.tree import Node, fold, keep, plan, push, reference_sum, uncovered

STEP = 5
PLACE = StepView(worker=1, step=STEP, driver=(1, 1, 2, 2), owner=(1, 2, 2), members=(1, 2))
EMPTY = BoardView(range(4), [], {}, (5, 5, 5), None, pausing=False)
HALF = EMPTY._replace(nodes=[Node(0, 2)])
COVERED = EMPTY._replace(nodes=[Node(0, 2), Node(2, 2)], arrived={1: 5, 2: 5})
CLIPPED = COVERED._replace(summed=(5, 5, 5))


@pytest.mark.parametrize(
    ("board", "actions"),
    [
        (EMPTY, [Compute((0, 1)), Compute((2, 3))]),
        (EMPTY._replace(nodes=[Node(0, 1), Node(2, 1)]), [Compute((1,)), Compute((3,))]),
        (EMPTY._replace(lanes=[0]), [Compute((0,)), Arrive()]),
        (HALF, [Arrive(), Compute((2, 3))]),
        (HALF._replace(arrived={1: 4}), [Arrive(), Compute((2, 3))]),
        (HALF._replace(arrived={1: 5}), [Wait((2,), "the gradients of lanes 2, 3"), Compute((2, 3))]),
        (COVERED._replace(arrived={1: 5, 2: 4}), [Wait((2,), "their arrival at step 5"), Arrive()]),
        (COVERED, [Finish((0,)), Finish((1, 2))]),
        (COVERED._replace(nodes=[Node(0, 4)]), [Finish((0,)), Finish((1, 2))]),
        (COVERED._replace(versions=(6, 5, 6)), [Wait((2,), "their slices of the new parameters"), Finish((1,))]),
        (COVERED._replace(versions=(5, 6, 6)), [Finish((0,)), Wait((1,), "their slices of the new parameters")]),
        (COVERED._replace(versions=(6, 6, 6)), [Advance(), Advance()]),
        (CLIPPED, [Sum((0,)), Sum((1, 2))]),
        (CLIPPED._replace(summed=(6, 5, 5)), [Wait((2,), "their part of the gradient"), Sum((1, 2))]),
        (CLIPPED._replace(summed=(6, 6, 5)), [Wait((2,), "their part of the gradient"), Sum((2,))]),
        (CLIPPED._replace(summed=(6, 6, 6)), [Finish((0,)), Finish((1, 2))]),
        (CLIPPED._replace(summed=(6, 6, 6), versions=(6, 6, 6)), [Advance(), Advance()]),
        # A version beyond the step: others are in the next step already, this one only has to follow.
        (EMPTY._replace(versions=(6, 6, 6)), [Advance(), Advance()]),
        (COVERED._replace(pausing=True), [Quiesce(), Quiesce()]),
        (EMPTY._replace(versions=(6, 6, 6), pausing=True), [Quiesce(), Quiesce()]),
    ],
)
def test_by_hand(board: BoardView, actions: list[Action]) -> None:
    assert [next_action(PLACE._replace(worker=worker), board) for worker in (1, 2)] == actions


def test_a_joiner_without_lanes_arrives_before_anything_moves() -> None:
    place = PLACE._replace(members=(1, 2, 3))
    assert next_action(place, COVERED) == Wait((3,), "their arrival at step 5")
    assert next_action(place._replace(worker=3), COVERED) == Arrive()


def test_an_heir_computes_what_is_missing_though_it_has_arrived() -> None:
    place = PLACE._replace(driver=(1, 1, 1, 1), owner=(1, 1, 1), members=(1,))
    board = EMPTY._replace(nodes=[Node(0, 2), Node(2, 1)], arrived={1: 5, 2: 4})
    assert next_action(place, board) == Compute((3,))


def test_a_long_wait_is_said_in_few_words() -> None:
    place = StepView(worker=1, step=0, driver=(2,) * 12, owner=(1,), members=(1, 2))
    board = BoardView(range(12), [], {1: 0}, (0,), None, pausing=False)
    assert next_action(place, board) == Wait((2,), "the gradients of lanes 0, 1, 2, 3, 4, 5, 6, 7, ... (12 in all)")


@dataclass
class Worker:
    step: int
    computing: int | None = None  #: lane whose user code runs now
    merging: tuple[Node, float] | None = None  #: partial sum that is not published yet
    stack: list[Node] = field(default_factory=list)


@dataclass
class Crew:
    """A fake board and whoever drives it: user code takes time, and workers are lost and replaced."""

    num_lanes: int
    num_slices: int
    clip: bool
    rng: random.Random
    steps: int
    workers: dict[int, Worker] = field(default_factory=dict)
    arrived: dict[int, int] = field(default_factory=dict)
    slots: dict[int, tuple[int, Node, float]] = field(default_factory=dict)  #: lane -> step, node, value
    pausing: bool = False
    driver: tuple[int, ...] = ()
    owner: tuple[int, ...] = ()
    next_worker: int = 0

    def __post_init__(self) -> None:
        self.versions = [0] * self.num_slices
        self.summed = [0] * self.num_slices
        self.sums: list[set[str]] = [set() for _ in range(self.steps)]
        self.computed = 0
        self.idle: set[int] = set()

    def lanes(self, step: int) -> range:
        return range(self.num_lanes if step % 3 != 2 else max(1, self.num_lanes // 2))

    def gradient(self, step: int, lane: int) -> float:
        return random.Random(step * 1000 + lane).uniform(-1, 1)

    def install(self, members: list[int]) -> None:
        """Begin a generation: only when everybody is quiet."""
        assert not any(map(self.busy, self.workers))
        self.workers = {number: self.workers.get(number) or Worker(min(self.versions)) for number in members}
        self.driver = assign(self.num_lanes, members, {number: self.rng.uniform(0.5, 2) for number in members})
        self.owner = tuple(self.rng.choice(members) for _ in range(self.num_slices))
        for number, worker in self.workers.items():
            worker.stack = keep(worker.stack, self.driver, number)
        self.pausing = False
        self.idle.clear()

    def join(self) -> int:
        self.next_worker += 1
        return self.next_worker

    def act(self, number: int) -> Action | None:
        """Let one worker do one thing; return its action, None for a part of the end of a unit."""
        worker = self.workers[number]
        if worker.computing is not None:
            self.merge(worker, worker.computing)
            return None
        if worker.merging is not None:
            node, value = worker.merging
            self.slots[node.lane] = (worker.step, node, value)
            worker.merging = None
            return None
        step = worker.step
        nodes = [node for at, node, _ in self.slots.values() if at == step]
        board = BoardView(
            self.lanes(step), nodes, self.arrived, self.versions, self.summed if self.clip else None, self.pausing
        )
        action = next_action(StepView(number, step, self.driver, self.owner, sorted(self.workers)), board)
        self.check(number, action, board)
        match action:
            case Compute((lane, *_)):
                worker.computing = lane
            case Arrive():
                self.arrived[number] = step
            case Sum(slices):
                for part in slices:
                    self.summed[part] = step + 1
            case Finish(slices):
                total = fold(plan(nodes, board.lanes, self.num_lanes), lambda lane: self.slots[lane][2], add)
                self.sums[step].add(total.hex())
                for part in slices:
                    self.versions[part] = step + 1
            case Advance():
                worker.step, worker.stack = step + 1, []
        return action

    def merge(self, worker: Worker, lane: int) -> None:
        """End user code; withdraw what is merged. A worker that is lost now takes those sums with it."""
        self.computed += 1
        values = {lane: self.gradient(worker.step, lane)}
        merges, worker.stack = push(worker.stack, Node(lane, 1), self.num_lanes)
        for into, take, _ in merges:
            for node in (into, take):
                if node.lane not in values:
                    values[node.lane] = self.slots.pop(node.lane)[2]
            values[into.lane] += values.pop(take.lane)
        ((at, value),) = values.items()
        worker.merging = (worker.stack[-1], value)
        assert worker.stack[-1].lane == at
        worker.computing = None

    def check(self, number: int, action: Action, board: BoardView) -> None:
        step = self.workers[number].step
        assert isinstance(action, Quiesce) == self.pausing
        if isinstance(action, Compute):
            assert {self.driver[lane] for lane in action.lanes} == {number}
            assert set(action.lanes) <= set(uncovered(board.lanes, board.nodes))
            assert set(board.versions) == {step}, "user code must see one version"
        if isinstance(action, Sum | Finish):
            assert uncovered(board.lanes, board.nodes) == []
            assert all(self.arrived.get(member, -1) >= step for member in self.workers)
            assert not any(map(self.busy, self.workers)), "parameters move under user code"
            assert all(self.owner[part] == number for part in action.slices)
            at = self.summed if isinstance(action, Sum) else self.versions
            assert action.slices and all(at[part] == step for part in action.slices)
        if isinstance(action, Finish) and self.clip:
            assert set(self.summed) == {step + 1}
        if isinstance(action, Wait):
            assert action.workers and number not in action.workers
            assert set(action.workers) <= set(self.workers)

    def busy(self, number: int) -> bool:
        return self.workers[number].computing is not None or self.workers[number].merging is not None

    def turn(self) -> None:
        number = self.rng.choice(sorted(self.workers))
        action = self.act(number)
        if isinstance(action, Wait):
            self.idle.add(number)
            assert self.idle < set(self.workers), "everybody waits for somebody"
        elif not isinstance(action, Quiesce):
            self.idle.clear()

    def done(self) -> bool:
        return min(self.versions) >= self.steps

    def change(self, most: int) -> None:
        """Go through one change of generation: pause, units end, somebody is lost or joins, install."""
        self.pausing = True
        for number in sorted(self.workers):
            lost = len(self.workers) > 1 and self.rng.random() < 0.4
            if lost:
                del self.workers[number]  # and its unit with it
            else:
                while self.busy(number):
                    assert self.act(number) is None
        assert all(self.act(number) == Quiesce() for number in self.workers)
        members = sorted(self.workers)
        while len(members) < most and self.rng.random() < 0.5:
            members.append(self.join())
        self.install(members)


@settings(max_examples=150, deadline=None)
@given(
    num_lanes=st.integers(1, 9),
    num_slices=st.integers(1, 5),
    num_workers=st.integers(1, 4),
    clip=st.booleans(),
    changes=st.booleans(),
    rng=st.randoms(use_true_random=False),
)
def test_any_crew_finishes_every_step_with_the_same_bits(
    num_lanes: int, num_slices: int, num_workers: int, clip: bool, changes: bool, rng: random.Random
) -> None:
    steps = 4
    most = min(num_workers, num_lanes)
    crew = Crew(num_lanes, num_slices, clip, rng, steps)
    crew.install([crew.join() for _ in range(most)])
    for _ in range(20_000):
        if crew.done():
            break
        crew.turn()
        if changes and rng.random() < 0.05:
            crew.change(most)
    assert crew.done(), "the run did not end"
    for step in range(steps):
        values = {lane: crew.gradient(step, lane) for lane in crew.lanes(step)}
        assert crew.sums[step] == {reference_sum(values, num_lanes, add).hex()}
    if not changes:
        assert crew.computed == sum(len(crew.lanes(step)) for step in range(steps)), "a unit was computed twice"
