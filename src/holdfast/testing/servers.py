"""A simulated cluster of workers and parameter servers: the real clock rule, the real placement, all else pretended.

    report = simulate(seed=7)                               # a random cluster, random troubles
    report = simulate(seed=7, config=draw(7, large=True))   # 1,000 workers and 50 servers
    report = simulate(seed=7, config=Config(...))           # this one

Workers compute the units of their lanes as `core.sync.modes.next_lane` lets them and send each push to the servers that
own the slices. When every slice has it, the lane's clock is raised. The owner of the first slice makes commit sets,
when `core.sync.mirroring.may_decide` lets it; every server takes its slices from version to version, commit set by
commit set. Servers are measured, and owners change by `control.slice_balance`, which goes by `core.placement`: when
servers are lost or added, or have turned out to be slow. That begins a new generation, and slices move with all that is
known of them.

Slices "train" on a chain of hashes over all that was applied, so all of them must agree in every version; that and
what else must hold is seen to by `server_audit`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holdfast.control import slice_balance
from holdfast.control.membership.roster import CrewLimits
from holdfast.control.slice_balance import SliceBalance
from holdfast.core.sync import modes
from holdfast.core.sync.mirroring import may_decide
from holdfast.core.sync.modes import Clocks, HeldBack, Mode, TakenPush
from holdfast.testing.clock import Clock
from holdfast.testing.model import Violation
from holdfast.testing.server_audit import Audit
from holdfast.testing.server_clocks import Tally
from holdfast.testing.server_pushes import Group, Push, Record, Server, Worker

__all__ = ["KINDS", "Cluster", "Config", "Report", "Trouble", "draw", "simulate"]

#: Virtual seconds. A pause is heavy-tailed: most are short, the longest this long.
_LONGEST_PAUSE, _WATCH = 3.0, 0.5
_SLOWEST_UNIT = 0.2
KINDS = (
    "lose worker", "cut worker", "add worker", "slow worker", "lose server", "cut server", "add server", "slow server",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something happens to a worker or a server.

    "lose" ends it. "cut" takes it out of the cluster while it goes on unaware: asked to leave, or taken for lost.
    """

    after: float
    what: str
    who: int = 0  #: counts those who are there


@dataclass(frozen=True, slots=True)
class Config:
    """A cluster, its troubles, and the rules it goes by."""

    mode: Mode
    lanes: int
    workers: int
    servers: int
    slices: int
    steps: int
    troubles: tuple[Trouble, ...] = ()
    pauses: float = 0.0  #: chance of a pause in an action
    loss: float = 0.0  #: chance that a message is lost
    double: float = 0.0  #: chance that it comes a second time, up to a second later
    messages: int = 100  #: most messages in which a push travels
    nap: float = 0.002  #: seconds after which the owner of the first slice looks at what has come
    next_lane: Callable[[Mode, Clocks, Sequence[int]], int | HeldBack | None] = modes.next_lane
    commit_set: Callable[[Mode, Clocks], tuple[TakenPush, ...] | None] = modes.commit_set
    record: type[Record] = Record
    server: type[Server] = Server
    worker: type[Worker] = Worker


@dataclass(frozen=True, slots=True)
class Report:
    """How it went."""

    seed: int
    trace: int  #: equal seeds give equal ones
    seconds: float  #: virtual
    versions: int
    generations: int
    moved: int  #: slices that changed hands
    refused: int  #: parts of pushes that were old, doubled, or came to one who does not own the slice
    fenced: int  #: times that a server had to forget what it did to a slice
    longest: float  #: seconds that a lane was without progress, at most
    furthest: int  #: steps that a lane was ahead of the slowest, at most
    stalest: int  #: versions between the one that a push was computed from and the one that it went into, at most


