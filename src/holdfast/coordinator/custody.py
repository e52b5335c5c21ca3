"""Custody: from which hosts the newest state of the run can be had, so that none of its steps is lost. Pure.

Every host of the crew holds the whole state, at most a step apart. Others may hold an older one: their workers were
all lost, and they are about to come back. So whatever leaves or starts,

* a worker stays on, or comes to, a host that *holds* the newest state or the one before it. Only where no worker can be
  had on such a host any more does the run go back to what others hold. In modes other than `exact` nothing but the
  newest will do, and nobody goes back to a state from before the mode was changed while there is one from after it;
* a host that wants to leave goes only when another one that stays holds it.
"""

from __future__ import annotations

from collections import Counter

from holdfast.coordinator.hosts import Host
from holdfast.coordinator.roster import Worker
from holdfast.coordinator.state import RunState

__all__ = ["can_go", "custodians", "holders", "holding"]


def holding(run: RunState) -> frozenset[int]:
    """The hosts that hold the newest state, or the one before it, and have a worker or can have one."""
    live, crew = run.hosts.live, run.crew
    if len(live) == 1:
        return frozenset(number for number, host in live.items() if host.holds)
    staffed = {worker.host for worker in crew.able()}
    usable = [host for host in live.values() if host.holds and (host.number in staffed or _can_start(run, host))]
    best = max((host.level for host in usable), default=-1)
    # While the crew works, what is known of its hosts' levels is old, and they are the newest by themselves.
    quiet = crew.change is not None and not crew.waited_for()
    there = set() if quiet else {worker.host for worker in crew.driving()}
    mode = run.modes[-1]
    least = best if run.central else max(best - 1, min(best, mode.version))
    return frozenset(host.number for host in usable if host.level >= least or host.number in there)


def holders(run: RunState) -> list[Worker]:
    """The workers on those hosts, those included that leave as soon as they may."""
    there = holding(run)
    return [worker for worker in run.crew.able() if worker.host in there]


def custodians(run: RunState) -> list[int]:
    """Those of these hosts on which a worker can be started, those that stay first."""
    able = [host for number in holding(run) if _can_start(run, host := run.hosts.live[number])]
    return [host.number for host in sorted(able, key=lambda host: (bool(host.leaving), host.number))]


def can_go(run: RunState, host: Host) -> bool:
    """Whether a host that wants to leave may: nobody would miss the state."""
    there = holding(run)
    needed = host.number in there or host.number == run.seeding()
    return not needed or any(other.number in there for other in run.hosts.staying() if other is not host)


def _can_start(run: RunState, host: Host) -> bool:
    refused = Counter(refusal.host for refusal in run.refused.values())
    return not host.spent and refused[host.number] < max(host.share, 1)
