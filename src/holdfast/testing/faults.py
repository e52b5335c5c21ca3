"""Faults as data: what goes wrong in a run, when, and to whom.

    from holdfast.testing import faults

    schedule = faults.Schedule(faults=(
        faults.at(worker=1, step=7).kill(),
        faults.at(worker=2, step=3, during="finish").freeze(seconds=0.4),
        faults.unit(step=5, lane=2).crashes(),
        faults.after(1.5).scale(3),
        faults.host(2, after=0.8).cut(seconds=1.0),
        faults.at(worker=4, step=2, during="sum").lose_host(),
    ))

A fault fires on a logical event (this worker, this step, this action), never on wall time, except those
made by `after`. `swarm` draws a random schedule: each kind of fault is switched on or off as a whole
first, so that some runs see many of one kind and none of another.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = [
    "STEP_POINTS",
    "At", "Fault", "HostFault", "LinkFaults", "Schedule", "Timed", "UnitFault", "after", "at", "host", "host_swarm",
    "swarm",
    "unit",
]  # fmt: skip

#: Where in a step a fault can strike. "compute" and "finish" strike in the middle of the action.
POINTS = ("compute", "finish", "arrive", "quiet", "install", "start")
#: Where it can strike besides, with several hosts (and "sum" in steps that clip); in the middle, too.
HOST_POINTS = ("sum", "gather", "fetch")
#: And where the way of keeping step changes.
TURN_POINTS = ("stand",)
#: And between a step's units and its end, where the script loops by steps; in the middle, too.
STEP_POINTS = ("whole", "close")


@dataclass(frozen=True, slots=True)
class At:
    """Strikes `fake_worker` at the first such point at or after `step`."""

    worker: int
    step: int
    during: str
    part: float  #: how much of the action is done when it strikes, 0 to 1
    what: str = ""  #: kill, freeze, leave, slow, lose host, cut host
    seconds: float = 0.0  #: of a freeze or a cut; infinite: until it is killed, or for ever
    factor: float = 1.0  #: of a slow-down

    def kill(self) -> At:
        """Kill it, as SIGKILL does."""
        return self._with("kill")

    def freeze(self, seconds: float = float("inf")) -> At:
        """Stop it, as SIGSTOP does, and let it go on later (if it still exists)."""
        return self._with("freeze", seconds=seconds)

    def leave(self) -> At:
        """Ask it to leave, as SIGTERM does."""
        return self._with("leave")

    def slow(self, factor: float) -> At:
        """Make its units take this many times as long from now on."""
        return self._with("slow", factor=factor)

    def lose_host(self) -> At:
        """Its whole host is gone, with all that runs there."""
        return self._with("lose host")

    def cut_host(self, seconds: float = float("inf")) -> At:
        """Its host is cut off from everybody, silently, for so long."""
        return self._with("cut host", seconds=seconds)

    def _with(self, what: str, seconds: float = 0.0, factor: float = 1.0) -> At:
        return At(self.worker, self.step, self.during, self.part, what, seconds, factor)


@dataclass(frozen=True, slots=True)
class UnitFault:
    """Strikes whoever computes this unit, every time."""

    step: int
    lane: int
    what: str = ""  #: crash, raise, hang

    def crashes(self) -> UnitFault:
        """The process dies of it."""
        return UnitFault(self.step, self.lane, "crash")

    def raises(self) -> UnitFault:
        """The script raises."""
        return UnitFault(self.step, self.lane, "raise")

    def hangs(self) -> UnitFault:
        """It never ends."""
        return UnitFault(self.step, self.lane, "hang")


@dataclass(frozen=True, slots=True)
class Timed:
    """Happens to the run as a whole, so long after its start."""

    seconds: float
    what: str = ""  #: kill all, scale, servers, sync, drain, join
    workers: int = 0
    mode: str = ""

    def kill_all(self) -> Timed:
        """Kill every worker at once."""
        return Timed(self.seconds, "kill all")

    def scale(self, workers: int) -> Timed:
        """Ask for this many workers."""
        return Timed(self.seconds, "scale", workers)

    def servers(self, number: int) -> Timed:
        """Ask for this many servers."""
        return Timed(self.seconds, "servers", number)

    def drain(self) -> Timed:
        """Ask for the end."""
        return Timed(self.seconds, "drain")

    def sync(self, mode: str) -> Timed:
        """Ask for another way of keeping step."""
        return Timed(self.seconds, "sync", mode=mode)

    def join(self, slots: int) -> Timed:
        """A new host with room for so many workers joins."""
        return Timed(self.seconds, "join", slots)


@dataclass(frozen=True, slots=True)
class HostFault:
    """Happens to a host, so long after the start. Host 0 has the coordinator's fate, and can only leave or be slow."""

    host: int
    after: float
    what: str = ""  #: lose, cut, unlink, slow, leave
    seconds: float = 0.0  #: of a cut
    factor: float = 1.0  #: of a slow-down

    def lose(self) -> HostFault:
        """It is gone, with all that runs there."""
        return HostFault(self.host, self.after, "lose")

    def cut(self, seconds: float = float("inf")) -> HostFault:
        """It is cut off from everybody, silently, for so long. Found out and healed, it joins as a new host."""
        return HostFault(self.host, self.after, "cut", seconds)

    def unlink(self) -> HostFault:
        """Its connections to the other hosts break, and both ends notice; everybody goes on."""
        return HostFault(self.host, self.after, "unlink")

    def slow(self, factor: float) -> HostFault:
        """Its workers and its network take this many times as long from now on."""
        return HostFault(self.host, self.after, "slow", factor=factor)

    def leave(self) -> HostFault:
        """It asks to be let go."""
        return HostFault(self.host, self.after, "leave")


