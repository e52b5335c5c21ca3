"""The memory of a simulated host in relaxed modes: the state at its primary, a mirror of it elsewhere.

Clocks, commit sets and what may be shown of them are the real ones (`dataplane.relaxed.pushes`). A slice's value says
what was applied to it, so each slice carries its own proof: a push that counts twice, or never, is seen where it
happens. And so does what optimizers keep of it: with local steps lanes have one each, and a mode that begins or ends
them converts it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.control.protocol.messages import Reached
from holdfast.core import tree
from holdfast.core.sync.modes import Mode, TakenPush, parse
from holdfast.dataplane.relaxed.pushes import Pushes, PushRecord, ToldClocks, pushes_bytes
from holdfast.testing.fake_arena import FakeArena
from holdfast.testing.model import Model, Violation
from holdfast.testing.relaxed.relaxed_audit import check_commit_set, check_shares, most_stale

__all__ = ["Copy", "KeptState", "RelaxedState", "SimPush", "Value"]


class SimPush(NamedTuple):
    """What a worker gives for one of its lanes, or several together."""

    lane: int
    step: int
    read: int  #: the version that it was computed from
    lanes: int  #: that it is for, from that one on


class KeptState(NamedTuple):
    """What optimizers keep, as the steps of each lane that are in it."""

    owners: tuple[int, ...]
    lanes: tuple[int, ...] | None = None  #: with local steps: in each lane's own
    since: int = -1  #: the step of the run at which those began, and the outer momentum

    def by(self, mode: Mode, step: int) -> KeptState:
        """What a mode goes on with that begins at this step: see `dataplane.relaxed.inner_state`."""
        if mode.rounds == (self.lanes is not None):
            return self
        return KeptState(self.owners, self.owners, step) if self.lanes is None else KeptState(self.lanes)

    def next(self, mode: Mode, applied: tuple[int, ...], made: tuple[int, ...]) -> KeptState:
        """After a version of this mode, which took what is applied from the one to the other."""
        if self != self.by(mode, -1) or (self.owners if self.lanes is None else self.lanes) != applied:
            raise Violation(f"optimizers are as {self} in {mode.name}, where {applied} steps are applied")
        return KeptState(made) if self.lanes is None else KeptState(self.owners, made, self.since)


class Value(NamedTuple):
    """What a slice has come to."""

    version: int
    applied: tuple[int, ...]  #: lane -> its steps that are in it
    past: tuple[int, ...]  #: version -> a hash of all that it took to make it
    kept: KeptState

    def by(self, mode: Mode, step: int) -> Value:
        """The same in a mode that begins at this step."""
        return self._replace(kept=self.kept.by(mode, step))

    def leads_on_from(self, past: tuple[int, ...]) -> bool:
        """Was it made from what had this past?"""
        return self.past[: len(past)] == past


@dataclass(slots=True)
class Copy:
    """A replica: the whole state at one version, and what comes in of the next."""

    version: int = -1
    of: int = 0  #: the generation in which it came
    values: tuple[Value, ...] = ()
    told: ToldClocks | None = None
    coming: dict[int, Value] = field(default_factory=dict)

    def replace(self, told: ToldClocks, slices: int, generation: int) -> None:
        """All of a version is here."""
        values = tuple(self.coming[index] for index in sorted(self.coming))
        found = {value.version for value in values}
        if len(values) != slices or found != {told.version}:
            raise Violation(f"a replica of version {told.version} is made of {len(values)} slices of {found}")
        self.version, self.of, self.values, self.told, self.coming = told.version, generation, values, told, {}

    def take_up(self, reached: Reached) -> None:
        """Be a copy in this mode: see `dataplane.wire.replica`."""
        mode, rounds = parse(reached.sync), any(value.kept.lanes is not None for value in self.values)
        if self.version == reached.version:
            self.values = tuple(value.by(mode, reached.step) for value in self.values)
            self.told = _begun(reached, len(self.values[0].applied))
        elif rounds != mode.rounds:
            raise Violation(f"a replica of version {self.version} is of another mode than {reached}")


def _begun(reached: Reached, lanes: int) -> ToldClocks:
    """How far lanes are when a mode begins."""
    none = [0] * lanes
    return ToldClocks(reached.version, 0, 0, reached.step, reached.step, none, none, none)


class RelaxedState(FakeArena):
    """What the workers of a host share, in relaxed modes."""

    def __init__(
        self, model: Model, rows: int, plan: Callable[..., tree.Plan] = tree.plan, *, mode: Mode
    ) -> None:  # fmt: skip
        super().__init__(model, rows, plan)
        self.pace.reached = Reached(sync=mode.name)
        self._keep_step_by(mode)
        none = (0,) * model.lanes
        self.values = [Value(0, none, (), KeptState(none).by(mode, 0)) for _ in range(model.slices)]
        self.torn: set[int] = set()  #: slices that somebody is at, or was when he died
        self.copy: Copy | None = None

    def _keep_step_by(self, mode: Mode) -> None:
        lanes = self.model.lanes
        self.mode = mode
        self.pushes = Pushes(memoryview(bytearray(pushes_bytes(lanes))), lanes)
        self.slots: dict[int, SimPush] = {}  #: lane -> what lies there

    def turn(self, reached: Reached, *, fetches: bool) -> None:
        """A generation begins in which lanes keep step so: as the real host memory do."""
        before = self.pace.reached
        self.part()
        self.pace.turn(reached, () if fetches or self.mirrors else self.versions, self._acting, begun=False)
        if (before.sync, before.version, before.step) == (reached.sync, reached.version, reached.step):
            return
        if set(self.versions) != {reached.version}:
            self.mirrors = True  # nobody knows any more how far lanes are in it
        self._keep_step_by(parse(reached.sync))
        self.pushes.go_on_from(reached.step)
        if not self.mirrors:
            self.values = [value.by(self.mode, reached.step) for value in self.values]

    def part(self) -> None:
        """Lanes that pushed together may have other drivers from now on."""
        self.pushes.part()

    # ------------------------------------------------------------ announcements

    def begin(self, worker: int, generation: int, step: int, what: str, places: tuple[int, ...]) -> None:
        """Somebody is about to compute a lane, or to take slices to their next version."""
        if generation < self._newest:
            raise Violation(f"worker {worker} acts in generation {generation}, but {self._newest} has begun")
        for other, (_, _, kind, where) in self._acting.items():
            if kind == what and not set(where).isdisjoint(places):
                raise Violation(f"workers {other} and {worker} both {what} {where}")
        self._acting[worker] = (generation, step, what, places)

    # ------------------------------------------------------------ how far it is

    def seed(self) -> None:
        """Fill in the first weights."""
        self.seeded = True

    def level(self) -> int:
        """The version that can be had from this host: its state's, or its replica's."""
        low, high = min(self.versions), max(self.versions)
        own = -1 if self.mirrors or not self.seeded else low + (high > low)
        return own if own >= 0 or self.copy is None else self.copy.version

    def of(self) -> int:
        """The generation that it is of."""
        return self.copy.of if self.mirrors and self.copy is not None else self.tenure

    def holds(self, past: tuple[int, ...]) -> bool:
        """Can a state be had from this host that was made from one with this past?"""
        own = [] if self.mirrors or not self.seeded else self.values
        kept = [] if self.copy is None else self.copy.values
        return any(values and all(value.leads_on_from(past) for value in values) for values in (own, kept))

    @property
    def version(self) -> int:
        """The version that the clocks here are of."""
        told = self.pushes.published
        return min(self.versions) if told is None else told

    @property
    def applied(self) -> tuple[int, ...]:
        """Lane -> its steps that are in every slice."""
        return tuple(map(min, zip(*(value.applied for value in self.values), strict=True)))

    def steps_of(self, pushes: int) -> int:
        """Steps that a lane has made with so many pushes: a round has several, but for the last one perhaps."""
        if not self.mode.rounds:
            return pushes
        return min(self.pushes.resumed + pushes * self.mode.inner, self.model.steps)

    def pushes_in_all(self) -> int:
        """How many pushes each lane makes."""
        left = self.model.steps - (self.pushes.resumed if self.mode.rounds else 0)
        return -(-left // self.mode.inner)

    # ------------------------------------------------------------ at the primary

    def land(self, push: SimPush) -> None:
        """The gradient of a push is here. A lane has room for one: all before it are in every slice, none after it."""
        for lane in range(push.lane, push.lane + push.lanes):
            applied = self.applied[lane]
            if applied < self.steps_of(push.step):
                raise Violation(f"there is no room for {push}: only {applied} steps of lane {lane} are applied")
            if applied > self.steps_of(push.step):
                raise Violation(f"{push} is computed again: {applied} steps of lane {lane} are applied")
            self.slots[lane] = push

    def count(self, lane: int, record: PushRecord) -> None:
        """All of a push is here: let it count."""
        for other in range(lane, lane + record.lanes):
            if record.step != self.pushes.pushed(other):
                raise Violation(f"push {record.step} of lane {other} comes, where {self.pushes.pushed(other)} is due")
        self.pushes.push(lane, record)

    def decide(self, found: Sequence[TakenPush], steps: int) -> None:
        """These pushes lead on from the version at hand, where each lane makes `steps` of them."""
        applied = self.applied
        pushed = [self.pushes.pushed(lane) for lane in range(len(applied))]
        waiting = {lane for lane, made in enumerate(pushed) if self.steps_of(made) > applied[lane]}
        check_commit_set(self.mode, found, pushed, waiting, steps)
        check_shares(found, {lane: (push.lane, push.lanes) for lane, push in self.slots.items()})
        self.pushes.decide(self.version, found)

    def take(self, index: int, taken: Sequence[TakenPush]) -> None:
        """Take a slice to its next version."""
        version, applied, past, kept = self.values[index]
        counts, made = list(applied), hash((past[-1:], version))
        for lane, step in taken:
            push = self.slots.get(lane)
            if push is None or push.step != step or self._lanes_of(lane) != push.lanes * (lane == push.lane):
                raise Violation(f"version {version} takes step {step} of lane {lane}, and {push} lies there")
            if counts[lane] != (at := self.steps_of(step)):
                raise Violation(f"slice {index} has applied {counts[lane]} steps of lane {lane}, and now step {at}")
            if version - push.read > most_stale(self.mode, len(counts), self.model.steps):
                raise Violation(f"{push} goes into version {version}: too stale for {self.mode.name}")
            counts[lane] = self.steps_of(step + 1)
            made = hash((made, push))
        now = tuple(counts)
        self.values[index] = Value(version + 1, now, (*past, made), kept.next(self.mode, applied, now))
        self.versions[index] = version + 1
        self.torn.discard(index)
        self.committed = max(self.committed, min(self.applied))

    def _lanes_of(self, lane: int) -> int:
        """How many lanes the last push of a lane is for; 0: it lies with another one."""
        return self.pushes.record(lane).lanes

    # ------------------------------------------------------------ elsewhere

    def mirror(self, told: ToldClocks, values: Sequence[Value], generation: int) -> None:
        """Begin to mirror the primary."""
        self.mirrors, self.seeded, self.current = True, True, generation
        self.values, self.versions = list(values), [value.version for value in values]
        self.torn.clear()
        self.pushes.forget()
        self.pushes.mirror(told, ())

    def land_slice(self, index: int, value: Value) -> None:
        """A slice comes from the primary."""
        if value.version < self.versions[index]:
            raise Violation(f"slice {index} goes back from version {self.versions[index]} to {value.version}")
        self.values[index], self.versions[index] = value, value.version

    def hear(self, told: ToldClocks, mine: frozenset[int]) -> None:
        """The primary tells how far all lanes are."""
        if told.version > min(self.versions):
            raise Violation(f"clocks of version {told.version} come before its slices: {self.versions}")
        if told.version < self.version:
            raise Violation(f"clocks go back from version {self.version} to {told.version}")
        self.pushes.mirror(told, mine)
        self.committed = max(self.committed, self.steps_of(min(told.applied)))

    def keep(self, generation: int) -> None:
        """Begin to hold a replica with what is here of that generation, if the mode began with it."""
        reached = self.pace.reached
        self.copy = Copy()
        if self.seeded and not self.mirrors and self.tenure == generation and set(self.versions) == {reached.version}:
            self.copy = Copy(reached.version, self.tenure, tuple(self.values), _begun(reached, self.model.lanes))

    def take_up(self) -> None:
        """Have the replica be of the mode that counts here."""
        assert self.copy is not None
        self.copy.take_up(self.pace.reached)

    def inherit(self) -> None:
        """Make the replica the state: this host is the primary from now on."""
        assert self.copy is not None
        self.take_up()
        assert self.copy.told is not None
        self.values, self.versions = list(self.copy.values), [self.copy.version] * self.model.slices
        self.mirrors = False
        self.torn.clear()
        self.pushes.inherit(self.copy.told)
