"""When lanes move for the sake of speed alone. Pure functions over a frozen `LaneBalance`.

The bits of a run do not depend on who drives which lane, so moving lanes is only ever about time, and
doing nothing is always right. Hence:

* a better assignment must show in two reports in a row, and `settle` seconds after the last change,
  before it is taken (hysteresis);
* a worker that is so slow that it drives no lane at all can not show that it has become fast again.
  It is tried with one lane after `probe` seconds, and after twice the time whenever that did not help.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from holdfast.control.membership.roster import CrewLimits
from holdfast.core import lanes

__all__ = ["LaneBalance", "LaneChange", "Probe", "drivers_for", "installed", "measured", "probes_after"]


@dataclass(frozen=True, slots=True)
class LaneChange:
    """Another assignment of lanes to the same members, and why."""

    drivers: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Probe:
    """A worker (or server) that was found too slow for any: when it is tried next, and how long to wait after that."""

    at: float
    wait: float


@dataclass(frozen=True, slots=True)
class LaneBalance:
    """What is known about speeds, and what was tried."""

    seconds: Mapping[int, float] = field(default_factory=dict)  #: worker -> seconds of one unit, newest report
    changed: float = 0.0  #: when the assignment last changed
    hits: int = 0  #: reports in a row that showed a better assignment
    calm: int = 0  #: reports in a row that showed none
    probes: Mapping[int, Probe] = field(default_factory=dict)


def drivers_for(balance: LaneBalance, members: Sequence[int], num_lanes: int) -> tuple[int, ...]:
    """Drivers for a crew that has changed: the best that the known speeds give."""
    return lanes.assign(num_lanes, members, balance.seconds)


def installed(
    balance: LaneBalance, now: float, drivers: Sequence[int], members: Sequence[int], limits: CrewLimits
) -> LaneBalance:
    """Note that a generation with these drivers has begun."""
    seconds = {worker: balance.seconds[worker] for worker in members if worker in balance.seconds}
    return LaneBalance(seconds, changed=now, probes=probes_after(balance.probes, now, drivers, members, limits))


def probes_after(
    probes: Mapping[int, Probe], now: float, busy: Collection[int], members: Sequence[int], limits: CrewLimits
) -> dict[int, Probe]:
    """Who of these is to be tried and when, now that a generation has begun in which those in `busy` have some."""
    after: dict[int, Probe] = {}
    for member in members:
        known = probes.get(member)
        if member not in busy:
            wait = known.wait if known else limits.crew.probe
            after[member] = Probe(now + wait, wait)
        elif known:  # it is being tried: should it lose the lane again, the next try comes later
            after[member] = Probe(known.at, min(2 * known.wait, limits.crew.probe_limit))
    return after


def measured(
    balance: LaneBalance, now: float, drivers: Sequence[int], members: Sequence[int],
    unit_seconds: Mapping[int, float], limits: CrewLimits,
) -> tuple[LaneBalance, LaneChange | None]:
    """Take in one report of speeds; propose another assignment when it is time for one."""
    here = set(members)
    seconds = {**balance.seconds, **{worker: s for worker, s in unit_seconds.items() if worker in here}}
    balance = replace(balance, seconds=seconds)
    better = lanes.rebalanced(drivers, members, seconds, limits.crew.gain)
    if better is not None and set(better[0]) - set(drivers) and not _fresh(balance, better[0], drivers, unit_seconds):
        better = None  # an idle worker's speed is old news; only a probe renews it
    if better is None:
        balance = replace(balance, hits=0, calm=balance.calm + 1)
        if balance.calm >= 2:  # whoever drives a lane in calm times has passed its trial
            busy = set(drivers)
            balance = replace(balance, probes={w: p for w, p in balance.probes.items() if w not in busy})
    else:
        balance = replace(balance, hits=balance.hits + 1, calm=0)
    if now - balance.changed < limits.crew.settle:
        return balance, None
    if better is not None:
        return balance, LaneChange(*better) if balance.hits >= 2 else None
    return balance, _probe(balance, now, drivers)


def _fresh(
    balance: LaneBalance, proposed: Sequence[int], drivers: Sequence[int], unit_seconds: Mapping[int, float]
) -> bool:
    return all(worker in unit_seconds or worker not in balance.probes for worker in set(proposed) - set(drivers))


def _probe(balance: LaneBalance, now: float, drivers: Sequence[int]) -> LaneChange | None:
    busy = Counter(drivers)
    due = [worker for worker, probe in sorted(balance.probes.items()) if worker not in busy and probe.at <= now]
    if not due or max(busy.values()) < 2:
        return None
    worker = due[0]
    giver = max(busy, key=lambda other: (busy[other] * balance.seconds.get(other, 1.0), -other))
    if busy[giver] < 2:
        giver = max(busy, key=lambda other: (busy[other], -other))
    lane = max(lane for lane, driver in enumerate(drivers) if driver == giver)
    tried = tuple(worker if at == lane else driver for at, driver in enumerate(drivers))
    return LaneChange(tried, f"worker {worker} drives no lane; it is tried with lane {lane} to see how fast it is now")
