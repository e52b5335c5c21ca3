"""The shared memory of one simulated host, with an eye on everybody who touches it.

Every write is announced before it begins, and `Violation` is raised at once when

* two workers write the same slot or slice at the same time,
* somebody acts in an old generation, or a generation begins while somebody still acts in an older one,
* something of an old generation comes from another host,
* parameters change under a worker that computes with them or reads them, or slots under one that sums them,
* a sum leaves a lane out, counts one twice, or differs from the golden one,
* a slice is finished without its sum or without the facts of all lanes, or the state goes back to an older one,
* the way of keeping step changes anywhere but at one step boundary with nothing under way (`FakeMode`).

Steps are simulated as exact ones in every mode; what relaxed modes do with pushes is in `relaxed_state`. Where one host
is to hold the state, what lies on another one is a mirror, from which nothing can be had.

Between hosts, partial sums land in `pieces`, sums in `sums`, and what lanes gave besides gradients is `known`; `level`
says how far the host is, by the same rule as the real one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.control.protocol.messages import Reached
from holdfast.core import tree
from holdfast.core.tree import Node
from holdfast.testing.fake_mode import FakeMode
from holdfast.testing.model import Model, Violation, add, golden_chain, gradient, norm, update

__all__ = ["FakeArena", "FakeSum"]


@dataclass(slots=True)
class FakeSum:
    """A partial sum. `leaves` has one bit for each lane that went into it."""

    span: int
    value: int
    leaves: int


#: What may be done side by side on one host.
_TOGETHER = frozenset({
    ("compute", "compute"), ("sum", "sum"), ("finish", "finish"), ("gather", "gather"), ("gather", "sum"),
    ("sum", "gather"),
})  # fmt: skip


class FakeArena:
    """What workers share, plus the announcements that make misuse visible."""

    def __init__(self, model: Model, rows: int, plan: Callable[..., tree.Plan] = tree.plan) -> None:
        self.model = model
        self.made = self.seeded = False
        self.state: list[int] = []
        self.versions = [0] * model.slices
        self.summed = [0] * model.slices
        self.sums = [0] * model.slices
        self.norms = [0] * model.slices
        self.gathered = [0] * model.slices
        self.merged: list[FakeSum | None] = [None] * model.slices
        self.pieces: list[dict[int, tuple[int, FakeSum]]] = [{} for _ in range(model.slices)]  #: lane -> (step, sum)
        self.arrived = [-1] * rows
        self.closed = [-1] * rows
        self.current = 0  #: the newest generation for which the state was fetched
        self.fetches = 0  #: how often a state came from another host
        self.recorded: dict[int, int] = {}  #: donor -> the step up to which it has written down what was decided
        self.committed = 0
        self.tenure = 0  #: the newest generation in which this host held the state, and not only a mirror of it
        self.mirrors = False  #: what is here only shows what another host holds
        self._known = ([0] * model.lanes, [0] * model.lanes)  # steps take turns, as on the real board
        self._plan = plan
        self._golden = golden_chain(model) if not model.shares else ((), ())
        self._slots: dict[int, dict[int, FakeSum]] = {}  # step -> lane -> slot
        self._nodes: dict[int, list[Node]] = {}
        self._acting: dict[int, tuple[int, int, str, tuple[int, ...]]] = {}  # worker -> generation, step, what, where
        self._reading: dict[int, int] = {}  # worker -> step
        self._in: dict[int, int] = {}  # worker -> generation that it works in
        self._whole: dict[int, int] = {}  # worker -> step of which its script may read the whole gradient
        self._newest = 0
        self.pace = FakeMode()

    def turn(self, reached: Reached, *, fetches: bool) -> None:
        """A generation begins in which lanes keep step so; with `fetches`, when the state has come from elsewhere."""
        versions = () if fetches else self.versions
        self.pace.turn(reached, versions, self._acting, bool(self.nodes(self.step())))

    # ------------------------------------------------------------ announcements

    def begin(self, worker: int, generation: int, step: int, what: str, places: tuple[int, ...]) -> None:
        """Somebody is about to compute into slots, or to sum or finish slices."""
        if generation < self._newest:
            raise Violation(f"worker {worker} acts in generation {generation}, but {self._newest} has begun")
        for other, (_, at, kind, where) in self._acting.items():
            if kind == what and not set(where).isdisjoint(places):
                raise Violation(f"workers {other} and {worker} both {what} {where} at steps {at} and {step}")
            if (kind, what) not in _TOGETHER:
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

    def read_gradient(self, worker: int, step: int) -> None:
        """Somebody's script may read the gradient of this step from now on, until its next one."""
        if any(at <= step for at in self.summed):
            raise Violation(f"worker {worker} reads the gradient of step {step} before it is whole: {self.summed}")
        self._whole[worker] = step

    def forget_gradient(self, worker: int) -> None:
        """It does not any more."""
        self._whole.pop(worker, None)

    def gone(self, worker: int) -> None:
        """It is dead."""
        self.end(worker)
        self.forget_gradient(worker)

    def end(self, worker: int) -> None:
        """It is done."""
        self._acting.pop(worker, None)
        self._reading.pop(worker, None)

    def installed(self, worker: int, generation: int) -> None:
        """A worker has begun to work in this generation."""
        if self.mirrors and not self.pace.central:
            raise Violation(f"worker {worker} begins with a mirror of the state, where every host is to hold it")
        if generation < self._newest:
            raise Violation(f"worker {worker} goes from the newest generation {self._newest} back to {generation}")
        self._newest = self._in[worker] = generation
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
        self.state, self.seeded = list(range(self.model.slices)), True

    def lanes_at(self, step: int) -> Sequence[int]:
        """Lanes that have work in this step."""
        return self.model.lanes_at(step)

    def shown(self, step: int) -> Sequence[int] | None:
        """The same, as those see it who carry what other hosts need; None while nobody can say."""
        return self.lanes_at(step) if step < self.model.steps else None

    def given(self) -> list[int]:
        """First lanes of the shares of the step at hand that are here; none where units are lanes."""
        return []

    def image(self) -> tuple[Any, ...]:
        """The state, as another host gets it."""
        return tuple(self.state)

    def of(self) -> int:
        """The generation that its state is of."""
        return self.tenure

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
        slots[lane] = FakeSum(1, gradient(tuple(self.state), step, lane), 1 << lane)
        self._known[step % 2][lane] = step + 1
        for into, take, gives in merges:
            left, right = slots[into.lane], slots.pop(take.lane)
            if left.leaves & right.leaves:
                raise Violation(f"a lane is counted twice in {gives} at step {step}")
            slots[into.lane] = FakeSum(gives.span, add(left.value, right.value), left.leaves | right.leaves)
        self._nodes.pop(step, None)

    def withdraw(self, step: int, merges: Sequence[tree.Merge]) -> None:
        """Somebody began to merge and did not live to publish the sum."""
        for merge in merges:
            for node in (merge.into, merge.take):
                self._slots[step].pop(node.lane, None)
        self._nodes.pop(step, None)

    def sum(self, step: int, places: Sequence[int], *, carried: bool = False) -> None:
        """Sum these slices and publish their norms; with `carried`, from what came from other hosts, too."""
        self._check_unread(step)
        for slice_ in places:
            self.sums[slice_] = self._total(step, slice_ if carried else None)
            self.norms[slice_] = norm(self.sums[slice_], slice_)
            self.summed[slice_] = step + 1

    def readers_before(self, step: int) -> list[int]:
        """The workers whose scripts may read the gradient of the step before this one. Those who are quiet do not."""
        return [w for w, read in self._whole.items() if read < step and self._in.get(w) == self._newest]

    def _check_unread(self, step: int) -> None:
        """Sums of a step take the place of those of the step before it."""
        if readers := self.readers_before(step):
            raise Violation(f"a sum of step {step} is put where workers {readers} read the gradient of the one before")

    def finish(self, step: int, places: Sequence[int], *, carried: bool = False) -> None:
        """Take these slices to the next version; with `carried`, from the sums that were made or came before."""
        carried = carried or self.model.by_steps
        total = 0 if carried else self._total(step, None)
        norms = tuple(self.norms) if self.model.clip else ()
        for slice_ in places:
            if self.versions[slice_] != step:
                raise Violation(f"slice {slice_} is finished for step {step} at version {self.versions[slice_]}")
            if carried:
                self._check_carried(step, slice_)
                total = self.sums[slice_]
            if slice_ == 0:
                self.settle(step)
            self.state[slice_] = update(self.state[slice_], total, slice_, norms)
            self.versions[slice_] = step + 1
        if min(self.versions) > step:
            self._commit(step)

    def settle(self, step: int) -> None:
        """What has to be written down before the first slice of a step is finished."""

    def gather(self, step: int, places: Sequence[int]) -> None:
        """Merge what this host's workers have of these slices, to be sent as one."""
        slots = self._slots[step]
        merged, parts, _ = tree.contribution(self.nodes(step), self.model.lanes)
        assert merged is not None
        inside = [lane for lane in self.lanes_at(step) if merged.lane <= lane < merged.lane + merged.span]
        plan = tree.plan(parts, inside, self.model.lanes)
        leaves = sum(slots[part.lane].leaves for part in parts)
        for slice_ in places:
            value = tree.fold(plan, lambda lane: slots[lane].value, add)
            self.merged[slice_] = FakeSum(merged.span, value, leaves)
            self.gathered[slice_] = step + 1

    def _check_carried(self, step: int, slice_: int) -> None:
        if any(at <= step for at in self.summed):
            raise Violation(f"slice {slice_} is finished for step {step} before all sums are here: {self.summed}")
        if unknown := self.unknown(step):
            raise Violation(f"step {step} is finished without the facts of lanes {unknown}")
        if self.sums[slice_] != self._sum_of(step):
            raise Violation(f"the sum of step {step} in slice {slice_} is not the golden one")

    def _sum_of(self, step: int) -> int:
        return self._golden[1][step]

    def _total(self, step: int, slice_: int | None) -> int:
        slots = self._slots.get(step, {})
        nodes = self.nodes(step)
        if slice_ is not None:
            slots, nodes = self._with_pieces(step, slice_)
        leaves = counted = 0
        for slot in slots.values():
            leaves |= slot.leaves
            counted += slot.leaves.bit_count()
        work = self.lanes_at(step)
        if leaves != tree.bits(work) or counted != len(work):
            raise Violation(f"step {step} is finished with lanes {leaves:b} ({counted} in all) of {len(work)}")
        plan = self._plan(nodes, work, self.model.lanes)
        total = tree.fold(plan, lambda lane: slots[lane].value, add)
        if total != self._sum_of(step):
            raise Violation(f"the sum of step {step} is not the golden one")
        return total

    # ------------------------------------------------------------ several hosts

    def level(self) -> int:
        """How far this host is without others; -1 without a state."""
        if not self.seeded or self.mirrors:
            return -1
        step = min(self.versions)
        return step + 1 if max(self.versions) > step or self.complete(step) else step

    def complete(self, step: int) -> bool:
        """Whether all sums of a step and the facts of all its lanes are here."""
        return step < self.model.steps and all(at > step for at in self.summed) and not self.unknown(step)

    def known(self, step: int) -> list[int]:
        """Lanes whose facts of this step are here."""
        return [lane for lane, at in enumerate(self._known[step % 2]) if at == step + 1]

    def unknown(self, step: int) -> list[int]:
        """Lanes with work whose facts of this step are missing."""
        known = self._known[step % 2]
        return [lane for lane in self.lanes_at(step) if known[lane] != step + 1]

    def covered(self, step: int, slice_: int) -> bool:
        """Whether the partial sums of all lanes of a slice are here, from this host and others."""
        return not tree.uncovered(self.lanes_at(step), self._with_pieces(step, slice_)[1])

    def _with_pieces(self, step: int, slice_: int) -> tuple[dict[int, FakeSum], list[Node]]:
        slots = dict(self._slots.get(step, {}))
        nodes = list(self.nodes(step))
        for lane, (at, slot) in self.pieces[slice_].items():
            if at == step and lane not in slots:
                slots[lane] = slot
                nodes.append(Node(lane, slot.span))
        return slots, nodes

    def may_sum(self, step: int) -> bool:
        """Whether sums of a step may take the place of those of the step before: no donor still needs them."""
        return all(step <= at for at in self.recorded.values())

    def mergeable(self, step: int) -> bool:
        """Whether what this host's workers have of a step can be merged before it is sent."""
        nodes = self.nodes(step)
        return len(nodes) > 1 and tree.contribution(nodes, self.model.lanes).merged is not None

    def slot(self, step: int, lane: int) -> FakeSum:
        """A partial sum of this host, to be sent."""
        return self._slots[step][lane]

    def distrust(self, rows: Sequence[int]) -> None:
        """Forget what all rows but these say: others may have had them, and whoever has them now says it again."""
        for row in range(len(self.arrived)):
            if row not in rows:
                self.arrived[row] = -1

    def begin_generation(self, lanes: frozenset[int], given: frozenset[int] = frozenset()) -> None:
        """Several hosts begin a generation in which these lanes are this host's: others say everything again.

        Of a step of shares, those that are here and begin with `given` count.

        Sums of a step that this host can not complete alone are made again, too: whoever has all of them may take it
        that everybody else could make them.
        """
        for pieces in self.pieces:
            pieces.clear()
        step = min(self.versions)
        if self.level() > step:
            return
        self.summed = [step] * self.model.slices
        self.gathered = [step] * self.model.slices
        for node in list(self.nodes(step)):
            if not lanes.issuperset(range(node.lane, node.lane + node.span)):
                del self._slots[step][node.lane]
        self._nodes.pop(step, None)

    def check_fence(self, generation: int, what: object) -> None:
        """Something comes from another host."""
        if generation < self._newest:
            raise Violation(f"{what} of generation {generation} comes in generation {self._newest}")

    def facts(self, step: int, lanes: Sequence[int]) -> tuple[Any, ...]:
        """What these lanes gave besides gradients, to be sent."""
        return (None,) * len(lanes)

    def land_facts(self, step: int, lanes: Sequence[int], facts: Sequence[Any] = ()) -> None:
        """What these lanes gave besides gradients has come."""
        for lane in lanes:
            self._known[step % 2][lane] = max(self._known[step % 2][lane], step + 1)

    def in_use(self, step: int, lane: int) -> bool:
        """Does this host still need what lies where a partial sum of this step is to go?"""
        return False

    def land_piece(self, step: int, slice_: int, lane: int, slot: FakeSum) -> None:
        """A partial sum of another host has come."""
        if step >= min(self.versions):
            self.pieces[slice_][lane] = (step, slot)

    def land_total(self, step: int, slice_: int, value: int, norm: int) -> None:
        """The sum of a slice has come."""
        if self.versions[slice_] < step:
            raise Violation(f"the sum of step {step} comes to a host that is at step {self.versions[slice_]}")
        if self.versions[slice_] == step and self.summed[slice_] <= step:
            self._check_unread(step)
            self.sums[slice_], self.norms[slice_], self.summed[slice_] = value, norm, step + 1

    def land_state(self, generation: int, version: int, state: Sequence[Any]) -> None:
        """The state of another host has come, all of it at once."""
        if self.seeded and version < min(self.versions) and not self.mirrors:
            raise Violation(f"a host at step {min(self.versions)} fetches the state at step {version}")
        self._check_fetched(version, state)
        if self.seeded and version < min(self.versions):  # what a mirror was ahead by has never been
            self._slots, self._nodes = {}, {}
            self._known = [0] * self.model.lanes, [0] * self.model.lanes
        slices = self.model.slices
        self.state, self.versions, self.seeded = list(state), [version] * slices, True
        self.summed, self.gathered = [version] * slices, [version] * slices
        self.committed, self.current, self.mirrors = version, generation, self.pace.central
        self.tenure = generation
        self.fetches += 1

    def _commit(self, step: int) -> None:
        if step != self.committed:
            raise Violation(f"step {step} is committed after {self.committed} steps")
        self._check_committed(step)
        self.committed = step + 1
        for old in [old for old in self._slots if old < step]:
            self._slots.pop(old)
            self._nodes.pop(old, None)

    def _check_committed(self, step: int) -> None:
        if tuple(self.state) != self._golden[0][step + 1]:
            raise Violation(f"the state after step {step} is not the golden one")

    def _check_fetched(self, version: int, state: Sequence[Any]) -> None:
        if tuple(state) != self._golden[0][version]:
            raise Violation(f"the state that was fetched is not the golden one of step {version}")
