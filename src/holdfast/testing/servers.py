"""A simulated cluster of workers and parameter servers: the real clock rule and the real placement, all else pretended.

    report = simulate(seed=7)                       # a random cluster, random troubles
    report = simulate(seed=99)                      # every hundredth: 1,000 workers and 50 servers
    report = simulate(seed=7, config=Config(...))   # this one

Workers compute the units of their lanes as `core.clocks.next_lane` lets them and send each push to the servers that own
the slices. When every slice has it, the lane's clock is raised. The owner of the first slice makes dockets; every
server takes its slices from version to version, docket by docket. When servers are lost, added or slow, owners change
by `core.placement.replaced`, in a new generation, and slices move with all that is known of them.

Slices "train" on a chain of hashes over all that was applied, so all of them must agree in every version.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from holdfast.core import clocks, placement
from holdfast.core.clocks import Clocks, Held, Mode, Taken
from holdfast.testing.clock import Clock
from holdfast.testing.model import Violation
from holdfast.testing.pushes import Push, Record, Server, Worker

__all__ = ["KINDS", "Cluster", "Config", "Report", "Trouble", "draw", "simulate"]

#: Virtual seconds. A pause is heavy-tailed: most are short, the longest this long.
_LONGEST_PAUSE, _NAP, _WATCH = 3.0, 0.002, 0.5
_TROUBLED = 3.0  #: in which all troubles strike
_LARGE = 100  #: one seed of so many is a large cluster
KINDS = ("lose worker", "cut worker", "lose server", "cut server", "add server", "slow server")


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
    next_lane: Callable[[Mode, Clocks, Sequence[int]], int | Held | None] = clocks.next_lane
    docket: Callable[[Mode, Clocks], tuple[Taken, ...] | None] = clocks.docket
    record: type[Record] = Record
    server: type[Server] = Server


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


class Cluster:
    """What all share: the clocks, the dockets, who owns what; and what must always hold."""

    def __init__(self, seed: int, config: Config) -> None:
        self.seed, self.config, self.clock = seed, config, Clock()
        self.random = random.Random(seed ^ 0x5EED)
        self.pushed, self.taken, self.applied = ([0] * config.lanes for _ in range(3))
        self.clocks = Clocks(config.steps, self.pushed, self.taken, self.applied)
        self.log: list[tuple[Taken, ...]] = []
        self.version = 0  #: that all slices have
        self.sizes = [self.random.randrange(1, 5) for _ in range(config.slices)]
        self.count: Counter[str] = Counter()
        self.servers = [self._server(number) for number in range(config.servers)]
        self.workers = [self._worker(number) for number in range(config.workers)]
        self.generation = 1
        self.crew = list(range(config.servers))  #: servers that count as there
        self.owner = placement.place(self.sizes, self.crew, self._rates())
        self.holder = list(self.owner)  #: slice -> on whose shelf its record is
        self._drivers = [[lane * config.workers // config.lanes] for lane in range(config.lanes)]  # by attempt
        self._parts: list[list[tuple[int, list[int]]]] = []
        self._held: Counter[Push] = Counter()  # slices that have it
        self._deciding = False
        # What is checked is kept apart from what the cluster goes by: no server can lose or mend it.
        self._seen = [[0] * config.lanes for _ in range(config.slices)]  # steps of each lane that were applied
        self._reached = [0] * config.slices  # the version of each slice
        self._complete: Counter[int] = Counter()  # version -> slices that have left it behind
        self._values: list[int] = []  # what each version gave, on the slice that had it first
        self._advanced = [0.0] * config.lanes  # when something of the lane was last applied
        self._longest, self._trace = 0.0, 0

    def run(self) -> Report:
        """Run to the end, and look at it."""
        for index, owner in enumerate(self.owner):
            self.servers[owner].shelf[index] = self.config.record(self.config.lanes)
        for lane, (driver,) in enumerate(self._drivers):
            self.workers[driver].lanes[lane] = 0
        self._announce()
        for trouble in self.config.troubles:
            self.clock.after(trouble.after, self._strike, trouble)
        for worker in self.workers:
            worker.look()
        self.clock.after(_WATCH, self._watch)
        while self.clock.step():
            pass
        self._check_end()
        moved, refused, fenced = (self.count[name] for name in ("moved", "refused", "fenced"))
        return Report(
            self.seed, self._trace, self.clock.now, self.version, self.generation, moved, refused, fenced, self._longest
        )

    def pause(self) -> float:
        """How long an action takes longer than it should: mostly not at all, now and then for long."""
        if self.random.random() >= self.config.pauses:
            return 0.0
        return min(0.02 * self.random.paretovariate(0.8), _LONGEST_PAUSE)

    # ------------------------------------------------------------ pushes

    def send(self, worker: Worker, push: Push) -> None:
        """Send a push to all who own a slice, in a few messages."""
        for part in self._parts:
            if self.random.random() >= self.config.loss:
                self.clock.after(0.002 * self.random.random(), self._deliver, worker, push, part)
            if self.random.random() < self.config.double:
                self.clock.after(self.random.random(), self._deliver, worker, push, part)

    def _deliver(self, worker: Worker, push: Push, part: list[tuple[int, list[int]]]) -> None:
        if not worker.alive and self.random.random() < 0.5:
            return  # it died while it was sending: some have it, others do not
        for number, indices in part:
            if self.servers[number].alive:
                self.servers[number].receive(push, indices)

    def arrived(self, push: Push, replaced: Push | None) -> None:
        """A slice has a push, in place of another one perhaps; when all have it, it counts."""
        if push.step - self.applied[push.lane] >= self.config.mode.depth:
            raise Violation(f"there is no room for {push}: only {self.applied[push.lane]} steps are applied")
        if replaced is not None:
            self._held[replaced] -= 1
        self._held[push] += 1
        if self._held[push] == self.config.slices:
            del self._held[push]
            self.pushed[push.lane] += 1
            self._trace = hash((self._trace, self.clock.now, push))
            self.decide_soon()
            for driver in sorted({self._drivers[push.lane][push.attempt], self._drivers[push.lane][-1]}):
                self.workers[driver].look()

    # ------------------------------------------------------------ dockets

    def decide_soon(self) -> None:
        """Let the owner of the first slice look whether there is enough for a docket."""
        if not self._deciding:
            self._deciding = True
            self.clock.after(_NAP, self._decide)

    def _decide(self) -> None:
        self._deciding = False
        lead = self.servers[self.owner[0]]
        if not lead.alive or lead.generation != self.generation:
            return  # it decides when it has heard of the generation
        # Two dockets take turns: one that is being applied, one that waits for it.
        while len(self.log) < self.version + 2 and (made := self.config.docket(self.config.mode, self.clocks)):
            for lane, step in made:
                if not self.taken[lane] == step < self.pushed[lane]:
                    raise Violation(f"version {len(self.log)} takes step {step} of lane {lane}, {self._at(lane)}")
                self.taken[lane] += 1
            self.log.append(made)
            for server in self.servers:
                server.look()

    def published(self, index: int, record: Record, used: Sequence[Push]) -> None:
        """A slice has its next version."""
        version, seen = self._reached[index], self._seen[index]
        for push in used:
            if seen[push.lane] != push.step:
                raise Violation(f"slice {index} has applied {seen[push.lane]} steps of the lane, and now {push}")
            seen[push.lane] += 1
            if self.config.mode.quorum is None and version - push.read > (self.config.mode.bound or 0):
                raise Violation(f"{push} goes into version {version}: too stale for {self.config.mode.name}")
        if len(used) != len(self.log[version]) or record.version != version + 1:
            raise Violation(f"slice {index} goes from {version} to {record.version} with {len(used)} pushes")
        if version == len(self._values):
            self._values.append(record.value)
        if record.value != self._values[version]:
            raise Violation(f"slice {index} differs from the others in version {record.version}")
        self._reached[index] += 1
        self._complete[version] += 1
        if self._complete[version] == self.config.slices:
            self._version_complete()

    def _version_complete(self) -> None:
        """All slices have the next version: what it took is applied, and whom that frees looks again."""
        slowest, lanes = min(self.applied), [lane for lane, _ in self.log[self.version]]
        for lane in lanes:
            self.applied[lane] += 1
            self._longest = max(self._longest, self.clock.now - self._advanced[lane])
            self._advanced[lane] = self.clock.now
        self.version += 1
        self.decide_soon()
        freed = lanes if min(self.applied) == slowest else range(self.config.lanes)
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
            self._replace()
        elif trouble.what.endswith("server"):
            server = self.servers[self.crew[trouble.who % len(self.crew)]]
            if trouble.what == "slow server":
                server.rate = max(server.rate / 5.0, 100.0)
                self.clock.after(noticed, self._replace)
            elif len(self.crew) > 1:
                self.crew.remove(server.number)
                server.alive = trouble.what == "cut server"
                self.clock.after(noticed, self._replace)
        elif len(live := [worker for worker in self.workers if worker.alive and worker.lanes]) > 1:
            worker = live[trouble.who % len(live)]
            worker.alive = trouble.what == "cut worker"
            self.clock.after(noticed, self._hand_over, worker)

    def _hand_over(self, lost: Worker) -> None:
        """The lanes of a worker get another driver; it hears of it later, if it still exists."""
        for lane in [lane for lane, drivers in enumerate(self._drivers) if drivers[-1] == lost.number]:
            others = [worker for worker in self.workers if worker.alive and worker is not lost]
            if not others or self.random.random() < 0.3:
                others = [self._worker(len(self.workers))]
                self.workers += others
            heir = min(others, key=lambda worker: (len(worker.lanes), self.random.random()))
            self._drivers[lane].append(heir.number)
            attempt = heir.lanes[lane] = len(self._drivers[lane]) - 1
            self.clock.after(0.0, heir.look)
            self.clock.after(2.0 * self.random.random(), lost.told, lane, attempt)

    def _replace(self) -> None:
        """Find owners for the servers that are there now, if that is worth it."""
        change = placement.replaced(self.owner, self.sizes, self.crew, self._rates())
        if change is None:
            return
        self.owner, _ = change
        self.generation += 1
        self._trace = hash((self._trace, self.clock.now, self.owner))
        self._announce()
        for index, owner in enumerate(self.owner):
            if self.holder[index] != owner:
                self.clock.after(0.1 * self.random.random(), self._fetch, index, self.generation)

    def _announce(self) -> None:
        """A generation begins; servers hear of it one by one."""
        runs: dict[int, list[int]] = {}
        for index, owner in enumerate(self.owner):
            runs.setdefault(owner, []).append(index)
        several = -(-len(runs) // self.config.messages)
        self._parts = [list(runs.items())[start : start + several] for start in range(0, len(runs), several)]
        for number in self.crew:
            self.clock.after(0.1 * self.random.random(), self.servers[number].hear, self.generation)

    def _fetch(self, index: int, generation: int) -> None:
        """Fence a record and copy it. The process that had it may be gone; its shelf is not."""
        if generation == self.generation:
            record = self.servers[self.holder[index]].shelf[index]
            record.generation = generation
            self.clock.after(0.01 + 0.1 * self.random.random(), self._fetched, index, generation, record.moved())

    def _fetched(self, index: int, generation: int, record: Record) -> None:
        target = self.servers[self.owner[index]]
        if generation == self.generation and target.alive:
            del self.servers[self.holder[index]].shelf[index]
            self.holder[index], target.shelf[index] = target.number, record
            self.count["moved"] += 1
            target.look()

    def _server(self, number: int) -> Server:
        return self.config.server(self, number, self.random.choice((500.0, 1000.0, 1000.0, 2000.0)))

    def _worker(self, number: int) -> Worker:
        return Worker(self, number, 0.02 * self.random.choice((0.5, 1.0, 1.0, 1.0, 2.0, 10.0)))

    def _rates(self) -> dict[int, float]:
        return {server.number: server.rate for server in self.servers}

    # ------------------------------------------------------------ what must hold

    @property
    def _patience(self) -> float:
        """Seconds in which every lane gets on: the slowest driver's units, some of the longest pauses, the troubles."""
        config = self.config
        crowd = config.lanes if config.lanes <= 10 else 5  # how many lanes one worker may come to drive
        return (_TROUBLED if config.troubles else 0.0) + 4 * _LONGEST_PAUSE + crowd * 0.24 * config.mode.inner

    def check_begin(self, push: Push) -> None:
        """A lane begins a unit: it is not further ahead than it may be."""
        bound, slowest = self.config.mode.bound, min(self.applied)
        if bound is not None and push.step - slowest > bound:
            raise Violation(f"{push} begins {push.step - slowest} steps ahead of the slowest: the bound is {bound}")

    def _watch(self) -> None:
        for lane, applied in enumerate(self.applied):
            if applied < self.config.steps and self.clock.now - self._advanced[lane] > self._patience:
                held = clocks.held_back(self.config.mode, self.clocks, lane)
                why = clocks.why(held.word) if held else "nothing holds it"
                raise Violation(f"lane {lane} starves for {self._patience:.1f} s, {self._at(lane)}: {why}")
        if self.version < len(self.log) or min(self.applied) < self.config.steps:
            self.clock.after(_WATCH, self._watch)

    def _at(self, lane: int) -> str:
        return f"which has pushed {self.pushed[lane]}, taken {self.taken[lane]}, applied {self.applied[lane]}"

    def _check_end(self) -> None:
        """Every step of every lane is in every slice, and nothing is left over."""
        every = [self.config.steps] * self.config.lanes
        for index, holder in enumerate(self.holder):
            record = self.servers[holder].shelf.get(index)
            if record is None or record.applied != every or self._seen[index] != every:
                raise Violation(f"slice {index} has not applied everything, or its record is not with server {holder}")
            if record.pushes:
                raise Violation(f"slice {index} is left with {len(record.pushes)} pushes that nobody takes")
        if self.config.mode.quorum is None and any(len(docket) != self.config.lanes for docket in self.log):
            raise Violation("a docket has not the pushes of all lanes")


