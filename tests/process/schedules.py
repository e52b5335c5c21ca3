"""Faults as data: what happens to a run, and at which step. A schedule is a list of them, drawn from a seed.

A step number says when a fault is fired, not where in the step it strikes: that is left to chance, and
must make no difference. `who` counts the workers that are there at that moment, so it always hits one.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.transport import processes
from tests.process.harness import Launch, until

__all__ = ["Fault", "Freeze", "Kill", "KillAll", "Leave", "ScaleTo", "Slow", "draw", "play"]


@dataclass(frozen=True)
class Fault:
    """Something that happens when a unit of `step` is begun."""

    step: int

    def fire(self, run: Launch) -> None:
        """Let it happen."""


@dataclass(frozen=True)
class _Aimed(Fault):
    who: int

    def victim(self, run: Launch) -> int:
        """The pid of the worker it hits; 0 when nobody is there."""
        pids = [worker["pid"] for worker in run.status()["workers"] if worker["pid"]]
        return pids[self.who % len(pids)] if pids else 0


@dataclass(frozen=True)
class Kill(_Aimed):
    """`kill -9` of one worker."""

    def fire(self, run: Launch) -> None:
        if pid := self.victim(run):
            run.strike(pid)


@dataclass(frozen=True)
class KillAll(Fault):
    """`kill -9` of all workers at once."""

    def fire(self, run: Launch) -> None:
        for worker in run.status()["workers"]:
            if worker["pid"]:
                run.strike(worker["pid"])


@dataclass(frozen=True)
class Freeze(_Aimed):
    """SIGSTOP, and SIGCONT after `seconds`: the crew waits, or replaces the worker if that is too long."""

    seconds: float

    def fire(self, run: Launch) -> None:
        if pid := self.victim(run):
            run.strike(pid, signal.SIGSTOP)
            until(lambda: processes.stat(pid).state in ("T", "", "Z"), "stopped")
            time.sleep(self.seconds)
            run.strike(pid, signal.SIGCONT)


@dataclass(frozen=True)
class Leave(_Aimed):
    """SIGTERM: the worker's machine wants it gone; it leaves after its unit."""

    def fire(self, run: Launch) -> None:
        if pid := self.victim(run):
            run.strike(pid, signal.SIGTERM)


@dataclass(frozen=True)
class ScaleTo(Fault):
    """`holdfast scale --workers N`."""

    workers: int

    def fire(self, run: Launch) -> None:
        run.scale(self.workers)


@dataclass(frozen=True)
class Slow(Fault):
    """From this step to `end`, one worker needs `seconds` more for a unit. The script does that itself."""

    worker: int
    end: int
    seconds: float

    @property
    def option(self) -> str:
        return f"--slow {self.worker}:{self.step}:{self.end}:{self.seconds}"


def draw(seed: int, steps: int, lanes: int) -> list[Fault]:
    """A mixed schedule. The same seed gives the same schedule."""
    rng = random.Random(seed)
    faults: list[Fault] = []
    for step in sorted(rng.sample(range(3, steps - 10), rng.randint(5, 8))):
        who = rng.randrange(4)
        faults.append(
            rng.choice([
                Kill(step, who), Kill(step, who), Kill(step, who),
                Freeze(step, who, rng.choice([0.05, 0.3, 1.0])),
                Leave(step, who),
                ScaleTo(step, rng.randint(1, min(4, lanes))), ScaleTo(step, rng.randint(2, min(4, lanes))),
                KillAll(step),
            ])
        )  # fmt: skip
    start = rng.randrange(steps // 2)
    faults.append(Slow(start, rng.randrange(3), start + steps // 4, 0.03))
    return sorted(faults, key=lambda fault: fault.step)


def play(run: Launch, faults: Sequence[Fault]) -> None:
    """Fire every fault when its step is reached; what is left when the run ends is dropped."""
    for fault in faults:
        run.at_step(fault.step)
        if run.process.poll() is not None:
            return
        fault.fire(run)