class Cluster:
    """What all share: the clocks, the commit sets, who owns what."""

    def __init__(self, seed: int, config: Config) -> None:
        self.seed, self.config, self.clock = seed, config, Clock()
        self.random = random.Random(seed ^ 0x5EED)
        self.audit = Audit(config.mode, config.lanes, config.slices, config.steps)
        self.clocks = Tally(config.steps, config.lanes)
        self.commit_sets: list[tuple[TakenPush, ...]] = []
        self.version, self.versions = 0, [0] * config.slices  #: that all slices have, and each of them
        self.sizes = [self.random.randrange(1, 5) for _ in range(config.slices)]
        self.count: Counter[str] = Counter()
        self.servers = [self._server(number) for number in range(config.servers)]
        self.workers = [self._worker(number) for number in range(config.workers)]
        self.generation, self.changes = 0, 0  #: agreements; changes of who can take what in
        self.crew = list(range(config.servers))  #: servers that count as there
        self._crew: list[int] = []  # those of the generation
        self._owning, self._since = SliceBalance(), 0.0
        self._limits = CrewLimits(
            lanes=config.lanes, workers=min(config.workers, config.lanes), servers=config.servers
        )
        self.owner = slice_balance.owners_for(self._owning, self.crew, self.sizes)
        self.holder = list(self.owner)  #: slice -> on whose set of values its record is
        self._drivers = [[lane * config.workers // config.lanes] for lane in range(config.lanes)]  # by attempt
        self._groups: list[Group] = []
        self._held: dict[Push, int] = {}  # slices that have it
        self._behind = config.slices  # slices that have not reached the next version
        self._deciding = False
        self._trace = 0

    def run(self) -> Report:
        """Run to the end, and look at it."""
        for index, owner in enumerate(self.owner):
            self.servers[owner].values[index] = self.config.record()
        for lane, (driver,) in enumerate(self._drivers):
            self.workers[driver].lanes[lane] = 0
        self._install(self.owner)
        for trouble in self.config.troubles:
            self.clock.after(trouble.after, self._strike, trouble)
        for worker in self.workers:
            worker.look()
        self.clock.after(_WATCH, self._watch)
        while self.clock.step():
            pass
        self.audit.ended([self.servers[holder].values.get(index) for index, holder in enumerate(self.holder)])
        moved, refused, fenced = (self.count[name] for name in ("moved", "refused", "fenced"))
        return Report(
            self.seed, self._trace, self.clock.now, self.version, self.generation, moved, refused, fenced,
            self.audit.longest, self.audit.furthest, self.audit.stalest,
        )  # fmt: skip

    def pause(self) -> float:
        """How long an action takes longer than it should: mostly not at all, now and then for long."""
        if self.random.random() >= self.config.pauses:
            return 0.0
        return min(0.02 * self.random.paretovariate(0.8), _LONGEST_PAUSE)

    # ------------------------------------------------------------ pushes

    def send(self, worker: Worker, push: Push) -> None:
        """Send a push to all who own a slice, in a few messages."""
        chance, loss, double = self.random.random, self.config.loss, self.config.double
        for group in self._groups:
            if chance() >= loss:
                self.clock.after(0.002 * chance(), self._deliver, worker, push, group)
            if chance() < double:
                self.clock.after(chance(), self._deliver, worker, push, group)

    def _deliver(self, worker: Worker, push: Push, group: Group) -> None:
        if not worker.alive and self.random.random() < 0.5:
            return  # it died while it was sending: some have it, others do not
        complete = push.step < self.clocks.pushed[push.lane]
        taken, replaced = self.config.record.receive(group.ready(self.changes), push, complete)
        self.count["refused"] += group.slices - taken
        if taken:
            self.audit.arrived(push)
            for older in replaced:
                self._held[older] -= 1
            held = self._held[push] = self._held.get(push, 0) + taken
            if held == self.config.slices:
                self._complete(push)

    def _complete(self, push: Push) -> None:
        """All slices have a push: it counts."""
        del self._held[push]
        self.audit.completed(push)
        self.clocks.push(push.lane)
        self._trace = hash((self._trace, self.clock.now, push))
        self.decide_soon()
        for driver in sorted({self._drivers[push.lane][push.attempt], self._drivers[push.lane][-1]}):
            self.workers[driver].look()

    # ------------------------------------------------------------ commit sets

    def decide_soon(self) -> None:
        """Let the owner of the first slice look whether there is enough for a commit set."""
        if not self._deciding:
            self._deciding = True
            self.clock.after(self.config.nap, self._decide)

    def _decide(self) -> None:
        self._deciding = False
        lead = self.servers[self.owner[0]]
        if not lead.alive or lead.generation != self.generation:
            return  # it decides when it has heard of the generation
        if not may_decide(self.versions, decided=len(self.commit_sets) > self.version, free=True):
            return
        if made := self.config.commit_set(self.config.mode, self.clocks):
            self.audit.decided(made)
            for lane, _ in made:
                self.clocks.taken[lane] += 1
            self.commit_sets.append(made)
            for server in self.servers:
                server.look()

    def published(self, index: int, record: Record, used: list[Push]) -> None:
        """A slice has its next version."""
        self.audit.published(index, record, used)
        self.versions[index] = record.version
        self._behind -= 1
        if not self._behind:
            self._version_complete()

    def _version_complete(self) -> None:
        """All slices have the next version: what it took is applied, and whom that frees looks again."""
        slowest, lanes = self.clocks.slowest, [lane for lane, _ in self.commit_sets[self.version]]
        self.clocks.apply(lanes)
        self.audit.advanced(self.clock.now, lanes)
        self.version += 1
        self._behind = self.config.slices
        self.decide_soon()
        freed = lanes if self.clocks.slowest == slowest else range(self.config.lanes)
        for driver in dict.fromkeys(self._drivers[lane][-1] for lane in freed):
            self.workers[driver].look()

    # ------------------------------------------------------------ troubles

    def _strike(self, trouble: Trouble) -> None:
        """Something goes wrong. It is noticed a while later; the last worker and the last server are spared."""
        noticed = 0.05 + 0.5 * self.random.random()
        self._trace = hash((self._trace, self.clock.now, KINDS.index(trouble.what)))
        if trouble.what == "add server":
            self.servers.append(self._server(len(self.servers)))
            self.crew.append(self.servers[-1].number)
            self._renew()
        elif trouble.what.endswith("server"):
            server = self.servers[self.crew[trouble.who % len(self.crew)]]
            if trouble.what == "slow server":
                server.rate = max(server.rate / 5.0, 100.0)  # which is found out by measuring
            elif len(self.crew) > 1:
                self.crew.remove(server.number)
                server.alive = trouble.what == "cut server"
                self.changes += 1
                self.clock.after(noticed, self._renew)
        elif len(live := [worker for worker in self.workers if worker.alive and worker.lanes]) > 1:
            worker = live[trouble.who % len(live)]
            if trouble.what == "slow worker":
                worker.seconds = min(5.0 * worker.seconds, _SLOWEST_UNIT)
            elif trouble.what == "add worker":
                self._hand_over(next(iter(worker.lanes)), self._newcomer())
            else:
                worker.alive = trouble.what == "cut worker"
                self.clock.after(noticed, self._replace, worker)

    def _replace(self, lost: Worker) -> None:
        """The lanes of a worker go to others."""
        for lane in [lane for lane, drivers in enumerate(self._drivers) if drivers[-1] == lost.number]:
            others = [worker for worker in self.workers if worker.alive and worker is not lost]
            if not others or self.random.random() < 0.3:
                others = [self._newcomer()]
            self._hand_over(lane, min(others, key=lambda worker: (len(worker.lanes), self.random.random())))

    def _hand_over(self, lane: int, heir: Worker) -> None:
        """A lane gets another driver; the one before hears of it later, if it still exists."""
        before = self.workers[self._drivers[lane][-1]]
        self._drivers[lane].append(heir.number)
        attempt = heir.lanes[lane] = len(self._drivers[lane]) - 1
        self.clock.after(0.0, heir.look)
        self.clock.after(2.0 * self.random.random(), before.told, lane, attempt)

    def _newcomer(self) -> Worker:
        self.workers.append(self._worker(len(self.workers)))
        return self.workers[-1]

    # ------------------------------------------------------------ owners

    def _renew(self) -> None:
        """The servers are others than those of the generation."""
        if self.crew != self._crew:
            self._install(slice_balance.owners_for(self._owning, self.crew, self.sizes))

    def _measure(self) -> None:
        """Take in how fast servers were. While slices are on their way nothing is proposed."""
        if self.crew == self._crew and tuple(self.holder) == self.owner:
            shown = {number: self.servers[number].applied for number in self.crew}
            self._owning, change = slice_balance.measured(
                self._owning, self.clock.now, self._since, self.owner, self.sizes, self.crew, shown, self._limits
            )
            if change is not None:
                self._install(change.owners)

    def _install(self, owners: tuple[int, ...]) -> None:
        """A generation begins; servers hear of it one by one, and slices that change hands are fetched."""
        self.owner, self._crew, self._since = owners, list(self.crew), self.clock.now
        self._owning = slice_balance.installed(self._owning, self.clock.now, owners, self.crew, self._limits)
        self.generation += 1
        self._trace = hash((self._trace, self.clock.now, owners))
        runs: dict[Server, list[int]] = {}
        for index, owner in enumerate(owners):
            runs.setdefault(self.servers[owner], []).append(index)
        several = -(-len(runs) // self.config.messages)
        self._groups = [
            Group(dict(list(runs.items())[start : start + several])) for start in range(0, len(runs), several)
        ]
        for number in self.crew:
            self.clock.after(0.1 * self.random.random(), self.servers[number].hear, self.generation)
        for index, owner in enumerate(owners):
            if self.holder[index] != owner:
                self.clock.after(0.1 * self.random.random(), self._fetch, index, self.generation)

    def _fetch(self, index: int, generation: int) -> None:
        """Fence a record and copy it. The process that had it may be gone; its set of values is not."""
        if generation == self.generation:
            record = self.servers[self.holder[index]].values[index]
            record.generation = generation
            self.changes += 1
            self.clock.after(0.01 + 0.1 * self.random.random(), self._fetched, index, generation, record.moved())

    def _fetched(self, index: int, generation: int, record: Record) -> None:
        target = self.servers[self.owner[index]]
        if generation == self.generation and target.alive:
            del self.servers[self.holder[index]].values[index]
            self.holder[index], target.values[index] = target.number, record
            self.count["moved"] += 1
            self.changes += 1
            target.look()

    def _server(self, number: int) -> Server:
        return self.config.server(self, number, self.random.choice((500.0, 1000.0, 1000.0, 2000.0)))

    def _worker(self, number: int) -> Worker:
        return self.config.worker(self, number, 0.02 * self.random.choice((0.5, 1.0, 1.0, 1.0, 2.0, 10.0)))

    def _watch(self) -> None:
        if self.audit.watch(self.clock.now, self._patience, self.clocks):
            self._measure()
            self.clock.after(_WATCH, self._watch)

    @property
    def _patience(self) -> float:
        """Seconds in which every lane gets on: the slowest driver's units, some of the longest pauses, the troubles."""
        config = self.config
        crowd = config.lanes if config.lanes <= 10 else 5  # how many lanes one worker may come to drive
        troubled = max((trouble.after for trouble in config.troubles), default=0.0)
        return troubled + 4 * _LONGEST_PAUSE + crowd * 1.2 * _SLOWEST_UNIT * config.mode.inner


def draw(seed: int, large: bool = False) -> Config:
    """A random cluster under random troubles. Each kind of trouble is switched on or off as a whole first."""
    rng = random.Random(seed)
    lanes = 1000 if large else rng.randrange(1, 11)
    names = ["exact", "bounded:0", f"bounded:{rng.randrange(1, 5)}", "async", "local:3"]
    names += [f"quorum:{rng.randrange(max(lanes // 2, 1), lanes + 1)}"] * 2
    mode = modes.parse(rng.choice(names), lanes)
    kinds = [kind for kind in KINDS if rng.random() < 0.5] or ([rng.choice(KINDS)] if large else [])
    number = rng.choice((30, 60, 120) if large else (0, 3, 8, 20)) if kinds else 0
    span = rng.choice((1.0, 3.0, 6.0) if large else (0.5, 1.0, 3.0))
    troubles = tuple(Trouble(rng.random() * span, rng.choice(kinds), rng.randrange(1000)) for _ in range(number))
    if large:
        return Config(
            mode, lanes, workers=1000, servers=50, slices=100, steps=12, troubles=troubles,
            pauses=rng.choice((0.001, 0.01)), loss=rng.choice((0.001, 0.01, 0.05)), double=rng.choice((0.01, 0.1)),
            messages=rng.choice((3, 5, 7)), nap=0.01,
        )  # fmt: skip
    return Config(
        mode, lanes, workers=rng.randrange(1, lanes + 1), servers=rng.randrange(1, 6), slices=rng.randrange(1, 9),
        steps=rng.randrange(1, 25), troubles=troubles, pauses=rng.choice((0.0, 0.02, 0.1, 0.2)),
        loss=rng.choice((0.0, 0.0, 0.2)), double=rng.choice((0.0, 0.1, 0.5)),
    )  # fmt: skip


def simulate(seed: int, config: Config | None = None) -> Report:
    """Run a simulated cluster to its end.

    Raises:
        Violation: something happened that must never happen; the message has the seed.
    """
    config = config if config is not None else draw(seed)
    try:
        return Cluster(seed, config).run()
    except (AssertionError, ValueError, KeyError, IndexError) as problem:
        raise Violation(f"seed {seed} ({config.mode.name}): {problem}") from problem
