"""A simulated cluster: the real machine and the real step logic, everything around them pretended.

    report = simulate(seed=7)                       # a random cluster under a random schedule of faults
    report = simulate(config=Config(...), seed=7)   # this one

One thread, virtual time, one seeded source of randomness. All that happens goes into a hash of the trace:
the same seed gives the same hash, or the machine has an input that it should not have. The run is watched
by `arena` (every sum and state is the golden one, one writer at a time, generations fence) and, here, by
what a whole run must do: come to an end, in time, in a way that the schedule allows, at the golden state.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from holdfast.coordinator.commands import Command, EndRun, FailRun, KillWorker, MakeArena, Send, StartWorker
from holdfast.coordinator.events import (
    DrainRequested,
    Event,
    Measured,
    RunStarted,
    ScaleRequested,
    Ticked,
    WorkerFrozen,
    WorkerHung,
    WorkerLost,
    WorkerStarted,
)
from holdfast.coordinator.machine import Machine
from holdfast.coordinator.messages import FromWorker, ToWorker, Welcome
from holdfast.coordinator.roster import CrewLimits
from holdfast.core import step as core_step
from holdfast.core import tree
from holdfast.testing.arena import Arena, Model, Violation
from holdfast.testing.clock import Clock
from holdfast.testing.faults import At, Schedule, Timed, UnitFault, swarm
from holdfast.testing.worker import FakeWorker

__all__ = ["Cluster", "Config", "Report", "draw", "simulate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One simulated run. The last three are replaced to see whether the simulation notices."""

    model: Model
    workers: int
    schedule: Schedule = field(default_factory=Schedule)
    limit: float = 120.0  #: virtual seconds within which the run must end
    machine: Callable[[CrewLimits], Machine] = Machine
    decide: Callable[[core_step.Place, core_step.Board], core_step.Action] = core_step.next_action
    plan: Callable[..., tree.Plan] = tree.plan


@dataclass(frozen=True, slots=True)
class Report:
    """How a simulated run went."""

    seed: int
    trace_hash: str
    outcome: str  #: "end", or the kind of error
    message: str
    seconds: float  #: virtual
    events: int
    generations: int
    lost: int
    story: str


def draw(seed: int) -> Config:
    """The cluster and schedule of a seed. Every 250th is a large one."""
    rng = random.Random(seed)
    if seed % 250 == 249:
        lanes, steps = rng.randrange(110, 320), 2
        workers = rng.randrange(100, min(lanes, 300))
    else:
        lanes, steps = rng.choice((1, 2, 3, 4, 5, 6, 8, 8, 12)), rng.randrange(8, 25)
        workers = rng.randrange(1, min(lanes, 8) + 1)
    short = rng.randrange(1, lanes + 1) if rng.random() < 0.3 else 0
    model = Model(lanes, rng.randrange(1, 7), steps, clip=rng.random() < 0.3, short=short)
    return Config(model=model, workers=workers, schedule=swarm(rng, workers=workers, lanes=lanes, steps=steps))


def simulate(seed: int, config: Config | None = None) -> Report:
    """Run a simulated cluster to its end.

    Raises:
        Violation: something happened that must never happen; the message has the seed and the story.
    """
    cluster = Cluster(seed, config if config is not None else draw(seed))
    try:
        return cluster.run()
    except (AssertionError, ValueError, KeyError) as problem:
        raise Violation(f"seed {seed}: {problem}\n{cluster.machine.story.tail(20)}") from problem


