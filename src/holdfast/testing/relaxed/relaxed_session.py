"""A simulated peer session in relaxed modes: pushes to the primary, what it publishes back, copies along a chain.

What goes when is decided by `core.sync.mirroring`, as for the real one. Every connection brings things in order, one by
one, each after a time of its own; those of a pair of hosts and those of the chain are different ones. What must hold
between hosts is watched here: a version is shown to nobody before all replicas hold it, and what was shown is not taken
back while somebody who held it is there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from holdfast.control.protocol.messages import Install
from holdfast.core.roles import chain_link, primary_of
from holdfast.core.sync import mirroring
from holdfast.core.sync.modes import TakenPush
from holdfast.dataplane.relaxed.pushes import PushRecord, ToldClocks
from holdfast.testing.fake_session import FakeSession
from holdfast.testing.model import Violation
from holdfast.testing.relaxed.relaxed_state import RelaxedState, SimPush, Value

if TYPE_CHECKING:
    from holdfast.testing.fake_host import FakeHost

__all__ = ["RelaxedSession", "Rules", "Witness"]

_RETRY = 0.03  #: seconds until a cut connection is tried again


@dataclass(frozen=True, slots=True)
class Rules:
    """By what a peer session goes. Replaced to see whether the simulation notices."""

    inward: Callable[[Mapping[int, int], Mapping[int, int]], list[TakenPush]] = mirroring.to_primary
    outward: Callable[[Sequence[int], Sequence[int], int | None], mirroring.Due] = mirroring.to_mirror
    gives_up: bool = True  #: what is gone on from before all of it has gone is not sent on
    confirm_early: bool = False  #: a replica says that it holds a version before those after it do
    hasty: bool = False  #: a replica that was made the primary shows at once what it has
    whole: bool = True  #: a push counts when all of it is there
    together: bool = True  #: a push says for how many lanes it is
    early: bool = False  #: news go to a mirror before it has what they are news of


class _Gradient(NamedTuple):
    push: SimPush


class _Pushed(NamedTuple):
    lane: int
    record: PushRecord


class _Slice(NamedTuple):
    at: int  #: the slice
    value: Value


class _Clocks(NamedTuple):
    told: ToldClocks


class _Piece(NamedTuple):
    at: int  #: the slice
    value: Value


class _WholeCopy(NamedTuple):
    told: ToldClocks


class _GivenUp(NamedTuple):
    version: int


class _HeldWord(NamedTuple):
    version: int


_Freight = _Gradient | _Pushed | _Slice | _Clocks | _Piece | _WholeCopy | _GivenUp | _HeldWord


@dataclass(slots=True)
class Witness:
    """What the run has shown, and who held it then. It outlives every host."""

    past: tuple[int, ...] = ()  #: of the newest version that was shown
    taken_back: int = 0  #: times that nobody was left who held what had been shown

    def seen(self, primary: RelaxedState) -> None:
        """Nobody guards the version at hand: whoever wanted to has seen it."""
        past = primary.values[0].past[: min(primary.versions)]
        if past[: len(self.past)] == self.past:
            self.past = past

    def shown(self, primary: FakeHost, version: int, replicas: Sequence[int]) -> None:
        """The primary shows a version."""
        assert isinstance(primary.arena, RelaxedState)
        hosts, past = primary.cluster.hosts, primary.arena.values[0].past[:version]
        if past[: len(self.past)] != self.past:
            there_still = [
                number for number, host in hosts.items() if host.up and not host.cut and not host.closed
                and isinstance(host.arena, RelaxedState) and host.arena.holds(self.past)
            ]  # fmt: skip
            if there_still:
                what = f"version {version} is shown after {len(self.past)}, from which it was not made"
                raise Violation(f"{what}, and which hosts {there_still} hold")
            self.past, self.taken_back = past, self.taken_back + 1
        elif version > len(self.past):
            for number in replicas:
                there = hosts[number]
                same = (
                    there.session is None
                    or primary.session is None
                    or there.session.generation == primary.session.generation
                )
                if there.up and same and isinstance(there.arena, RelaxedState) and not there.arena.holds(past):
                    raise Violation(f"version {version} is shown, and replica {number} does not hold it")
            self.past = past


class _Connection:
    """One direction of a connection: what is next is asked for when the last thing has come."""

    def __init__(self, session: RelaxedSession, there: int, next_: Callable[[], _Freight | None]) -> None:
        self.session, self.there, self._next = session, there, next_
        self.broken = self._busy = False

    def look(self) -> None:
        """Send what is next, unless something is on its way."""
        if self._busy or self.broken or not self.session.current():
            return
        if (freight := self._next()) is not None:
            self._busy = True
            host = self.session.host
            host.cluster.clock.after(host.cluster.carriage(host.factor), self._bring, freight)

    def _bring(self, freight: _Freight) -> None:
        session = self.session
        there = session.host.cluster.hosts.get(self.there)
        if self.broken or (session.closed and session.fenced) or there is None or not there.up:
            return
        if session.host.cut or there.cut or not there.takes(session):
            session.host.cluster.clock.after(_RETRY, self._bring, freight)
            return
        if session.fenced and (
            there.session is None or there.session.closed or there.session.generation != session.generation
        ):
            return  # its connections are gone
        there.arena.check_fence(session.generation, freight)
        assert isinstance(there.session, RelaxedSession)
        there.session.land(session.host.number, freight)
        self._busy = False
        there.moved()
        there.stirred()
        self.look()


@dataclass(slots=True)
class _Publishing:
    """To one mirror: what it has of what was published."""

    sent: list[int] | None = None  #: slice -> version that went; None: it has not begun to mirror the primary
    told: ToldClocks | None = None  #: what it was told last
    next: ToldClocks | None = None  #: what is to be told


@dataclass(slots=True)
class _Chain:
    """This host's place in the chain of replicas."""

    before: int | None
    after: int | None
    onward: deque[_Freight] = field(default_factory=deque)  #: to the next replica
    back: deque[_Freight] = field(default_factory=deque)  #: to the one before
    last: int = -1  #: at the primary: the version that was sent
    free: bool = False  #: it may be gone on from before all of it has gone
    held: int = -1  #: by all after this one


