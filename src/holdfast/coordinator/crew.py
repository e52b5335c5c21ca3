"""The crew: live workers, the installed generation, and the change to the next one.

A change has one shape, whatever led to it (a loss, a join, a leave, balance, the end):

    Pause(g + 1) to the members of g -> each says Paused(g + 1) -> Install(g + 1) to those who stay

Rules that keep a run safe, and that live here:

* a member is waited for until it is quiet, has finished, or is *certainly* gone. A worker whose kill is
  ordered counts as writing until the kill is confirmed, whatever it said before;
* a change is never given up and there is never more than one: what happens meanwhile only alters who
  is in it, so generations grow one at a time;
* quiet for an older generation is no quiet.

Only `machine` may use this module.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from holdfast.coordinator.commands import Command, KillWorker, Send, StartWorker
from holdfast.coordinator.messages import Install, Leave, Pause, ToWorker, Welcome
from holdfast.coordinator.roster import CrewLimits, Stage, Worker

__all__ = ["Change", "Crew"]

_JOINING = frozenset({Stage.STARTING, Stage.READY, Stage.SEEDING, Stage.WAITING})
_ACTIVE = _JOINING | {Stage.MEMBER}


@dataclass(slots=True)
class Change:
    """The change in progress: towards which generation, and with whom as far as is known now."""

    generation: int
    planned: tuple[int, ...] = ()


@dataclass(slots=True)
class Crew:
    """Live workers and generations. Methods append what they want done to `out`."""

    limits: CrewLimits
    workers: dict[int, Worker] = field(default_factory=dict)  #: live ones only
    generation: int = 0  #: installed; 0 before the first
    started: int = 0  #: workers ever ordered; the next one's number
    members: tuple[int, ...] = ()  #: of the installed generation, the lost ones included
    rows: tuple[int, ...] = ()  #: of `members`, in their order
    drivers: tuple[int, ...] = ()  #: lane -> member
    change: Change | None = None
    stopping: bool = False  #: the installed generation ends at its step
    out: list[Command] = field(default_factory=list)

    # ------------------------------------------------------------ who is there

    def active(self) -> list[Worker]:
        """Workers that count towards the wanted number: they drive lanes, or are on their way to."""
        return [w for w in self.workers.values() if w.stage in _ACTIVE and not w.leaving]

    def joining(self) -> list[Worker]:
        """Workers that are not in a generation yet."""
        return [w for w in self.workers.values() if w.stage in _JOINING]

    def driving(self) -> list[Worker]:
        """Live members that still have work to do."""
        return [w for w in self.workers.values() if w.stage is Stage.MEMBER]

    def next_members(self) -> tuple[int, ...]:
        """Who the next generation would have. Those who leave stay on while there is nobody else."""
        able = [w for w in self.workers.values() if w.stage is Stage.MEMBER or w.stage is Stage.WAITING]
        stay = [w.number for w in able if not w.leaving]
        return tuple(sorted(stay or [w.number for w in able if w.stage is Stage.MEMBER]))

    def waited_for(self) -> list[Worker]:
        """Members of the installed generation that may still write."""
        return list(self._noisy())

    def _noisy(self) -> Iterator[Worker]:
        assert self.change is not None
        for number in self.members:
            worker = self.workers.get(number)
            if worker is None or worker.stage is Stage.FINISHED:
                continue
            if worker.stage is Stage.DOOMED or worker.quiet != self.change.generation:
                yield worker

    # ------------------------------------------------------------ single workers

    def start(self) -> Worker | None:
        """Order a new worker, unless every row of the board is taken."""
        taken = {worker.row for worker in self.workers.values()}
        row = next((row for row in range(self.limits.rows) if row not in taken), None)
        if row is None:
            return None
        worker = Worker(self.started, row)
        self.started += 1
        self.workers[worker.number] = worker
        self.out.append(StartWorker(worker.number, row))
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
        """Hand the arena to a worker."""
        worker.sent = now
        self.send(worker, Welcome(worker.number, seed))

    def send(self, worker: Worker, message: ToWorker) -> None:
        """Say something to a worker."""
        self.out.append(Send(worker.number, message))

    # ------------------------------------------------------------ generations

    def begin(self, now: float) -> None:
        """Begin a change: ask the members of the installed generation for quiet."""
        assert self.change is None
        self.change = Change(self.generation + 1)
        self.pause(now)

    def pause(self, now: float, since: float | None = None) -> None:
        """Ask for quiet; with `since`, only those who were last asked before that time."""
        assert self.change is not None
        message = Pause(self.change.generation)
        for worker in self._noisy():
            if worker.stage is not Stage.DOOMED and (since is None or worker.sent <= since):
                worker.sent = now
                self.send(worker, message)

    def install(self, now: float, members: Sequence[int], drivers: Sequence[int], *, stop: bool) -> None:
        """Make the change: tell everybody who is in, let go of those who are not."""
        self.generation = self.change.generation if self.change else self.generation + 1
        staying = set(members)
        for worker in self.driving():
            if worker.number not in staying:
                self.dismiss(worker, worker.leaving)
        self.members, self.drivers, self.stopping, self.change = tuple(members), tuple(drivers), stop, None
        self.rows = tuple(self.workers[number].row for number in members)
        for number in members:
            self.workers[number].stage = Stage.MEMBER
        message = self.installation()
        for number in members:
            self.send(self.workers[number], message)

    def installation(self) -> Install:
        """The installed generation as a message: the same for all, whoever of them has finished and left since."""
        return Install(self.generation, list(self.members), list(self.rows), list(self.drivers), self.stopping)

    def broken(self) -> str:
        """What is wrong with the crew, in a sentence; empty if nothing is."""
        rows = [worker.row for worker in self.workers.values()]
        if len(set(rows)) != len(rows) or (rows and not 0 <= min(rows) <= max(rows) < self.limits.rows):
            return f"rows {sorted(rows)} are not all different and on the board"
        if self.generation and len(self.drivers) != self.limits.lanes:
            return f"{len(self.drivers)} of {self.limits.lanes} lanes have a driver"
        if self.generation and (stray := set(self.drivers) - set(self.members)):
            return f"lanes are driven by {sorted(stray)}, who are not members"
        if self.change is not None and self.change.generation != self.generation + 1:
            return f"the change from generation {self.generation} leads to {self.change.generation}"
        counted = {worker.number for worker in self.workers.values() if worker.stage is Stage.MEMBER}
        if stray := counted.difference(self.members):
            return f"workers {sorted(stray)} count as members, but generation {self.generation} is without them"
        return ""
