"""How many workers there should be, and on which hosts, against who is there: orders the difference. Pure.

Part of `reconcile`; like all of it, it looks at levels only. The rules of placing are told in `hosts`; besides:

* who is too many leaves, joiners first, then the youngest, and rather on hosts that have more than their share;
* before the first generation, when moving costs little, hosts keep to their even share;
* servers are on one host, beside its workers, as many as are wanted: where the state is, if one host holds it, else
  on host 0, or the first that has workers;
* with several hosts, somebody stays on, or comes to, one that holds the newest state (`state_holders`);
* a host that wants to leave keeps its workers until another one holds the state; then they leave, and it is let go. So
  is a host none of whose workers fits the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from holdfast.control import state_holders
from holdfast.control.membership.crew import ALIVE
from holdfast.control.membership.hosts import spread
from holdfast.control.membership.roster import Stage, Worker
from holdfast.control.protocol.commands import FailRun, ReleaseHost
from holdfast.control.state import RunState

__all__ = ["fill"]


def fill(run: RunState, now: float) -> None:
    """Start workers that are missing, let go of those who are too many or have to go."""
    crew, hosts = run.crew, run.hosts
    _see_off(run)
    room = run.room()
    active = [w for w in crew.active() if w.host in room and not w.server]
    target = _target(run, active, room)
    if not crew.generation and len(room) > 1:
        room = spread(target, room, [n for n in room if hosts.live[n].holds or n == run.seeding()])
    if going := _surplus(run, active, room, target):
        why = f"scaled down to {run.wanted}" if len(active) > target else "its place is on another host now"
        why = why if run.drain is None else "the run is ending"
        for worker in going:
            worker.leaving = why
        run.follows.append(f"{crew.cast.all([w.number for w in going])} will leave")
        active = [w for w in active if not w.leaving]
    missing = _missing_servers(run)
    for worker in crew.joining():
        if worker.leaving and worker.stage is not Stage.SEEDING:  # who seeds writes; it goes when it is done
            crew.dismiss(worker, worker.leaving)
    started = _start(run, active, room, target)
    _serve(run, missing)
    if run.replacing and not started and (spent := [n for n in room if hosts.live[n].spent]):
        run.follows.append(f"nobody can take the place of who is lost{hosts.on(spent)}")
    if _exhausted(run):
        run.end(run.blame.untried() or FailRun(
            "CrewLost",
            f"No worker is left at step {run.blame.step}, and nobody can take their place: all that were started are "
            f"gone. Look at the ends of {run.limits.logs}/worker-*.log, and start the run again.",
        ))
    elif run.refused and _hopeless(run, target):
        first = next(iter(run.refused.values()))
        able = "can go on" if first.kind == "ScriptFailed" else "fits the run"
        run.end(FailRun(first.kind, f"No worker is left that {able}: {first.why}"))


def _target(run: RunState, active: Sequence[Worker], room: Mapping[int, int]) -> int:
    """How many workers should drive lanes, or be on their way to."""
    if run.lead is not None:
        return len(active)
    if run.drain is not None and any(not w.server for w in run.crew.driving()):
        return sum(w.stage is Stage.MEMBER for w in active)
    somebody = int(sum(room.values()) > 0)  # to end what the others left
    if run.drain is not None:
        return somebody
    done = sum(host in run.hosts.live for host in run.ended_on.values())
    target = min(sum(room.values()), run.limits.lanes) - done
    return max(target, somebody) if run.finished and run.crew.generation else max(target, 0)


def _see_off(run: RunState) -> None:
    """Let go of hosts that want to leave, or that have no worker who fits: first their workers, then themselves."""
    crew, hosts = run.crew, run.hosts
    if not run.refused and not any(host.leaving for host in hosts.live.values()):
        return
    refused = {refusal.host: refusal.why for refusal in run.refused.values()}
    for host in list(hosts.live.values()):
        if host.leaving and state_holders.can_go(run, host):
            why = host.leaving
            for worker in crew.active():
                if worker.host == host.number:
                    worker.leaving = why
        elif host.number in refused and not host.holds and len(hosts.live) > 1 and not run.room().get(host.number):
            why = refused[host.number]
        else:
            continue
        if not any(worker.host == host.number for worker in crew.workers.values()):
            del hosts.live[host.number]
            crew.out.append(ReleaseHost(host.number, why))
            run.follows.append(f"host {host.number} is let go")
            if host.number in crew.where and crew.change is None:
                run.renew = run.renew or f"host {host.number} is not there any more"


def _surplus(run: RunState, active: Sequence[Worker], room: Mapping[int, int], target: int) -> list[Worker]:
    """Who is too many."""
    going: list[Worker] = []
    if len(active) <= target and (run.crew.generation or len(room) == 1):
        return going
    taken = Counter(w.host for w in active)
    several = len(run.hosts.live) > 1
    holding = state_holders.holding(run) if several else frozenset()
    holders = len(state_holders.holders(run)) if several else 0
    left = sorted(active, key=lambda w: (w.stage is Stage.MEMBER, -w.number))
    while True:
        full = {host for host in taken if taken[host] > room[host]}
        if len(left) <= target and (not full or run.crew.generation):
            return going
        able = [w for w in left if holders > 1 or w.host not in holding]
        worker = next((w for w in able if w.host in full), able[0] if able and len(left) > target else None)
        if worker is None:
            return going
        left.remove(worker)
        going.append(worker)
        taken[worker.host] -= 1
        holders -= worker.host in holding


def _start(run: RunState, active: Sequence[Worker], room: Mapping[int, int], target: int) -> bool:
    """Order workers while there are too few, or nobody from whom the others could get the state."""
    crew, hosts = run.crew, run.hosts
    holding = state_holders.holding(run) if len(hosts.live) > 1 else frozenset()
    bereft = bool(holding) and not state_holders.holders(run)
    if len(active) >= target and not (bereft and active):
        return False
    taken = Counter(w.host for w in active)
    finished = Counter(run.ended_on.values())
    left = {number: most - finished[number] for number, most in room.items()}
    if sum(max(most, 0) for most in left.values()) >= target:
        room = left
    started: list[Worker] = []
    while taken.total() < target or (bereft and taken.total()):
        able = (
            state_holders.startable_holders(run)[:1]
            if bereft
            else [number for number in room if taken[number] < room[number]]
        )
        host = min(able, key=lambda number: (taken[number], number), default=None)
        new = crew.start(host) if host is not None else None
        if new is None:
            break
        started.append(new)
        taken[new.host] += 1
        bereft = bereft and new.host not in holding
    if started:
        place = "" if not run.replacing else " in its place" if len(started) == 1 else " in their place"
        who, where = crew.cast.all([w.number for w in started]), hosts.on(w.host for w in started)
        run.follows.append(f"{who} start{'s' * (len(started) == 1)}{place}{where}")
    return bool(started)


def _missing_servers(run: RunState) -> int:
    """How many servers have to be started; those who are too many will leave."""
    host = run.serving()
    if host is None or run.drain is not None or run.finished:
        return 0
    servers = sorted((w for w in run.crew.active() if w.server), key=lambda w: w.number)
    there = [server for server in servers if server.host == host]
    for server in servers:
        if server.host != host:
            server.leaving = "its place is on another host now"
        elif server in there[max(run.servers, 0) :]:
            server.leaving = f"scaled down to {run.servers} servers"
    if going := [server.number for server in servers if server.leaving]:
        run.follows.append(f"{run.crew.cast.all(going)} will leave")
    return run.servers - len(there)


def _serve(run: RunState, missing: int) -> None:
    """Start servers. Who is late is taken in later; until then the workers own its share."""
    host = run.serving()
    started = [run.crew.start(host, server=True) for _ in range(missing) if host is not None]
    if new := [server.number for server in started if server is not None]:
        run.follows.append(f"{run.crew.cast.all(new)} start{'s' * (len(new) == 1)}{run.hosts.on([host or 0])}")


def _exhausted(run: RunState) -> bool:
    """Whether nobody is left, and no host can start anybody."""
    hosts, crew = run.hosts.live.values(), run.crew
    if not hosts or not all(host.spent for host in hosts):
        return False
    return not any(w.stage in ALIVE for w in crew.workers.values())


def _hopeless(run: RunState, target: int) -> bool:
    """Whether no worker can be had that fits: none at all, or none where the state of the run is."""
    crew, hosts = run.crew, run.hosts
    if len(hosts.live) > 1 and any(host.holds for host in hosts.live.values()) and not state_holders.holding(run):
        return True
    return not target and all(w.stage is Stage.REFUSED or w.server for w in crew.workers.values())
