"""State holders: from which hosts the newest state of the run can be had, so that no step is lost. Pure.

Every host of the crew holds the whole state, at most a step apart. Others may hold an older one: their workers were
all lost, and they are about to come back. So whatever leaves or starts,

* a worker stays on, or comes to, a host that *holds* the newest state or the one before it. Only where no worker can be
  had on such a host any more does the run go back to what others hold. In modes other than `exact` nothing but the
  newest will do, and nobody goes back to a state from before the mode was changed while there is one from after it.
  So it is with steps of shares: made once more of other shares, a step differs from what the host ahead holds;
* a host that wants to leave goes only when another one that stays holds it.

In relaxed modes, the version before the newest is another matter: others may have seen the newest. They
have not if it is missing on a replica: a version that not all replicas of its generation hold was shown to nobody. So
a run may go on without what a host holds that is there still, and further on. What a host holds is told from that by
its generation (`Hosts.age`), also when the mode has changed since.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from holdfast.control.membership.hosts import KnownHost
from holdfast.control.membership.roster import Stage, Worker
from holdfast.control.state import RunState

__all__ = ["ahead", "can_go", "holders", "holding", "precedes", "startable_holders", "went_back"]


def holding(run: RunState) -> frozenset[int]:
    """The hosts that hold the newest state, or the one before it, and have a worker or can have one."""
    live, crew = run.hosts.live, run.crew
    if len(live) == 1:
        return frozenset(number for number, host in live.items() if host.holds)
    staffed = {worker.host for worker in crew.able()}
    usable = [host for host in live.values() if host.holds and (host.number in staffed or _can_start(run, host))]
    newest = max(map(run.hosts.age, usable), default=(-1, -1))
    # While the crew works, what is known of its hosts' levels is old, and they are the newest by themselves.
    quiet = crew.change is not None and not crew.waited_for()
    if quiet and run.central:
        ages = {host.number: run.hosts.age(host) for host in usable}
        return frozenset(
            host.number for host in usable if ages[host.number] == newest or _has_all_shown(run, host, newest)
        )
    there = set() if quiet else {worker.host for worker in crew.driving()}
    era, best = newest
    newest_only = run.central or any(host.shares for host in live.values())
    least = era, best if newest_only else max(best - 1, min(best, run.modes[-1].version))
    return frozenset(host.number for host in usable if run.hosts.age(host) >= least or host.number in there)


def holders(run: RunState) -> list[Worker]:
    """The workers on those hosts, those included that leave as soon as they may."""
    there = holding(run)
    return [worker for worker in run.crew.able() if worker.host in there]


def startable_holders(run: RunState) -> list[int]:
    """Those of these hosts on which a worker can be started, those that stay first."""
    able = [host for number in holding(run) if _can_start(run, host := run.hosts.live[number])]
    return [host.number for host in sorted(able, key=lambda host: (bool(host.leaving), host.number))]


def can_go(run: RunState, host: KnownHost) -> bool:
    """Whether a host that wants to leave may: nobody would miss the state."""
    there = holding(run)
    needed = host.number in there or host.number == run.seeding()
    return not needed or any(other.number in there for other in run.hosts.staying() if other is not host)


def went_back(run: RunState, primary: KnownHost) -> bool:
    """Whether versions that others may have seen are lost, in relaxed modes and `primary` is the best left.

    Call it before the generation that it is the primary of is installed.
    """
    crew = run.crew
    if (
        crew.primary < 0 or primary.number == crew.primary or primary.of == crew.generation
    ):  # below 0: every host held it
        return False
    # What it holds is of the generation before: it was to get a copy in the last one, and nothing was shown until then.
    return primary.of < crew.generation - 1 or primary.number not in crew.replicas


def precedes(run: RunState, host: KnownHost) -> bool:
    """Whether the state of a host, the newest that is left, is from before the mode that counts.

    Without replicas nobody goes on but from the newest: then how far it is tells. With them, of the generation before
    the change there is only the version at which everybody stood.
    """
    mode = run.modes[-1]
    if host.level < mode.version or not run.limits.replicas:
        return host.level < mode.version
    return host.of < run.begun.get(mode.serial, 0) - (host.level == mode.version)


def ahead(run: RunState, coming: Sequence[int]) -> list[Worker]:
    """Those of the next generation that may be ahead of the state that is left, which a script cannot go back to.

    It may be in a later loop than that state, or in one that goes by a mode which is taken back. Without replicas, a
    host that holds a state has done nothing since.
    """
    crew, live = run.crew, run.hosts.live
    primary = live[crew.best_primary(coming)]
    if not went_back(run, primary) and not precedes(run, primary):
        return []
    members = [worker for number in coming if (worker := crew.workers[number]).stage is Stage.MEMBER]
    return [worker for worker in members if run.limits.replicas or not live[worker.host].holds]


def _has_all_shown(run: RunState, host: KnownHost, newest: tuple[int, int]) -> bool:
    crew = run.crew
    before = newest[0], newest[1] - 1
    return host.number in crew.replicas and run.hosts.age(host) == before and host.of == crew.generation


def _can_start(run: RunState, host: KnownHost) -> bool:
    refused = Counter(refusal.host for refusal in run.refused.values())
    return not host.spent and refused[host.number] < max(host.share, 1)
