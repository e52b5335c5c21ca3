"""The crew: live workers, the installed generation, and the change to the next one.

A change has one shape, whatever led to it (a loss, a join, a leave, balance, the end):

    Pause(g + 1) to the members of g -> each says Paused(g + 1) -> Install(g + 1) to those who stay

Rules that keep a run safe, and that live here:

* a member is waited for until it is quiet, has finished, or is *certainly* gone. A worker whose kill is
  ordered counts as writing until the kill is confirmed, whatever it said before. Only with its whole host is a
  worker gone at once, whatever it does there: nobody else looks at that host's arena, and others
  close their connections to it before they go quiet;
* a change is never given up and there is never more than one: what happens meanwhile only alters who
  is in it, so generations grow one at a time;
* quiet for an older generation is no quiet.

Only `machine` may use this module.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from holdfast.control.membership.hosts import Hosts
from holdfast.control.membership.process_names import ProcessNames
from holdfast.control.membership.roster import CrewLimits, Stage, Worker
from holdfast.control.protocol.commands import Command, KillWorker, MakeArena, Send, StartWorker
from holdfast.control.protocol.messages import AtBoundary, Install, Leave, Pause, Reached, ToWorker, Welcome
from holdfast.control.slice_balance import runs
from holdfast.core.sync.modes import parse

__all__ = ["ALIVE", "Crew", "GenerationChange"]

_JOINING = frozenset({Stage.STARTING, Stage.READY, Stage.SEEDING, Stage.WAITING})
_ACTIVE = _JOINING | {Stage.MEMBER}
#: Stages of workers that have, or will have, a part in the run's work; a refused or finished one is waited for in vain.
ALIVE = _ACTIVE | {Stage.DOOMED, Stage.FINISHED, Stage.REFUSED}


@dataclass(slots=True)
class GenerationChange:
    """The change in progress: towards which generation, and with whom as far as is known now."""

    generation: int
    planned: tuple[int, ...] = ()
    quiet: float | None = None  #: since when nobody in the installed generation writes any more
    stood: AtBoundary | None = None  #: the step boundary at which all members stood when it began, if they did
    also: tuple[int, ...] = ()  #: besides its members: those who followed until now, and have to be quiet as well


@dataclass(slots=True)
class Crew:
    """Live workers and generations. Methods append what they want done to `out`."""

    limits: CrewLimits
    hosts: Hosts = field(default_factory=Hosts)
    workers: dict[int, Worker] = field(default_factory=dict)  #: live ones only
    cast: ProcessNames = field(init=False)  #: what all are called, also those who are gone
    generation: int = 0  #: installed; 0 before the first
    started: int = 0  #: workers ever ordered; the next one's number
    members: tuple[int, ...] = ()  #: of the installed generation, by host and number, the lost ones included
    rows: tuple[int, ...] = ()  #: of `members`, in their order
    where: tuple[int, ...] = ()  #: hosts of `members`, in their order
    servers: tuple[int, ...] = ()  #: those of `members` that drive no lanes
    drivers: tuple[int, ...] = ()  #: lane -> member
    owners: tuple[int, ...] = ()  #: bundle of slices -> server; empty: members own by bytes
    sources: dict[int, int] = field(default_factory=dict)  #: host -> host it gets the state from
    primary: int = -1  #: the host that holds the state, in relaxed modes
    replicas: tuple[int, ...] = ()  #: the hosts that hold a copy of what `primary` holds, in the order of their chain
    abreast: tuple[int, ...] = ()  #: others that held the same when the generation began
    change: GenerationChange | None = None
    since: float = 0.0  #: when it was installed
    summed: bool = False  #: its steps are finished from sums, also on one host, because somebody follows
    stop: int = 0  #: the step before which the installed generation ends; 0: it goes on
    sync: str = ""  #: how its lanes are to keep step
    turn: int = 0  #: the version before which they stand for that, see `messages.Install`; 0: they need not
    reached: Reached = field(default_factory=Reached)  #: how its lanes keep step, and since when
    at_hand: int = -1  #: the version that its first step begins with, as far as shares of that were `given`
    given: dict[int, int] = field(default_factory=dict)  #: first lane of such a share -> the host that holds it
    arena_bytes: int = 0  #: of every host's arena, once the first worker has said so
    out: list[Command] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cast = ProcessNames(self.hosts)

    # ------------------------------------------------------------ who is there

    def active(self) -> list[Worker]:
        """Workers that count towards the wanted number: they drive lanes, or are on their way to."""
        return [w for w in self.workers.values() if w.stage in _ACTIVE and not w.leaving]

    def role(self, host: int) -> str:
        """A host's part where one holds the state: primary, replica or mirror; empty if it has none, or all hold it."""
        if self.primary < 0 or host not in self.where:
            return ""
        if host == self.primary:
            return "home"
        return "replica" if host in self.replicas else "mirror"

    def best_primary(self, members: Sequence[int]) -> int:
        """The host of these that is to hold the state, or does: the newest; rather as it was, or where servers are."""
        there = [self.workers[number] for number in members]
        serving = sorted({worker.host for worker in there if worker.server})
        return self.hosts.best([worker.host for worker in there], [self.primary, *serving, *self.replicas])

    def joining(self) -> list[Worker]:
        """Workers that are not in a generation yet."""
        return [w for w in self.workers.values() if w.stage in _JOINING]

    def driving(self) -> list[Worker]:
        """Live members that still have work to do."""
        return [w for w in self.workers.values() if w.stage is Stage.MEMBER]

    def able(self) -> list[Worker]:
        """The active ones, and those members that are to leave; without servers."""
        return [
            w for w in self.workers.values()
            if not w.server and (w.stage is Stage.MEMBER or (w.stage in _JOINING and not w.leaving))
        ]

    def next_members(self, holding: Collection[int]) -> tuple[int, ...]:
        """Who the next generation would have. Those who leave stay on while nobody else is on a host in `holding`."""
        there = [w for w in self.workers.values() if w.stage is Stage.MEMBER or w.stage is Stage.WAITING]
        able = [w for w in there if not w.server]
        stay = [w for w in able if not w.leaving]
        if len(self.hosts.live) > 1:
            able = [w for w in able if w.stage is Stage.MEMBER or not self.hosts.live[w.host].waits]
            stay = [w for w in able if not w.leaving]
            alone = bool(holding) and all(w.host not in holding for w in stay)
            able.sort(key=attrgetter("host"))  # by number they are already
            stay = [w for w in able if not w.leaving or (alone and w.stage is Stage.MEMBER)]
        stay = stay or [w for w in able if w.stage is Stage.MEMBER]
        if stay and len(there) > len(able):  # servers alone can do nothing
            hosts = {w.host for w in stay}
            stay += [w for w in there if w.server and not w.leaving and (w.stage is Stage.MEMBER or w.host in hosts)]
            stay.sort(key=attrgetter("host"))
        return tuple([w.number for w in stay])

    def waited_for(self) -> list[Worker]:
        """Members of the installed generation that may still write."""
        return list(self._noisy())

    def _noisy(self) -> Iterator[Worker]:
        assert self.change is not None
        for number in (*self.members, *self.change.also):
            worker = self.workers.get(number)
            if worker is None or worker.stage is Stage.FINISHED:
                continue
            if worker.stage is Stage.DOOMED or worker.quiet != self.change.generation:
                yield worker

    # ------------------------------------------------------------ single workers

    def start(self, host: int, *, server: bool = False) -> Worker | None:
        """Order a new worker, or server, on this host, unless every row of the board is taken."""
        taken = {worker.row for worker in self.workers.values()}
        row = next((row for row in range(self.limits.rows) if row not in taken), None)
        if row is None:
            return None
        worker = Worker(self.started, row, host, server)
        self.cast.enter(worker.number, host=host, server=server)
        self.started += 1
        self.hosts.live[host].started += 1
        self.workers[worker.number] = worker
        self.out.append(StartWorker(worker.number, row, host))
        return worker

    def doom(self, worker: Worker, reason: str) -> None:
        """Order a worker's kill. Nothing of it is taken over before the kill is confirmed."""
        worker.stage = Stage.DOOMED
        self.out.append(KillWorker(worker.number, reason))

    def dismiss(self, worker: Worker, reason: str) -> None:
        """Let a worker go that writes nothing any more."""
        worker.stage, worker.leaving = Stage.DISMISSED, reason
        self.send(worker, Leave(worker.number, reason))

    def welcome(self, worker: Worker, now: float, *, seed: bool) -> None:
        """Hand its host's arena to a worker."""
        worker.sent = now
        host = self.hosts.live[worker.host]
        if not host.arena:
            host.arena = True
            self.out.append(MakeArena(self.arena_bytes, host.number))
        self.send(worker, Welcome(worker.number, seed))

    def send(self, worker: Worker, message: ToWorker) -> None:
        """Say something to a worker."""
        self.out.append(Send(worker.number, message))

    # ------------------------------------------------------------ generations

    def begin(self, now: float, stood: AtBoundary | None = None) -> None:
        """Begin a change: ask the members of the installed generation, who may all stand somewhere, for quiet."""
        assert self.change is None
        self.change = GenerationChange(self.generation + 1, stood=stood)
        self.pause(now)

    def pause(self, now: float, since: float | None = None) -> None:
        """Ask for quiet; with `since`, only those who were last asked before that time."""
        assert self.change is not None
        message = Pause(self.change.generation)
        for worker in self._noisy():
            if worker.stage is not Stage.DOOMED and (since is None or worker.sent <= since):
                worker.sent = now
                self.send(worker, message)

    def install(
        self, now: float, members: Sequence[int], drivers: Sequence[int], *, reached: Reached, stop: int,
        owners: Sequence[int] = (), summed: bool = False, sync: str = "", turn: int = 0,
    ) -> None:  # fmt: skip
        """Make the change: tell everybody who is in, let go of those who are not.

        Everybody is quiet, so what is known of the hosts' levels is exact.
        """
        self.generation = self.change.generation if self.change else self.generation + 1
        staying, primary, exact = set(members), self.best_primary(members), parse(reached.sync).exact
        for worker in self.driving():
            if worker.number not in staying:
                self.dismiss(worker, worker.leaving)
        self.members, self.drivers, self.stop, self.change = tuple(members), tuple(drivers), stop, None
        self.since, self.summed, self.sync, self.turn = now, summed, sync, turn
        self.owners = tuple(owners)
        self.rows = tuple(self.workers[number].row for number in members)
        before, self.where = self.where, tuple(self.workers[number].host for number in members)
        self.servers = tuple(number for number in members if self.workers[number].server)
        self.sources = self.hosts.sources(self.where)
        if not exact:
            self.sources = {host: primary for host in sorted(set(self.where)) if host != primary}
        self.abreast = () if exact or self.primary < 0 else self.hosts.abreast(primary, self.where)
        self.replicas = () if exact else self.hosts.replicas(primary, self.where, self.limits.replicas)
        if not exact or self.primary >= 0:
            self.hosts.fence = self.generation
        self.primary = -1 if exact else primary
        self.reached = reached
        self.at_hand, self.given = self.hosts.given(self.where, before) if exact else (-1, {})
        for number in members:
            self.workers[number].stage = Stage.MEMBER
        for host in set(self.where):
            self.hosts.live[host].taken_in()
        message = self.installation()
        for number in members:
            self.send(self.workers[number], message)

    def installation(self) -> Install:
        """The installed generation as a message: the same for all, whoever of them has finished and left since."""
        return Install(
            self.generation, list(self.members), list(self.rows), list(self.drivers), list(self.where),
            dict(self.sources), self.stop, self.summed, servers=list(self.servers), owners=runs(self.owners),
            sync=self.sync, turn=self.turn, replicas=list(self.replicas),
            abreast=list(self.abreast), sums_only=self.limits.sums_only, reached=self.reached,
            at_hand=self.at_hand, given=dict(self.given),
        )  # fmt: skip

    def broken(self) -> str:
        """What is wrong with the crew, in a sentence; empty if nothing is."""
        rows = [worker.row for worker in self.workers.values()]
        if len(set(rows)) != len(rows) or (rows and not 0 <= min(rows) <= max(rows) < self.limits.rows):
            return f"rows {sorted(rows)} are not all different and on the board"
        if homeless := {worker.host for worker in self.workers.values()}.difference(self.hosts.live):
            return f"there are workers on hosts {sorted(homeless)}, which are gone"
        if self.generation and len(self.drivers) != self.limits.lanes:
            return f"{len(self.drivers)} of {self.limits.lanes} lanes have a driver"
        if self.generation and (stray := set(self.drivers) - set(self.members)):
            return f"lanes are driven by {sorted(stray)}, who are not members"
        if stray := set(self.drivers).intersection(self.servers):
            return f"lanes are driven by {sorted(stray)}, who are servers"
        if stray := set(self.owners).difference(self.servers):
            return f"slices are owned by {sorted(stray)}, who are no servers of generation {self.generation}"
        if self.change is not None and self.change.generation != self.generation + 1:
            return f"the change from generation {self.generation} leads to {self.change.generation}"
        counted = {worker.number for worker in self.workers.values() if worker.stage is Stage.MEMBER}
        if stray := counted.difference(self.members):
            return f"workers {sorted(stray)} count as members, but generation {self.generation} is without them"
        return ""