class RelaxedSession(FakeSession):
    """One host's peer session, for one generation, in relaxed modes."""

    rules = Rules()

    @property
    def arena(self) -> RelaxedState:
        """The memory of this host."""
        assert isinstance(self.host.arena, RelaxedState)
        return self.host.arena

    def _embark(self, install: Install) -> None:
        me, arena = self.host.number, self.arena
        self.primary = primary_of(install.hosts, install.sources)
        self.replicas = tuple(install.replicas)
        self._chain = _Chain(*chain_link(me, self.primary, self.replicas))
        self._sent: dict[int, int] = {}  # lane driven here -> its pushes that have gone primary
        self._op = 0  # in this pass
        self._going: deque[_Freight] = deque()  # the rest of a push
        if self.primary == me and arena.copy is not None and arena.mirrors:
            arena.inherit()
        if me not in self.replicas:
            arena.copy = None
        elif arena.copy is None:
            arena.keep(self.generation - 1)
        else:
            arena.copy.coming.clear()
            if me in install.abreast:
                arena.copy.of = self.generation
                arena.take_up()
        others = [host for host in sorted(set(install.hosts)) if host != me]
        self._connections: list[_Connection] = []
        self._mirrors: dict[int, _Publishing] = {}  # at the primary
        if me == self.primary:
            arena.torn.clear()  # each slice's new owner puts back what was there before
            if arena.pushes.settled and arena.pushes.held(max(arena.versions)):
                self.host.cluster.witness.seen(arena)
            arena.pushes.guard(None if self._chain.after is None else min(arena.versions))
            if set(self.replicas) <= set(install.abreast):
                self._chain.last = min(arena.versions)
                arena.pushes.hold(self._chain.last)
            if self.rules.hasty and not arena.pushes.settled:
                arena.pushes.guard(None)
                arena.pushes.guard(min(arena.versions))
            for there in others:
                self._mirrors[there] = _Publishing([-1] * arena.model.slices if self.rules.early else None)
                self._connections.append(_Connection(self, there, partial(self._publish, self._mirrors[there])))
        else:
            self._connections.append(_Connection(self, self.primary, self._bring_primary))
            clock, cluster = self.host.cluster.clock, self.host.cluster
            clock.after(cluster.carriage(self.host.factor), self._ask)
        if self._chain.after is not None:
            self._connections.append(_Connection(self, self._chain.after, self._copy_on))
        if self._chain.before is not None:
            self._connections.append(_Connection(self, self._chain.before, self._say_held))

    def look(self) -> None:
        """The arena has changed: is something due?"""
        if not self.closed:
            for connection in self._connections:
                connection.look()

    def unlink(self) -> list[int]:
        """Break all connections; the hosts at their ends."""
        me, ends = self.host.number, {self.host.number} if self._connections else set()
        for number, there in self.host.cluster.hosts.items():
            if isinstance(there.session, RelaxedSession) and there.session.generation == self.generation:
                for connection in there.session._connections:
                    if me in (number, connection.there):
                        connection.broken = True
                        ends |= {number, connection.there}
        return sorted(ends)

    # ------------------------------------------------------------ what is next

    def _bring_primary(self) -> _Freight | None:
        arena = self.arena
        if self._going:
            return self._going.popleft()
        if arena.pushes.op != self._op:  # the primary has begun the pass, or goes on with it in another mode
            begin = 0 if arena.mode.rounds else arena.pushes.resumed
            self._op, self._sent = arena.pushes.op, dict.fromkeys(self._sent, begin)
        pushed = {lane: arena.pushes.pushed(lane) for lane in self._sent}
        for lane, step in self.rules.inward(self._sent, pushed):
            self._sent[lane] = step + 1
            record = arena.pushes.record(lane)
            if not record.lanes:  # it goes with another lane's
                continue
            gradient = _Gradient(arena.slots[lane])
            count = _Pushed(lane, record if self.rules.together else record._replace(lanes=1))
            first, second = (gradient, count) if self.rules.whole else (count, gradient)
            self._going.append(second)
            return first
        return None

    def _publish(self, to: _Publishing) -> _Freight | None:
        arena = self.arena
        if to.sent is None:
            return None
        if to.next is None:
            told = self._told()
            to.next = told if told != to.told else None
        due = self.rules.outward(arena.versions, to.sent, None if to.next is None else to.next.version)
        if due.clocks and to.next is not None:
            to.told, to.next = to.next, None
            return _Clocks(to.told)
        for index in due.slices:
            if index not in arena.torn:
                to.sent[index] = arena.versions[index]
                return _Slice(index, arena.values[index])
        return None

    def _told(self) -> ToldClocks | None:
        """What is published; it is shown from now on."""
        pushes = self.arena.pushes
        version = pushes.shown(min(self.arena.versions))
        self.show(version)
        return pushes.told(version)

    def show(self, version: int) -> None:
        """Somebody sees this version at the primary."""
        if self.arena.pushes.settled:
            self.host.cluster.witness.shown(self.host, version, self.replicas)

    def _copy_on(self) -> _Freight | None:
        chain, arena = self._chain, self.arena
        if self.host.number == self.primary and not chain.onward:
            version = min(arena.versions)
            found = mirroring.copied(arena.versions, chain.last, decided=arena.pushes.decided(version))
            told = arena.pushes.told(found) if found is not None else None
            if told is None:
                return None
            chain.last, chain.free = told.version, arena.pushes.free(told.version)
            chain.onward.extend(_Piece(index, value) for index, value in enumerate(arena.values))
            chain.onward.append(_WholeCopy(told))
        if not chain.onward:
            return None
        overtaken = self.host.number == self.primary and chain.free and arena.pushes.decided(chain.last)
        if overtaken and self.rules.gives_up:
            chain.onward.clear()
            return _GivenUp(chain.last)
        freight = chain.onward.popleft()
        if self.host.number == self.primary and isinstance(freight, _Piece):  # as it lies there when it leaves
            return _Piece(freight.at, arena.values[freight.at])
        return freight

    def _say_held(self) -> _Freight | None:
        return self._chain.back.popleft() if self._chain.back else None

    # ------------------------------------------------------------ what comes

    def land(self, sender: int, freight: _Freight) -> None:
        """Something has come from another host."""
        arena, chain = self.arena, self._chain
        if isinstance(freight, _Gradient):
            arena.land(freight.push)
        elif isinstance(freight, _Pushed):
            arena.count(freight.lane, freight.record)
        elif isinstance(freight, _Slice):
            arena.land_slice(*freight)
        elif isinstance(freight, _Clocks):
            arena.hear(freight.told, self._lanes)
        elif isinstance(freight, _HeldWord):
            self._all_hold(freight.version)
        else:
            assert arena.copy is not None
            if chain.after is not None:
                chain.onward.append(freight)
            if isinstance(freight, _Piece):
                arena.copy.coming[freight.at] = freight.value
            elif isinstance(freight, _GivenUp):
                arena.copy.coming.clear()
            else:
                arena.copy.replace(freight.told, arena.model.slices, self.generation)
                if chain.after is None or self.rules.confirm_early:
                    chain.back.append(_HeldWord(freight.told.version))

    def _all_hold(self, version: int) -> None:
        """All replicas after this host hold a version."""
        if self.host.number == self.primary:
            self.arena.pushes.hold(version)
        elif not self.rules.confirm_early:
            self._chain.back.append(_HeldWord(version))

    # ------------------------------------------------------------ fetching

    def _ask(self) -> None:
        """Look whether the primary can be mirrored."""
        if self.closed or not self.host.up:
            return
        cluster = self.host.cluster
        there = cluster.hosts.get(self.primary)
        ready = there is not None and there.up and not (there.cut or self.host.cut) and there.takes(self)
        primary = there.session if ready and there is not None else None
        if isinstance(primary, RelaxedSession) and primary.generation == self.generation and not primary.arena.torn:
            told = primary._told()
            if told is not None:
                to = primary._mirrors[self.host.number]
                to.sent, to.told = list(primary.arena.versions), told
                duration = cluster.carriage(primary.host.factor) * 4
                cluster.clock.after(duration, self._mirrored, primary, told, tuple(primary.arena.values))
                return
        cluster.clock.after(_RETRY, self._ask)

    def _mirrored(self, primary: RelaxedSession, told: ToldClocks, values: tuple[Value, ...]) -> None:
        if self.closed or not self.host.up:
            return
        if (
            primary.closed or not primary.host.up or primary.host.cut or self.host.cut
        ):  # in vain, if the primary is gone
            self.host.cluster.clock.after(_RETRY, self._mirrored, primary, told, values)
            return
        self.arena.check_fence(self.generation, "the state")
        self.arena.mirror(told, values, self.generation)
        self._op, self._sent = told.op, {lane: told.pushed[lane] for lane in sorted(self._lanes)}
        self.host.fetched()