Fault = At | UnitFault | Timed | HostFault


def at(*, worker: int, step: int, during: str = "compute", part: float = 0.5) -> At:
    """Name a worker and a moment; then say what happens: `.kill()`, `.freeze()`, `.leave()`, `.slow()`, ..."""
    known = POINTS + HOST_POINTS + TURN_POINTS + STEP_POINTS
    if during not in known:
        raise ValueError(f"during = {during!r}: must be one of {', '.join(known)}")
    return At(worker, step, during, part)


def unit(*, step: int, lane: int) -> UnitFault:
    """Name a unit; then say what it does: `.crashes()`, `.raises()`, `.hangs()`."""
    return UnitFault(step, lane)


def after(seconds: float) -> Timed:
    """Name a time; then say what happens: `.kill_all()`, `.scale(n)`, `.servers(n)`, `.sync(mode)`, `.drain()`, ..."""
    return Timed(seconds)


def host(number: int, *, after: float) -> HostFault:
    """Name a host and a time; then say what happens: `.lose()`, `.cut()`, `.unlink()`, `.slow()`, `.leave()`."""
    return HostFault(number, after)


@dataclass(frozen=True, slots=True)
class LinkFaults:
    """What the link between workers and their host does to messages."""

    loss: float = 0.0  #: chance that a message is lost
    double: float = 0.0  #: chance that it comes twice
    late: float = 0.0  #: chance that it takes up to `delay`
    delay: float = 1.0
    usual: float = 0.002  #: most messages take up to this long


@dataclass(frozen=True, slots=True)
class Schedule:
    """All that goes wrong in one run."""

    faults: tuple[Fault, ...] = ()
    link: LinkFaults = field(default_factory=LinkFaults)
    misfits: tuple[int, ...] = ()  #: workers whose numerics differ

    def ends(self) -> frozenset[str]:
        """How a run under this schedule may end: "end", or the kinds of errors that are in order."""
        ends = {"end"}
        for fault in self.faults:
            if isinstance(fault, UnitFault):
                ends |= {"BadUnit", {"crash": "CrewLost", "raise": "ScriptFailed", "hang": "Hang"}[fault.what]}
            if isinstance(fault, HostFault) and fault.what in ("lose", "cut"):
                ends.add("ResourceError")
            if isinstance(fault, At) and fault.what in ("lose host", "cut host"):
                ends.add("ResourceError")
        if self.misfits:
            ends.add("NotExact")
        return frozenset(ends)


