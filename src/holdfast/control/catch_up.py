"""Catch-up: a host that comes late gets the state in the background, while the crew goes on stepping. Pure.

Part of `reconcile`; like all of it, it looks at levels only. What a host that follows gets and does is told in
`dataplane.wire.donor`. Rules that live here:

* who follows is a host without members whose arena is more than a step behind: a new one, or one whose workers were all
  lost a while ago. One at a time follows; the others wait for their turn;
* its workers get an Install of the current generation with a `donor`, once all of them have the arena, or after
  `join_grace`. They drive no lane and nobody waits for them;
* a lone host leaves no sums behind unless it is told to: a generation with `summed` comes first;
* when it is no more than a step behind, a change begins, which takes it in. Once the crew is quiet, it has `join_grace`
  to come as far as its donor; then its workers are asked for quiet, too, and what is still missing it gets like any
  host that lags behind;
* when its donor is lost or gives up, it is taken in as it is, and fetches the state inside the generation, while
  the others wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.control import mode_change
from holdfast.control.membership.hosts import KnownHost
from holdfast.control.membership.roster import Stage, Worker
from holdfast.control.protocol.messages import Install
from holdfast.control.state import RunState

__all__ = ["attend", "follows", "hushed"]


def attend(run: RunState, now: float) -> None:
    """See to it that hosts that come late follow, one at a time."""
    crew, hosts = run.crew, run.hosts
    run.summed = False
    if not crew.generation or len(hosts.live) < 2 or not run.limits.follow:
        return
    if run.central or mode_change.centralizes(
        run
    ):  # then the others only mirror it: whoever follows is taken in as it is
        for host in hosts.live.values():
            if host.donor >= 0:
                host.left_alone()
            host.waits = False
        return
    donors = _donors(run)
    waiting: list[KnownHost] = []
    for host in hosts.live.values():
        joiners = [w for w in crew.workers.values() if w.host == host.number and w.stage is Stage.WAITING]
        if host.told is not None and not _followers(host, joiners):  # they are lost, or were let go
            host.donor, host.caught_up = -1, False
            if not _told(run, host):  # others may follow in their place
                host.told = None
        if host.donor >= 0 and host.donor not in donors:
            host.left_alone()
        if host.donor >= 0 and not host.caught_up and host.level >= max(run.version - 1, 0):
            host.caught_up = True
            run.follows.append(f"host {host.number} has caught up")
        follows = bool(joiners) and _to_follow(run, host, donors)
        run.summed = run.summed or follows
        host.waits = follows and not host.caught_up
        if follows:
            waiting.append(host)
    if crew.change is None and waiting and all(host.donor < 0 for host in waiting):
        _begin(run, waiting[0], donors, now)


def hushed(run: RunState, members: Sequence[int], now: float) -> bool:
    """The crew is quiet: are those who followed as far as their donor, and quiet as well? Else ask them to be."""
    crew, live = run.crew, run.hosts.live
    change = crew.change
    assert change is not None
    if change.quiet is None:
        change.quiet = now
    there = [live[number] for number in {crew.workers[number].host for number in members}]
    late = any(host.level < live[host.donor].level for host in there if host.donor in live)
    if late and now < change.quiet + run.limits.crew.join_grace:
        return False
    change.also = tuple(number for host in there for number in _told(run, host))
    crew.pause(now, since=change.quiet)
    return not crew.waited_for()


def follows(run: RunState, worker: Worker) -> bool:
    """Whether this worker was told to follow with its host, and is no member."""
    return bool(_followers(run.hosts.live[worker.host], [worker]))


def _told(run: RunState, host: KnownHost) -> list[int]:
    """Those who were told to follow and are still there; they may not know yet that they were let go since."""
    workers = run.crew.workers
    told = host.told.members if host.told is not None else ()
    return [number for number in told if number in workers and workers[number].host == host.number]


def _followers(host: KnownHost, workers: Sequence[Worker]) -> list[Worker]:
    """Those of these that were told to follow with their host, and are not members."""
    told = host.told.members if host.told is not None else ()
    return [w for w in workers if w.host == host.number and w.stage is Stage.WAITING and w.number in told]


def _donors(run: RunState) -> list[int]:
    """Hosts of the crew that hold the state, those that stay first."""
    there = {worker.host for worker in run.crew.driving()}
    able = [host for host in run.hosts.live.values() if host.number in there and host.holds]
    return [host.number for host in sorted(able, key=lambda host: (bool(host.leaving), host.number))]


def _to_follow(run: RunState, host: KnownHost, donors: Sequence[int]) -> bool:
    """Whether a host with workers that wait is to follow, or follows."""
    if run.drain is not None or run.finished or host.leaving or host.failed:
        return False
    if host.told is not None and host.donor < 0:  # whoever followed is still there, and not yet quiet
        return False
    if any(worker.host == host.number for worker in run.crew.driving()):
        return False
    behind = not host.holds or host.level < run.version - 1
    return host.donor >= 0 or (behind and bool(donors))


def _begin(run: RunState, host: KnownHost, donors: Sequence[int], now: float) -> None:
    crew = run.crew
    there = [w for w in crew.active() if w.host == host.number]
    joiners = [w for w in there if w.stage is Stage.WAITING]
    if len(joiners) < len(there) and now < min(w.sent for w in joiners) + run.limits.crew.join_grace:
        return
    if len(set(crew.where)) == 1 and not crew.summed:
        run.renew = f"host {host.number} is to follow"
    elif host.followed >= crew.generation:
        run.renew = f"host {host.number} is to follow anew"
    else:
        host.donor, host.followed = donors[0], crew.generation
        host.told = Install(
            crew.generation, [*crew.members, *(w.number for w in joiners)], [*crew.rows, *(w.row for w in joiners)],
            list(crew.drivers), [*crew.where, *(w.host for w in joiners)], {}, summed=crew.summed, donor=host.donor,
            servers=list(crew.servers), sync=crew.sync, sums_only=run.limits.sums_only, reached=crew.reached,
        )  # fmt: skip
        run.follows.append(f"host {host.number} follows host {host.donor} until it has caught up")
        for worker in joiners:
            crew.send(worker, host.told)
