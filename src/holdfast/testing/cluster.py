"""A simulated cluster: the real machine and the real step logic, everything around them pretended.

    report = simulate(seed=7)                       # a random cluster under a random schedule of faults
    report = simulate(config=Config(...), seed=7)   # this one

One thread, virtual time, one seeded source of randomness. All that happens goes into a hash of the trace:
the same seed gives the same hash, or the machine has an input that it should not have. The run is watched
by `fake_arena` (every sum and state is the golden one, one writer at a time, generations fence) and, here, by
what a whole run must do: come to an end, in time, in a way that the schedule allows, at the golden state.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.config.limits import CrewConfig
from holdfast.control.membership.roster import CrewLimits
from holdfast.control.protocol.commands import (
    Command,
    EndRun,
    FailRun,
    KillWorker,
    MakeArena,
    ReleaseHost,
    Send,
    StartWorker,
)
from holdfast.control.protocol.events import (
    DrainRequested,
    Event,
    Measured,
    RunStarted,
    ScaleRequested,
    ServersRequested,
    SyncRequested,
    Ticked,
    WorkerFrozen,
    WorkerHung,
    WorkerLost,
    WorkerStarted,
)
from holdfast.control.protocol.messages import FromWorker, Install, Welcome
from holdfast.testing.clock import Clock
from holdfast.testing.config import Config, draw, draw_hosts
from holdfast.testing.fake_host import FakeHost
from holdfast.testing.fake_worker import FakeWorker
from holdfast.testing.faults import At, HostFault, Timed, UnitFault
from holdfast.testing.model import Violation
from holdfast.testing.relaxed.relaxed_session import Witness
from holdfast.testing.shares.share_history import ShareHistory

__all__ = ["Config", "SimCluster", "SimReport", "draw", "draw_hosts", "simulate"]


#: Virtual seconds after which somebody brings another host, if the first generation still waits for one.
_PATIENCE = 5.0


@dataclass(frozen=True, slots=True)
class SimReport:
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


def simulate(seed: int, config: Config | None = None) -> SimReport:
    """Run a simulated cluster to its end.

    Raises:
        Violation: something happened that must never happen; the message has the seed and the story.
    """
    cluster = SimCluster(seed, config if config is not None else draw(seed))
    try:
        return cluster.run()
    except (AssertionError, ValueError, KeyError) as problem:
        raise Violation(f"seed {seed}: {problem}\n{cluster.machine.story.tail(20)}") from problem


class SimCluster:
    """The pretended shell around the machine: processes, links, clocks and people."""

    def __init__(self, seed: int, config: Config) -> None:
        self.seed, self.config, self.schedule = seed, config, config.schedule
        self.clock = Clock()
        self.unit_seconds, self.repeat, self.silence = 0.02, 0.3, 0.5
        self.nap = 0.0005 if config.workers < 20 else 0.005  #: how soon who waits looks again
        bad = {(f.step, f.lane): f.what for f in self.schedule.faults if isinstance(f, UnitFault)}
        self.unit_faults: dict[tuple[int, int], str] = bad
        self.machine = config.machine(CrewLimits(
            lanes=config.model.lanes, workers=config.workers, servers=config.servers, sums_only=config.sums_only,
            hosts=config.awaited, sync=config.sync, replicas=config.replicas,
            listening=bool(config.hosts), follow=config.follow,
            crew=CrewConfig(
                join_grace=0.5, luck_budget=100, unit_attempts=3 if bad else 50, gather=0.1, frozen_limit=0.5,
                repeat=0.3, settle=0.2, probe=0.5,
            ),
        ))
        self.decide = config.decide
        self.hosts: dict[int, FakeHost] = {}
        self.witness, self.history = Witness(), ShareHistory(config.model)
        self.workers: dict[int, FakeWorker] = {}
        self.outcome: EndRun | FailRun | None = None
        self._random = random.Random(seed ^ 0x5EED)
        self._trace = hashlib.blake2b(digest_size=16)
        self._encode = msgspec.msgpack.Encoder(enc_hook=repr).encode
        self._events = 0
        self._starting: set[int] = set()  # ordered, not there yet
        self._where: dict[int, FakeHost] = {}
        self._generation = 0
        self._doomed: set[int] = set()
        self._faults: dict[int, list[At]] = {}
        for fault in self.schedule.faults:
            if isinstance(fault, At):
                self._faults.setdefault(fault.worker, []).append(fault)
            elif isinstance(fault, Timed):
                self.clock.after(fault.seconds, self._timed, fault)
            elif isinstance(fault, HostFault):
                self.clock.after(fault.after, self._struck, fault)

    def jitter(self, most: float) -> float:
        """Some time up to `most`."""
        return self._random.random() * most

    def run(self) -> SimReport:
        """Run to the end, and look at it."""
        self.happened(RunStarted())
        if self.config.workers:
            self.add_host(self.config.workers)
        for number, slots in enumerate(self.config.hosts, 1):
            self.clock.after(self.jitter(0.3), self.add_host, slots, number)
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
            host = self.host_of(command.worker)
            if isinstance(command.message, Welcome) and not host.arena.made:
                raise Violation(f"{command} comes before there is an arena")
            if isinstance(command.message, Install):
                self._check_progress(command.message)
            host.order(host.send, command.worker, command.message)
        elif isinstance(command, StartWorker):
            self._order_worker(command)
        elif isinstance(command, KillWorker):
            host = self.host_of(command.worker)
            host.order(self.clock.after, self.jitter(0.2), self._kill, command.worker)
        elif isinstance(command, MakeArena):
            arena = self._live_host(command.host, command).arena
            if arena.made:
                raise Violation(f"the arena of host {command.host} is made twice")
            arena.made = True
        elif isinstance(command, ReleaseHost):
            host = self._live_host(command.host, command)
            if any(w.alive for w in host.workers.values()) and host.up and not host.cut:
                raise Violation(f"{command} while workers are there")
            host.release()
        else:
            self.outcome = command

    def _check_progress(self, install: Install) -> None:
        """A generation goes on from the newest state there is, or from the step before it."""
        if install.generation <= self._generation or install.donor >= 0 or self.schedule.misfits:
            return
        self._generation = install.generation
        known = {host.host for host in self.machine.snapshot().hosts}
        levels = {n: host.arena.level() for n, host in self.hosts.items() if n in known and host.up and not host.cut}
        if levels.keys().isdisjoint(install.hosts):  # they are gone, and nobody has heard of it yet
            return
        best = max(levels[number] for number in install.hosts if number in levels)
        if lost := {number: level for number, level in levels.items() if level > best + 2}:  # news may be on their way
            raise Violation(f"generation {install.generation} goes on from step {best}, though hosts are at {lost}")

    def _order_worker(self, command: StartWorker) -> None:
        number, host = command.worker, self._live_host(command.host, command)
        if number in self._where:
            raise Violation(f"worker number {number} is used again")
        live = [w for at in self.hosts.values() if not at.closed for w in at.workers.values() if w.alive]
        if any(w.row == command.row for w in live):
            raise Violation(f"row {command.row} is given to worker {number} while it is in use")
        self._where[number] = host
        self._starting.add(number)
        host.order(self.clock.after, 0.02 + self.jitter(0.1), self._started, number, command.row)

    def add_host(self, slots: int, number: int | None = None) -> None:
        """A host joins; without a number it gets the next one."""
        if number is None:
            number = max([*self.hosts, *range(1, len(self.config.hosts) + 1)]) + 1 if self.hosts else 0
        self.hosts[number] = FakeHost(self, number, slots)
        self.hosts[number].join()

    def host_of(self, worker: int) -> FakeHost:
        """The host that a worker is on."""
        return self._where[worker]

    def _live_host(self, number: int, command: Command) -> FakeHost:
        host = self.hosts.get(number)
        if host is None or host.closed:
            raise Violation(f"{command} is about a host that is gone")
        return host

    def _started(self, number: int, row: int) -> None:
        host = self.host_of(number)
        self._starting.discard(number)
        if not host.up:
            return
        worker = self.config.worker(self, host, number, row, self._faults.pop(number, []))
        self.workers[number] = host.workers[number] = worker
        host.hear(WorkerStarted(number, 1000 + number))
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
            worker.arena.gone(worker.number)
            self.note("died", worker.number, cause, code)
            samples = [worker.unit[0] * 100 + worker.unit[1]] if worker.unit else []
            lost = WorkerLost(worker.number, cause, code, max(worker.step, 0), worker.unit, samples)
            self.clock.after(self.jitter(0.01), worker.host.lost, lost)

    def from_worker(self, message: FromWorker) -> None:
        """A worker said something. It travels on even if the worker dies now."""
        self.carry(self.host_of(message.worker).said, message)

    def carry(self, deliver: Callable[..., None], *what: Any) -> None:
        """Carry a message between a worker and its host: it may be lost, doubled, or come late."""
        link, rng = self.schedule.link, self._random
        copies = 1
        if link.loss and rng.random() < link.loss:
            return
        if link.double and rng.random() < link.double:
            copies = 2
        for _ in range(copies):
            late = link.late and rng.random() < link.late
            self.clock.after(rng.random() * (link.delay if late else link.usual), deliver, *what)

    def carriage(self, factor: float) -> float:
        """How long something takes from host to host."""
        late = self._random.random() < 0.05
        return self._random.random() * factor * (0.1 if late else 0.004)

    def wake(self, number: int) -> None:
        """This worker did something that others may wait for."""
        host = self.host_of(number)
        for worker in host.workers.values():
            if number in worker.awaits and worker.alive:
                worker.wake()
        if len(self.hosts) > 1:
            host.stirred()

    # ------------------------------------------------------------ time and people

    def _tick(self) -> None:
        now, seconds = self.clock.now, dict[int, float]()
        applied: dict[int, tuple[int, float]] = {}
        for worker in list(self.workers.values()):
            if not worker.alive:
                continue
            if worker.frozen_since is not None:
                worker.host.hear(WorkerFrozen(worker.number, now - worker.frozen_since))
            elif worker.hung_since is not None and now - worker.hung_since > 1.0:
                unit = worker.unit
                assert unit is not None
                samples = [unit[0] * 100 + unit[1]]
                worker.host.hear(WorkerHung(worker.number, now - worker.hung_since, "model.py:3", unit, samples))
            elif not worker.host.cut:
                if worker.measured:
                    seconds[worker.number] = self.unit_seconds * worker.pace()
                if worker.applied[0]:
                    applied[worker.number] = worker.applied
        if seconds:
            self.happened(Measured(max(self.workers[number].arena.committed for number in seconds), seconds, applied))
        for host in list(self.hosts.values()):
            host.tick()
        self.happened(Ticked())
        if now > _PATIENCE and not self.machine.snapshot().generation and self.config.hosts:
            there = [host for host in self.machine.snapshot().hosts if not host.leaving]
            if len(there) < self.config.awaited:  # somebody who waits for hosts brings one in the end
                self.add_host(1)
        self.clock.after(0.1, self._tick)

    def _timed(self, fault: Timed) -> None:
        self.note("timed", fault.what, fault.workers)
        if fault.what == "scale":
            self.happened(ScaleRequested(fault.workers))
        elif fault.what == "servers":
            self.happened(ServersRequested(fault.workers))
        elif fault.what == "sync":
            self.happened(SyncRequested(fault.mode))
        elif fault.what == "drain":
            self.happened(DrainRequested("asked for"))
        elif fault.what == "join":
            self.add_host(fault.workers)
        else:
            for worker in list(self.workers.values()):
                self.died(worker.number, "signal", 9)

    def _struck(self, fault: HostFault) -> None:
        host = self.hosts.get(fault.host)
        if host is None or not host.up:
            return
        self.note("host", fault)
        if fault.what == "lose":
            host.end()
        elif fault.what == "cut":
            host.cut_off(fault.seconds)
        elif fault.what == "unlink":
            host.unlink()
        elif fault.what == "slow":
            host.factor = fault.factor
        else:
            host.leave()

    # ------------------------------------------------------------ the verdict

    def note(self, *what: Any) -> None:
        """Put something on the trace."""
        self._trace.update(self._encode((self.clock.now, what)))

    def _judged(self) -> SimReport:
        end = self.outcome
        if end is None:
            where = {
                w.number: (w.host.number, w.generation, w.step, sorted(w.awaits))
                for w in self.workers.values() if w.alive
            }
            levels = {host.number: host.arena.level() for host in self.hosts.values() if host.up}
            raise Violation(f"no end after {self.clock.now:.1f} s; hosts are at {levels}, workers stand at {where}")
        outcome = "end" if isinstance(end, EndRun) else end.kind
        message = end.reason if isinstance(end, EndRun) else end.message
        if outcome not in self.schedule.ends():
            raise Violation(f"the run failed with {outcome}: {message}")
        if isinstance(end, EndRun):
            self.check_end(end)
        state = self.machine.snapshot()
        there = [host for host in self.hosts.values() if not host.closed and host.up]
        holders = [host.number for host in there if host.arena.level() >= 0]
        if outcome == "ResourceError" and holders:
            raise Violation(f"the run failed for want of its state, which hosts {holders} hold")
        if not len(self.machine.story):
            raise Violation("the run has no story")
        return SimReport(
            self.seed, self._trace.hexdigest(), outcome, message, self.clock.now, self._events, state.generation,
            state.lost, self.machine.story.tail(1000),
        )

    def check_end(self, end: EndRun) -> None:
        """The run has come to its end: at the right step, the same on every host that had a part in it."""
        model, steps = self.config.model, end.result.get("steps") or 0
        drained = any(isinstance(f, Timed) and f.what == "drain" for f in self.schedule.faults)
        if not drained and steps != model.steps:
            raise Violation(f"the run ended after {steps} of {model.steps} steps")
        ended = [worker.host for worker in self.workers.values() if worker.ended]
        for host in {host.number: host for host in ended}.values():
            if host.up and not host.cut and any(version != steps for version in host.arena.versions):
                raise Violation(f"the summary says {end.result}, but host {host.number} is at {host.arena.versions}")
        last = self.machine.snapshot().modes[-1]
        for host in {host.number: host for host in ended}.values():
            kept = host.arena.pace.reached
            if last != (kept.step, kept.sync):
                raise Violation(f"the machine says {last}, but on host {host.number} lanes kept step by {kept}")
        if model.shares:
            self.history.check_end(host.arena.committed for host in ended if not host.cut and host.up)
        if steps and not ended:
            raise Violation(f"the summary says {end.result}, but nobody has ended")
