"""When lanes move for the sake of speed alone, by the rules of `hysteresis`. Pure functions over a `LaneBalance`.

An assignment is better where the slowest worker would take less time (`core.lanes`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from holdfast.control.hysteresis import Hysteresis
from holdfast.control.membership.roster import CrewLimits
from holdfast.core import lanes

__all__ = ["LaneBalance", "LaneChange", "drivers_for", "installed", "measured"]


@dataclass(frozen=True, slots=True)
class LaneChange:
    """Another assignment of lanes to the same members, and why."""

    drivers: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class LaneBalance(Hysteresis):
    """What is known about speeds, and what was tried."""

    seconds: Mapping[int, float] = field(default_factory=dict)  #: worker -> seconds of one unit, newest report
    changed: float = 0.0  #: when the assignment last changed


def drivers_for(balance: LaneBalance, members: Sequence[int], num_lanes: int) -> tuple[int, ...]:
    """Drivers for a crew that has changed: the best that the known speeds give."""
    return lanes.assign(num_lanes, members, balance.seconds)


def installed(
    balance: LaneBalance, now: float, drivers: Sequence[int], members: Sequence[int], limits: CrewLimits
) -> LaneBalance:
    """Note that a generation with these drivers has begun."""
    seconds = {worker: balance.seconds[worker] for worker in members if worker in balance.seconds}
    return LaneBalance(seconds, changed=now, probes=balance.probes_after(now, drivers, members, limits.crew))


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
    return balance.judged(
        None if better is None else LaneChange(*better), drivers, lambda after: _probe(after, now, drivers),
        settled=now - balance.changed >= limits.crew.settle,
    )


def _fresh(
    balance: LaneBalance, proposed: Sequence[int], drivers: Sequence[int], unit_seconds: Mapping[int, float]
) -> bool:
    return all(worker in unit_seconds or worker not in balance.probes for worker in set(proposed) - set(drivers))


def _probe(balance: LaneBalance, now: float, drivers: Sequence[int]) -> LaneChange | None:
    busy = Counter(drivers)
    due = balance.due(now, busy)
    if not due or max(busy.values()) < 2:
        return None
    giver = max(busy, key=lambda other: (busy[other] * balance.seconds.get(other, 1.0), -other))
    if busy[giver] < 2:
        giver = max(busy, key=lambda other: (busy[other], -other))
    lane = max(lane for lane, driver in enumerate(drivers) if driver == giver)
    tried = tuple(due[0] if at == lane else driver for at, driver in enumerate(drivers))
    return LaneChange(tried, f"worker {due[0]} drives no lane; it is tried with lane {lane} to see how fast it is now")