class Cluster:
    """The pretended shell around the machine: processes, links, clocks and people."""

    def __init__(self, seed: int, config: Config) -> None:
        self.seed, self.config, self.schedule = seed, config, config.schedule
        self.clock = Clock()
        self.unit_seconds, self.repeat = 0.02, 0.3
        self.nap = 0.0005 if config.workers < 20 else 0.005  #: how soon who waits looks again
        bad = {(f.step, f.lane): f.what for f in self.schedule.faults if isinstance(f, UnitFault)}
        self.unit_faults: dict[tuple[int, int], str] = bad
        self.machine = config.machine(CrewLimits(
            lanes=config.model.lanes, workers=config.workers, join_grace=0.5, luck_budget=100,
            unit_attempts=3 if bad else 50, gather=0.1, frozen=0.5, repeat=0.3, settle=0.2, probe=0.5,
        ))
        self.arena = Arena(config.model, 2 * config.model.lanes, config.plan)
        self.decide = config.decide
        self.workers: dict[int, FakeWorker] = {}
        self.outcome: EndRun | FailRun | None = None
        self._random = random.Random(seed ^ 0x5EED)
        self._trace = hashlib.blake2b(digest_size=16)
        self._encode = msgspec.msgpack.Encoder(enc_hook=repr).encode
        self._events = 0
        self._starting: dict[int, int] = {}  # ordered, not there yet: worker -> row
        self._doomed: set[int] = set()
        self._faults: dict[int, list[At]] = {}
        for fault in self.schedule.faults:
            if isinstance(fault, At):
                self._faults.setdefault(fault.worker, []).append(fault)
            elif isinstance(fault, Timed):
                self.clock.after(fault.seconds, self._timed, fault)

    def jitter(self, most: float) -> float:
        """Some time up to `most`."""
        return self._random.random() * most

    def run(self) -> Report:
        """Run to the end, and look at it."""
        self.happened(RunStarted())
        self.clock.after(0.1, self._tick)
        while self.outcome is None and self.clock.now < self.config.limit and self.clock.step():
            pass
        return self._judged()

    # ------------------------------------------------------------ the shell's work

    def happened(self, event: Event) -> None:
        """Tell the machine, and do what it wants."""
        if self.outcome is None:
            self._events += 1
            self.note(event)
            for command in self.machine.handle(event, self.clock.now):
                self.note(command)
                self._obey(command)

    def _obey(self, command: Command) -> None:
        if isinstance(command, Send):
            if isinstance(command.message, Welcome) and not self.arena.made:
                raise Violation(f"{command} comes before there is an arena")
            self._carry(self._arrived, command.worker, command.message)
        elif isinstance(command, StartWorker):
            if command.worker in self.workers or command.worker in self._starting:
                raise Violation(f"worker number {command.worker} is used again")
            if any(w.alive and w.row == command.row for w in self.workers.values()):
                raise Violation(f"row {command.row} is given to worker {command.worker} while it is in use")
            self._starting[command.worker] = command.row
            self.clock.after(0.02 + self.jitter(0.1), self._started, command.worker)
        elif isinstance(command, KillWorker):
            self.clock.after(self.jitter(0.2), self._kill, command.worker)
        elif isinstance(command, MakeArena):
            if self.arena.made:
                raise Violation("the arena is made twice")
            self.arena.made = True
        else:
            self.outcome = command

    def _started(self, number: int) -> None:
        row = self._starting.pop(number)
        worker = FakeWorker(self, number, row, self._faults.pop(number, []))
        self.workers[number] = worker
        self.happened(WorkerStarted(number, 1000 + number))
        if number in self._doomed:
            self.died(worker.number, "signal", 9)
        else:
            worker.later(self.jitter(0.3), worker.start)

    def _kill(self, number: int) -> None:
        worker = self.workers.get(number)
        if worker is None:
            self._doomed.add(number)
        elif worker.alive:
            self.died(worker.number, "signal", 9)

    def died(self, number: int, cause: str, code: int) -> None:
        """A process is gone now; the machine hears of it a little later."""
        worker = self.workers[number]
        if worker.alive:
            worker.alive = False
            self.arena.end(worker.number)
            self.note("died", worker.number, cause, code)
            samples = [worker.unit[0] * 100 + worker.unit[1]] if worker.unit else []
            lost = WorkerLost(worker.number, cause, code, max(worker.step, 0), worker.unit, samples)
            self.clock.after(self.jitter(0.01), self.happened, lost)

    def from_worker(self, message: FromWorker) -> None:
        """A worker said something. It travels on even if the worker dies now."""
        self._carry(self.happened, message)

    def _carry(self, deliver: Callable[..., None], *what: Any) -> None:
        link, rng = self.schedule.link, self._random
        copies = 1
        if link.loss and rng.random() < link.loss:
            return
        if link.double and rng.random() < link.double:
            copies = 2
        for _ in range(copies):
            late = link.late and rng.random() < link.late
            self.clock.after(rng.random() * (link.delay if late else link.usual), deliver, *what)

    def _arrived(self, number: int, message: ToWorker) -> None:
        worker = self.workers.get(number)
        if worker is not None:
            worker.later(0.0, worker.receive, message)

    def wake(self, number: int) -> None:
        """This worker did something that others may wait for."""
        for worker in self.workers.values():
            if number in worker.awaits and worker.alive:
                worker.wake()

    # ------------------------------------------------------------ time and people

    def _tick(self) -> None:
        now, seconds = self.clock.now, {}
        for worker in list(self.workers.values()):
            if not worker.alive:
                continue
            if worker.frozen_since is not None:
                self.happened(WorkerFrozen(worker.number, now - worker.frozen_since))
            elif worker.hung_since is not None and now - worker.hung_since > 1.0:
                unit = worker.unit
                assert unit is not None
                samples = [unit[0] * 100 + unit[1]]
                self.happened(WorkerHung(worker.number, now - worker.hung_since, "model.py:3", unit, samples))
            elif worker.measured:
                seconds[worker.number] = self.unit_seconds * worker.factor
        if seconds:
            self.happened(Measured(self.arena.committed, seconds))
        self.happened(Ticked())
        self.clock.after(0.1, self._tick)

    def _timed(self, fault: Timed) -> None:
        self.note("timed", fault.what, fault.workers)
        if fault.what == "scale":
            self.happened(ScaleRequested(fault.workers))
        elif fault.what == "drain":
            self.happened(DrainRequested("asked for"))
        else:
            for worker in list(self.workers.values()):
                self.died(worker.number, "signal", 9)

    # ------------------------------------------------------------ the verdict

    def note(self, *what: Any) -> None:
        """Put something on the trace."""
        self._trace.update(self._encode((self.clock.now, what)))

    def _judged(self) -> Report:
        end, arena, model = self.outcome, self.arena, self.config.model
        if end is None:
            where = {w.number: (w.generation, w.step, sorted(w.awaits)) for w in self.workers.values() if w.alive}
            raise Violation(f"no end after {self.clock.now:.1f} s, at step {arena.committed}; workers stand at {where}")
        outcome = "end" if isinstance(end, EndRun) else end.kind
        message = end.reason if isinstance(end, EndRun) else end.message
        if outcome not in self.schedule.ends():
            raise Violation(f"the run failed with {outcome}: {message}")
        drained = any(isinstance(f, Timed) and f.what == "drain" for f in self.schedule.faults)
        if outcome == "end" and not drained and arena.committed != model.steps:
            raise Violation(f"the run ended after {arena.committed} of {model.steps} steps")
        if isinstance(end, EndRun) and end.result.get("steps", 0) != arena.committed:
            raise Violation(f"the summary says {end.result}, but {arena.committed} steps are committed")
        if any(version != arena.committed for version in arena.versions) and outcome == "end":
            raise Violation(f"the run ended in the middle of a step: {arena.versions}")
        if not len(self.machine.story):
            raise Violation("the run has no story")
        state = self.machine.snapshot()
        return Report(
            self.seed, self._trace.hexdigest(), outcome, message, self.clock.now, self._events, state.generation,
            state.lost, self.machine.story.tail(1000),
        )
