"""A simulated peer session: carries between the arenas of simulated hosts what the real one carries, by the real rules.

What is due is decided by `core.transfers`, as for the real sender. Each pair of hosts has a connection of its own, in
which things come in order, one by one, each after a time of its own. While a host is cut off nothing comes through;
what was on its way comes when the cut is healed, if both ends are still there.

A peer session belongs to one generation. It is made with the first Install of it that its host hears and closed with
the first Pause of a later one, before any worker hears of it; from then on nothing that it sent, or that is sent to it,
lands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.control.protocol.messages import Install
from holdfast.core.transfers import Facts, HostProgress, Sent, SliceSums, SumPiece, Transfer, TransferRoute, due
from holdfast.testing.fake_arena import FakeArena
from holdfast.testing.model import Violation

if TYPE_CHECKING:
    from holdfast.testing.fake_host import FakeHost

__all__ = ["FakeSession", "homes"]

_RETRY = 0.03  #: seconds until a cut connection is tried again


def homes(hosts: Sequence[int], slices: int) -> list[int]:
    """Slice -> the host that sums it, or the worker that owns it."""
    return [hosts[index % len(hosts)] for index in range(slices)]


class _Sender:
    """What goes from one host to another."""

    waits = True  #: for a place that is still in use; taken away to see whether the simulation notices

    def __init__(self, session: FakeSession, there: int, route: TransferRoute) -> None:
        self.session, self.there, self._route = session, there, route
        self._sent = Sent(0)
        self._rows: dict[int, int] = {}
        self._due: list[Transfer] = []
        self._busy = False
        self.broken = False

    def begin(self) -> None:
        """The state is here, and nobody acts yet: this is the step that the other host may need something of."""
        self._sent = Sent(self.session.host.arena.step())

    def look(self) -> None:
        """Send what is due next, unless something is on its way."""
        session, arena = self.session, self.session.host.arena
        if self._busy or not session.current():
            return
        if self._due:
            self._send(self._due.pop(0))
            return
        rows = {row: arena.arrived[row] for row in session.rows}
        if rows != self._rows:
            self._rows = rows
            self._send(rows)
            return
        version = arena.step()
        while True:
            sent = self._sent
            step = sent.step
            view = HostProgress(
                version, arena.known(step), arena.nodes(step), arena.shown(step), arena.gathered, arena.summed
            )
            self._due = due(self._route, view, sent)
            if self._due:
                for transfer in self._due:
                    sent.note(transfer)
                self._send(self._due.pop(0))
                return
            if version <= step:
                return
            self._sent = Sent(step + 1)

    def _send(self, what: Transfer | dict[int, int]) -> None:
        self._busy = True
        host = self.session.host
        host.cluster.clock.after(host.cluster.carriage(host.factor), self._bring, what, self._taken(what))

    def _taken(self, what: Transfer | dict[int, int]) -> object:
        """What is sent, as it lies in the arena now."""
        arena = self.session.host.arena
        if isinstance(what, SumPiece):
            if what.merged:
                return [arena.merged[slice_] for slice_ in range(what.first, what.last)]
            return [arena.slot(what.step, what.node.lane)] * (what.last - what.first)
        if isinstance(what, dict):
            return None
        if isinstance(what, Facts):
            return arena.facts(what.step, what.lanes)
        return [(arena.sums[slice_], arena.norms[slice_]) for slice_ in range(what.first, what.last)]

    def _bring(self, what: Transfer | dict[int, int], taken: object) -> None:
        session = self.session
        if self.broken or (session.closed and session.fenced):
            return
        there = session.host.cluster.hosts.get(self.there)
        if there is None or not there.up:
            return
        held = isinstance(what, SliceSums) and not there.arena.may_sum(what.step)
        held = held or (isinstance(what, SumPiece) and self.waits and there.arena.in_use(what.step, what.node.lane))
        if session.host.cut or there.cut or held or not there.takes(session):
            session.host.cluster.clock.after(_RETRY, self._bring, what, taken)
            return
        if session.host.up and not session.closed and _wanted(there.arena, what) and self._taken(what) != taken:
            raise Violation(f"{what} changed on host {session.host.number} while it was on its way")
        if session.fenced and (
            there.session is None or there.session.closed or there.session.generation != session.generation
        ):
            return  # its connections are gone
        self._land(there, what, taken)
        self._busy = False
        self.look()

    def _land(self, there: FakeHost, what: Transfer | dict[int, int], taken: object) -> None:
        arena = there.arena
        arena.check_fence(self.session.generation, what)
        if isinstance(what, dict):
            for row, arrived in what.items():
                arena.arrived[row] = arrived
        elif isinstance(what, Facts):
            assert isinstance(taken, tuple)
            arena.land_facts(what.step, what.lanes, taken)
        else:
            assert isinstance(taken, list)
            for slice_, value in zip(range(what.first, what.last), taken, strict=True):
                if isinstance(what, SumPiece):
                    if value.span != what.node.span:
                        raise Violation(f"{what} is sent with a sum of {value.span} lanes")
                    arena.land_piece(what.step, slice_, what.node.lane, value)
                else:
                    arena.land_total(what.step, slice_, *value)
        there.moved()


def _wanted(arena: FakeArena, what: Transfer | dict[int, int]) -> bool:
    """Whether the other host has any use for it; what belongs to a step that it needs nobody for may be torn."""
    if isinstance(what, SumPiece):
        return arena.step() <= what.step and not arena.complete(what.step)
    if isinstance(what, Facts):
        return False  # they are copied before they are sent
    if not isinstance(what, SliceSums):
        return True
    return any(arena.versions[s] == what.step and arena.summed[s] <= what.step for s in range(what.first, what.last))


class FakeSession:
    """One host's peer session, for one generation."""

    fenced = True  #: a closed one neither sends nor lands; taken away to see whether the simulation notices

    def __init__(self, host: FakeHost, install: Install) -> None:
        self.host, self.generation = host, install.generation
        self.closed = False
        arena, me = host.arena, host.number
        self.rows = [row for row, at in zip(install.rows, install.hosts, strict=True) if at == me]
        where = dict(zip(install.members, install.hosts, strict=True))
        self._lanes = frozenset(lane for lane, driver in enumerate(install.drivers) if where[driver] == me)
        elsewhere = {lane for lane, there in install.given.items() if there != me}
        #: The lanes that are this host's in the step at hand; where shares of it have come, no others have work.
        self._at_hand = frozenset(range(len(install.drivers))) - elsewhere if install.given else self._lanes
        self._given = install.given_on(me)
        self._source = install.sources.get(me)
        self._replica = me in install.replicas  # it holds each version as it comes
        self.level = arena.level()  #: before anybody acts: what it can come to by itself
        self._senders: list[_Sender] = []
        self._embark(install)
        if self._source is None:
            arena.tenure = install.generation

    def _embark(self, install: Install) -> None:
        host, arena, me = self.host, self.host.arena, self.host.number
        where = dict(zip(install.members, install.hosts, strict=True))
        hosts = sorted(set(install.hosts))
        if len(hosts) == 1:
            # What came from others when there were some counts no more.
            arena.begin_generation(self._at_hand, self._given)
            return
        serving = sorted({where[server] for server in install.servers})
        home = homes(serving or hosts, arena.model.slices)
        for there in hosts:
            if there != me:
                self._senders.append(_Sender(self, there, TransferRoute(
                    self._lanes, arena.model.lanes, tuple(h == me for h in home), tuple(h == there for h in home),
                    ("",) * len(home), (1,) * len(home), 2, install.at_hand, self._at_hand,
                )))  # fmt: skip
        arena.distrust(self.rows)
        if self._source is None:
            self._begin(self._at_hand, self._given)
        else:
            host.cluster.clock.after(host.cluster.carriage(host.factor), self._ask)

    def _begin(self, lanes: frozenset[int], given: frozenset[int] = frozenset()) -> None:
        self.host.arena.begin_generation(lanes, given)
        for sender in self._senders:
            sender.begin()

    def current(self) -> bool:
        """Whether this host has the state with which its generation begins."""
        return not self.closed and (self._source is None or self.host.arena.current >= self.generation)

    def look(self) -> None:
        """The arena has changed: is something due?"""
        if not self.closed:
            for sender in self._senders:
                sender.look()

    def close(self) -> None:
        """The fence."""
        self.closed = True

    def unlink(self) -> list[int]:
        """Break all connections; the hosts at their ends."""
        ends = [self.host.number] if self._senders else []
        for sender in self._senders:
            there = self.host.cluster.hosts[sender.there]
            for one in (sender, *(there.session._senders if there.session is not None else ())):
                one.broken = one.broken or one.there in (sender.there, self.host.number)
            ends.append(sender.there)
        return ends

    # ------------------------------------------------------------ fetching

    def _ask(self) -> None:
        """Look whether the source is ready to serve: it stands at the version that it could come to by itself."""
        if self.closed or not self.host.up:
            return
        clock, cluster = self.host.cluster.clock, self.host.cluster
        assert self._source is not None
        there = cluster.hosts.get(self._source)
        ready = there is not None and there.up and not (there.cut or self.host.cut) and there.takes(self)
        serving = there.session if ready and there is not None else None
        if serving is None or serving.generation != self.generation or not serving.serves():
            clock.after(_RETRY, self._ask)
            return
        arena = serving.host.arena
        duration = cluster.carriage(serving.host.factor) * 4
        clock.after(duration, self._fetched, serving, arena.step(), arena.image())

    def serves(self) -> bool:
        """Whether the state can be had from here."""
        arena = self.host.arena
        return self.current() and arena.seeded and min(arena.versions) >= self.level and len(set(arena.versions)) == 1

    def _fetched(self, source: FakeSession, version: int, state: tuple[object, ...]) -> None:
        if self.closed or not self.host.up:
            return
        if source.closed or not source.host.up or source.host.cut or self.host.cut:
            self.host.cluster.clock.after(_RETRY, self._ask)  # in vain, as long as the source is gone
            return
        if source.host.arena.image() != state:
            raise Violation(f"the state of host {source.host.number} changed while host {self.host.number} fetched it")
        self.host.arena.check_fence(self.generation, "the state")
        self.host.arena.land_state(self.generation, version, state)
        if self._replica:
            self.host.arena.mirrors = False
        self._begin(self._lanes)
        self.host.fetched()