def draw(seed: int) -> Config:
    """A random cluster under random troubles. Each kind of trouble is switched on or off as a whole first."""
    rng = random.Random(seed)
    large = seed % _LARGE == _LARGE - 1
    lanes = 1000 if large else rng.randrange(1, 11)
    names = ["exact", "bounded:0", f"bounded:{rng.randrange(1, 5)}", "async", "local:3"]
    names += [f"quorum:{rng.randrange(max(lanes // 2, 1), lanes + 1)}"] * 2
    kinds = [kind for kind in KINDS if rng.random() < 0.5]
    number = rng.choice((30, 60) if large else (0, 3, 8, 20)) if kinds else 0
    span = rng.choice((0.5, 1.0, _TROUBLED))
    troubles = [Trouble(rng.random() * span, rng.choice(kinds), rng.randrange(1000)) for _ in range(number)]
    small = Config(
        mode=clocks.parse(rng.choice(names), lanes), lanes=lanes, workers=rng.randrange(1, lanes + 1),
        servers=rng.randrange(1, 6), slices=rng.randrange(1, 9), steps=rng.randrange(1, 25), troubles=tuple(troubles),
        pauses=rng.choice((0.0, 0.02, 0.1, 0.2)), loss=rng.choice((0.0, 0.0, 0.2)), double=rng.choice((0.0, 0.1, 0.5)),
    )  # fmt: skip
    if not large:
        return small
    return replace(small, workers=1000, servers=50, slices=100, steps=4, pauses=0.01, loss=0.0, double=0.01, messages=1)


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
