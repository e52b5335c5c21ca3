"""What happens to hosts, as data: the faults of `tests.process.schedules`, each to one host of a lab.

Host 0 holds the coordinator: its link may be cut, too, but its launcher is never killed.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from tests.hosts.harness import Spread
from tests.process.schedules import Fault, play

__all__ = ["Add", "Cut", "HostFault", "Kill", "KillWorker", "Rate", "Remove", "draw", "play"]


@dataclass(frozen=True)
class HostFault(Fault):
    """Something that happens to a host when a unit of `step` is begun."""

    host: int


@dataclass(frozen=True)
class Kill(HostFault):
    """All its processes are killed; it may come back at once."""

    back: bool

    def fire(self, run: Spread) -> None:
        run.kill(self.host)
        if self.back:
            run.join(self.host)


@dataclass(frozen=True)
class KillWorker(HostFault):
    """One of its workers is killed."""

    def fire(self, run: Spread) -> None:
        for pid in run.on(self.host)[:1]:
            run.strike(pid)


@dataclass(frozen=True)
class Cut(HostFault):
    """Its link is silent for `seconds`, both ways or one way: too short to matter, or so long that it is given up."""

    seconds: float
    way: str

    def fire(self, run: Spread) -> None:
        run.cut(self.host, self.way)
        time.sleep(self.seconds)
        run.lab.heal(self.host)


@dataclass(frozen=True)
class Rate(HostFault):
    """From now on its link has this rate."""

    mbit: float | None

    def fire(self, run: Spread) -> None:
        run.lab.rate(self.host, self.mbit)


@dataclass(frozen=True)
class Add(HostFault):
    """It joins, unless it is there."""

    def fire(self, run: Spread) -> None:
        if not run.here(self.host):
            run.join(self.host)


@dataclass(frozen=True)
class Remove(HostFault):
    """It is told to leave, if it is there."""

    def fire(self, run: Spread) -> None:
        if run.here(self.host):
            run.leave(self.host)


def draw(seed: int, steps: int, hosts: int) -> list[HostFault]:
    """A mixed schedule for a lab of so many hosts. The same seed gives the same schedule."""
    rng = random.Random(seed)
    faults: list[HostFault] = []
    for step in sorted(rng.sample(range(3, steps - 10), rng.randint(4, 6))):
        host = rng.randrange(1, hosts)
        cut = Cut(step, rng.randrange(hosts), rng.choice([0.2, 0.6, 2.5]), rng.choice(["both", "both", "in", "out"]))
        faults.append(
            rng.choice([
                Kill(step, host, True), Kill(step, host, True), Kill(step, host, False), cut, cut,
                KillWorker(step, rng.randrange(hosts)), Add(step, host), Add(step, host), Remove(step, host),
            ])
        )  # fmt: skip
    slow, start = rng.randrange(hosts), rng.randrange(steps // 2)
    faults += [Rate(start, slow, rng.choice([50.0, 200.0])), Rate(start + steps // 4, slow, None)]
    return sorted(faults, key=lambda fault: fault.step)
