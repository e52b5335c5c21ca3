"""The shared memory of a simulated run, with an eye on everybody who touches it.

"Training" is a chain of hashes. The gradient of a lane is a hash of all slices, the step and the lane; a sum
is a hash of its two halves, so a sum has the right value only if the *shape* of the whole tree was right; the
new version of a slice is a hash of the old one and the sum. `golden_chain` computes the same directly.

Every write is announced before it begins, and `Violation` is raised at once when

* two workers write the same slot or slice at the same time,
* somebody acts in an old generation, or a generation begins while somebody still acts in an older one,
* parameters change under a worker that computes with them or reads them, or slots under one that sums them,
* a sum leaves a lane out, counts one twice, or differs from the golden one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from holdfast.core import tree
from holdfast.core.tree import Node

__all__ = ["Arena", "Model", "Violation", "golden_chain"]


class Violation(AssertionError):
    """Something happened that must never happen."""


@dataclass(frozen=True, slots=True)
class Model:
    """What is trained: nothing of this depends on the crew."""

    lanes: int
    slices: int
    steps: int
    clip: bool = False
    short: int = 0  #: every third step only this many lanes have work; 0: all have

    def lanes_at(self, step: int) -> Sequence[int]:
        """Lanes that have work in this step."""
        return range(self.short if self.short and step % 3 == 2 else self.lanes)


def _gradient(state: tuple[int, ...], step: int, lane: int) -> int:
    return hash((state, step, lane))


def _add(left: int, right: int) -> int:
    return hash((left, right))


def _norm(total: int, slice_: int) -> int:
    return hash((total, slice_, 1))


def _update(old: int, total: int, slice_: int, norms: tuple[int, ...]) -> int:
    return hash((old, total, slice_, norms))


@lru_cache(maxsize=512)
def golden_chain(model: Model) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """The states before step 0, 1, ..., and the sums of all steps, computed without any crew."""
    states, sums = [tuple(range(model.slices))], []
    for step in range(model.steps):
        state = states[-1]
        gradients = {lane: _gradient(state, step, lane) for lane in model.lanes_at(step)}
        total = tree.reference_sum(gradients, model.lanes, _add)
        norms = tuple(_norm(total, s) for s in range(model.slices)) if model.clip else ()
        states.append(tuple(_update(state[s], total, s, norms) for s in range(model.slices)))
        sums.append(total)
    return tuple(states), tuple(sums)


@dataclass(slots=True)
class Slot:
    """A published partial sum. `leaves` has one bit for each lane that went into it."""

    span: int
    value: int
    leaves: int


class Arena:
    """What workers share, plus the announcements that make misuse visible."""

    def __init__(self, model: Model, rows: int, plan: Callable[..., tree.Plan] = tree.plan) -> None:
        self.model = model
        self.made = self.seeded = False
        self.state: list[int] = []
        self.versions = [0] * model.slices
        self.summed: list[int] | None = [0] * model.slices if model.clip else None
        self.norms = [0] * model.slices
        self.arrived = [-1] * rows
        self.stop_at: int | None = None  #: set once, by the first worker that is told to stop
        self.committed = 0
        self._plan = plan
        self._golden = golden_chain(model)
        self._slots: dict[int, dict[int, Slot]] = {}  # step -> lane -> slot
        self._nodes: dict[int, list[Node]] = {}
        self._acting: dict[int, tuple[int, int, str, tuple[int, ...]]] = {}  # worker -> generation, step, what, where
        self._reading: dict[int, int] = {}  # worker -> step
        self._newest = 0

    # ------------------------------------------------------------ announcements

    def begin(self, worker: int, generation: int, step: int, what: str, places: tuple[int, ...]) -> None:
        """Somebody is about to compute into slots, or to sum or finish slices."""
        if generation < self._newest:
            raise Violation(f"worker {worker} acts in generation {generation}, but {self._newest} has begun")
        for other, (_, at, kind, where) in self._acting.items():
            if kind == what and not set(where).isdisjoint(places):
                raise Violation(f"workers {other} and {worker} both {what} {where} at steps {at} and {step}")
            if kind != what:
                raise Violation(f"worker {worker} begins to {what} at step {step} while {other} is to {kind} at {at}")
            if at != step:
                raise Violation(f"worker {worker} is at step {step} while {other} acts at {at}")
        if what == "finish":
            for other, at in self._reading.items():
                if at <= step:
                    raise Violation(f"worker {worker} changes parameters of step {step} that {other} reads")
        self._acting[worker] = (generation, step, what, places)

    def read(self, worker: int, step: int) -> None:
        """Somebody's script is about to use the parameters of this step outside any unit."""
        self._reading[worker] = step

    def end(self, worker: int) -> None:
        """It is done, or dead."""
        self._acting.pop(worker, None)
        self._reading.pop(worker, None)

    def installed(self, worker: int, generation: int) -> None:
        """A worker has begun to work in this generation."""
        if generation < self._newest:
            raise Violation(f"worker {worker} goes from the newest generation {self._newest} back to {generation}")
        self._newest = generation
        for other, (older, step, what, _) in self._acting.items():
            if older < generation:
                raise Violation(
                    f"generation {generation} has begun while worker {other} is still to {what} "
                    f"at step {step} in generation {older}"
                )

    # ------------------------------------------------------------ contents

    def seed(self) -> None:
        """Fill in the first weights."""
        if self._newest:
            raise Violation("the arena is filled again after training began")
        self.state, self.seeded = list(self._golden[0][0]), True

    def step(self) -> int:
        """The step at hand: the oldest version of any slice."""
        return min(self.versions)

    def nodes(self, step: int) -> list[Node]:
        """Partial sums published for this step, in order of arrival."""
        found = self._nodes.get(step)
        if found is None:
            found = [Node(lane, slot.span) for lane, slot in self._slots.get(step, {}).items()]
            self._nodes[step] = found
        return found

    def publish(self, step: int, lane: int, merges: Sequence[tree.Merge]) -> None:
        """A lane's gradient is complete; merge it with what its worker holds."""
        if any(version != step for version in self.versions):
            raise Violation(f"parameters changed ({self.versions}) under unit (step {step}, lane {lane})")
        slots = self._slots.setdefault(step, {})
        slots[lane] = Slot(1, _gradient(tuple(self.state), step, lane), 1 << lane)
        for into, take, gives in merges:
            left, right = slots[into.lane], slots.pop(take.lane)
            if left.leaves & right.leaves:
                raise Violation(f"a lane is counted twice in {gives} at step {step}")
            slots[into.lane] = Slot(gives.span, _add(left.value, right.value), left.leaves | right.leaves)
        self._nodes.pop(step, None)

    def withdraw(self, step: int, merges: Sequence[tree.Merge]) -> None:
        """Somebody began to merge and did not live to publish the sum."""
        for merge in merges:
            for node in (merge.into, merge.take):
                self._slots[step].pop(node.lane, None)
        self._nodes.pop(step, None)

    def sum(self, step: int, places: Sequence[int]) -> None:
        """Sum these slices and publish their norms."""
        total = self._total(step)
        assert self.summed is not None
        for slice_ in places:
            self.norms[slice_] = _norm(total, slice_)
            self.summed[slice_] = step + 1

    def finish(self, step: int, places: Sequence[int]) -> None:
        """Take these slices to the next version."""
        total = self._total(step)
        norms = tuple(self.norms) if self.model.clip else ()
        for slice_ in places:
            if self.versions[slice_] != step:
                raise Violation(f"slice {slice_} is finished for step {step} at version {self.versions[slice_]}")
            self.state[slice_] = _update(self.state[slice_], total, slice_, norms)
            self.versions[slice_] = step + 1
        if min(self.versions) > step:
            self._commit(step)

    def _total(self, step: int) -> int:
        slots = self._slots.get(step, {})
        leaves = counted = 0
        for slot in slots.values():
            leaves |= slot.leaves
            counted += slot.leaves.bit_count()
        work = self.model.lanes_at(step)
        if leaves != (1 << len(work)) - 1 or counted != len(work):
            raise Violation(f"step {step} is finished with lanes {leaves:b} ({counted} in all) of {len(work)}")
        plan = self._plan(self.nodes(step), work, self.model.lanes)
        total = tree.fold(plan, lambda lane: slots[lane].value, _add)
        if total != self._golden[1][step]:
            raise Violation(f"the sum of step {step} is not the golden one")
        return total

    def _commit(self, step: int) -> None:
        if step != self.committed:
            raise Violation(f"step {step} is committed after {self.committed} steps")
        if tuple(self.state) != self._golden[0][step + 1]:
            raise Violation(f"the state after step {step} is not the golden one")
        self.committed = step + 1
        self._slots.pop(step - 1, None)
        self._nodes.pop(step - 1, None)