def swarm(rng: random.Random, *, workers: int, lanes: int, steps: int) -> Schedule:
    """Draw a schedule for a run of this size."""
    kinds = [kind for kind in ("kill", "freeze", "leave", "slow") if rng.random() < 0.5]
    found: list[Fault] = []
    newest, span = workers + 6, 0.5 + 0.03 * steps * lanes / workers  # successors are struck, too
    if kinds:
        for _ in range(rng.randrange(1, 15)):
            worker, step = (min(rng.randrange(most), rng.randrange(most)) for most in (newest, steps))  # rather early
            moment = At(worker, step, rng.choice(POINTS), rng.random())
            what = rng.choice(kinds)
            if what == "freeze":
                found.append(moment.freeze(rng.choice((0.05, 0.3, 0.7, 2.0, float("inf")))))
            elif what == "slow":
                found.append(moment.slow(rng.choice((2.0, 4.0, 10.0))))
            else:
                found.append(moment.kill() if what == "kill" else moment.leave())
    if rng.random() < 0.25:
        found += [after(rng.random() * span).kill_all() for _ in range(rng.randrange(1, 3))]
    if rng.random() < 0.3:
        found += [after(rng.random() * span).scale(rng.randrange(1, lanes + 2)) for _ in range(rng.randrange(1, 4))]
    if rng.random() < 0.2:
        found += [after(rng.random() * span).servers(rng.randrange(0, 4)) for _ in range(rng.randrange(1, 4))]
    if rng.random() < 0.15:
        found.append(after(rng.random() * span).drain())
    if rng.random() < 0.1:
        bad = unit(step=rng.randrange(steps), lane=rng.randrange(lanes))
        found.append(rng.choice((bad.crashes, bad.raises, bad.hangs))())
    link = LinkFaults()
    if rng.random() < 0.6:
        link = LinkFaults(
            loss=rng.choice((0.0, 0.05, 0.2)), double=rng.choice((0.0, 0.1, 0.3)), late=rng.choice((0.0, 0.1, 0.3)),
        )
    misfits = (rng.randrange(newest),) if rng.random() < 0.05 else ()
    return Schedule(tuple(found), link, misfits)


def host_swarm(rng: random.Random, *, workers: int, hosts: Sequence[int], lanes: int, steps: int) -> Schedule:
    """Draw a schedule for a run on several hosts: what can strike workers, and what can strike hosts."""
    base = swarm(rng, workers=workers, lanes=lanes, steps=steps)
    found: list[Fault] = [fault for fault in base.faults if isinstance(fault, Timed)]
    found += [fault for fault in base.faults if not isinstance(fault, Timed)][: rng.randrange(6)]
    span = 0.5 + 0.05 * steps * lanes / workers
    newest = max(hosts) + 4
    kinds = [kind for kind in ("lose", "cut", "unlink", "slow", "leave", "join", "at") if rng.random() < 0.4]
    for _ in range(rng.randrange(1, 6) if kinds else 0):
        what = rng.choice(kinds)
        if what == "at":
            point = rng.choice(POINTS + HOST_POINTS)
            strike = At(rng.randrange(workers + 4), rng.randrange(steps), point, rng.random())
            found.append(strike.lose_host() if rng.random() < 0.6 else strike.cut_host(rng.choice(_CUTS)))
            continue
        if what == "join":
            found.append(after(rng.random() * span).join(rng.randrange(1, 4)))
            continue
        moment = HostFault(min(rng.randrange(1, newest), rng.randrange(1, newest)), rng.random() * span)
        if what == "cut":
            found.append(moment.cut(rng.choice(_CUTS)))
        elif what == "slow":
            found.append(moment.slow(rng.choice((2.0, 5.0))))
        elif what == "unlink":
            found.append(moment.unlink())
        else:
            found.append(moment.lose() if what == "lose" else moment.leave())
    return Schedule(tuple(found), base.link, base.misfits)


#: Seconds of a cut: noticed by nobody, by some, by all, never healed.
_CUTS = (0.1, 0.45, 0.6, 1.5, float("inf"))
