"""What should be: compares it with what is, and orders the difference.

`reconcile` runs after every event. It looks at levels only and keeps no memory of its own, so it does not
matter which event led here, in which order events came, or whether one came twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from holdfast.control import catch_up, lane_balance, mode_change, slice_balance, state_holders
from holdfast.control.blame import told_together
from holdfast.control.membership import partitions, staffing
from holdfast.control.membership.hosts import spread
from holdfast.control.membership.roster import Stage, Worker, compact
from holdfast.control.protocol.commands import EndRun, FailRun
from holdfast.control.state import Result, RunState

__all__ = ["reconcile"]


def reconcile(run: RunState, now: float) -> None:
    """Order what is missing: the end, workers, the arena's weights, a change of generation."""
    if run.gather is not None:
        told = {failure.worker for failure in run.failures}
        if now >= run.gather or all(worker.number in told for worker in run.crew.active()):
            run.end(told_together(run.failures, run.crew.cast, run.limits.logs))
    elif run.running:
        for part in (_end, partitions.judge, staffing.fill, _welcome, catch_up.attend, _turn):
            if not run.over:
                part(run, now)


def _end(run: RunState, now: float) -> None:
    """End the run if there is nothing left to do."""
    crew = run.crew
    if run.drain is not None and not crew.generation:
        run.end(EndRun(f"ended before its first step ({run.drain})", {}, run.signal))
    elif run.lead is not None and all(worker.server for worker in crew.driving()):  # they need no workers to end
        ended = "the training has" if run.again else "the script has"
        reason = f"{ended} ended" if run.drain is None else f"ended early ({run.drain})"
        again = [*run.again.values()] if run.drain is None else []  # a loop that was left early is not over
        run.end(EndRun(reason, _result(run, run.lead), run.signal, again))
    elif not crew.generation and run.finished and all(w.stage is Stage.FINISHED for w in crew.workers.values()):
        run.end(EndRun("the script has ended without a training step", run.finished[min(run.finished)]))


def _result(run: RunState, lead: int) -> Result:
    """What the lead says. How stale pushes were, whoever has seen most of them says: that is counted at the primary."""
    seen = max(run.finished.values(), key=_counted)
    return {**run.finished[lead], **{name: value for name, value in seen.items() if name.startswith("staleness")}}


def _counted(result: Result) -> int:
    counts = result.get("staleness")
    return sum(counts) if isinstance(counts, list) else 0


def _welcome(run: RunState, now: float) -> None:
    """See to it that the arena is filled, and handed to everybody who is ready."""
    ready = sorted((w for w in run.crew.joining() if w.stage is Stage.READY), key=lambda w: w.number)
    if run.seeded:
        for worker in ready:
            worker.stage = Stage.WAITING
            run.crew.welcome(worker, now, seed=False)
    elif ready and run.seeder is None:
        if run.central or run.resumed:  # who fills it holds the state for good: a machine that was there first
            holder = min((host for host, most in run.room().items() if most), default=0)
            ready = [worker for worker in ready if worker.host == holder]
        for worker in ready[:1]:
            run.seeder = worker.number
            worker.stage = Stage.SEEDING
            if not run.resumed:
                run.follows.append("its weights become everybody's")
            run.crew.welcome(worker, now, seed=True)


def _turn(run: RunState, now: float) -> None:
    """Begin a change of generation if one is due, and complete it once all is quiet."""
    crew, hosts = run.crew, run.hosts
    holding = state_holders.holding(run)
    coming = crew.next_members(holding)
    able = any(crew.workers[number].host in holding for number in coming)  # the others get the state from there
    if not crew.generation:
        awaited = any(w.stage is not Stage.WAITING for w in crew.active())
        grace_over = now >= run.first_ready + run.limits.crew.join_grace
        if able and _hosts_are_there(run, coming) and (grace_over or not awaited):
            _install(run, coming, now)
        return
    if crew.change is None:
        here = tuple(m for m in crew.members if m not in run.finished)
        stop = run.drain is not None and not crew.stop and bool(here)
        turns = mode_change.wanted(run) != crew.sync and bool(here)
        stood = mode_change.stood(run)
        renew = run.renew if now >= crew.since + run.limits.crew.repeat else ""
        calm = not (stop or turns or stood or run.proposal or run.moving or (renew and here))
        if coming == here and calm:
            return
        if renew:
            run.follows.append(renew)
        crew.begin(now, stood)
    assert crew.change is not None
    quiet = not crew.waited_for()
    if quiet and not any(host.holds for host in hosts.live.values()):
        run.end(_bereft(run))
    elif quiet and able and catch_up.hushed(run, coming, now):
        if ahead := state_holders.ahead(run, coming):
            _start_anew(run, ahead)
        else:
            _install(run, coming, now)
    elif coming != crew.change.planned:
        crew.change.planned = coming
        whom = crew.cast.all(coming) if coming else "whoever comes first"
        run.follows.append(f"generation {crew.change.generation} with {whom}")


def _start_anew(run: RunState, ahead: Sequence[Worker]) -> None:
    """Replace those whose script is ahead of the state that is left."""
    for worker in ahead:
        run.crew.doom(worker, "its script is ahead of the state that is left")
    run.replacing = True
    them = run.crew.cast.all([worker.number for worker in ahead])
    are = "is" if len(ahead) == 1 else "are"
    run.follows.append(f"{them} {are} ahead of the state that is left, and {are} started anew")


def _hosts_are_there(run: RunState, coming: Sequence[int]) -> bool:
    """Whether as many hosts as were asked for can begin: each has a worker that waits, if it is to have one at all."""
    wanted = run.limits.hosts
    useful = sum(share > 0 for share in spread(run.wanted, run.room()).values())
    there = {run.crew.workers[number].host for number in coming}
    return len(run.hosts.staying()) >= wanted and len(there) >= min(wanted, useful)


def _bereft(run: RunState) -> FailRun:
    spared = "as soon as two hosts hold the state, the loss of one costs no step"
    if run.central and not run.limits.replicas:
        sync = run.modes[-1].sync
        spared = f"with sync = {sync} one host holds the state, unless --replicas 1 has another hold a copy"
    return FailRun(
        "ResourceError",
        f"The state of the run is lost at step {run.blame.step}: {run.bereft or 'the host that held it is gone'}, and "
        f"no host that is left had all of it. Start the run again; {spared}.",
    )


def _install(run: RunState, members: tuple[int, ...], now: float) -> None:
    crew = run.crew
    if run.proposal is not None and members == crew.members:
        drivers = run.proposal.drivers
    else:
        drivers = lane_balance.drivers_for(run.balance, _workers(run, members), run.limits.lanes)
    servers = tuple(number for number in members if crew.workers[number].server)
    if servers != crew.servers or not crew.owners:
        owners = slice_balance.owners_for(run.owning, servers, run.sizes)
    else:
        owners = run.moving.owners if run.moving is not None else crew.owners
    run.proposal = run.moving = None
    newest = [run.hosts.live[crew.workers[number].host].level for number in members]
    stop = 0
    if run.drain is not None:  # one number for all, beyond any step that somebody may have begun
        stop = crew.stop or 1 + max(run.version, *newest)
    primary = run.hosts.live[crew.best_primary(members)]
    if state_holders.went_back(run, primary):
        run.follows.append(
            f"host {primary.number} has the newest state that is left, at version {primary.level} in generation "
            f"{primary.of}: what was made after it is lost, and is made again"
        )
    reached = mode_change.reached(run, primary)
    turn = mode_change.before(run, newest)
    crew.install(
        now, members, drivers, stop=stop, owners=owners, summed=run.summed, sync=mode_change.wanted(run), turn=turn,
        reached=reached,
    )
    run.renew = ""
    for late in run.hosts.live.values():
        if late.donor in crew.sources:
            late.left_alone()  # its donor has missed a step itself
    run.balance = lane_balance.installed(run.balance, now, drivers, _workers(run, members), run.limits)
    run.owning = slice_balance.installed(run.owning, now, owners, servers, run.limits)
    run.follows.append(
        f"generation {crew.generation} begins at step {run.blame.step}, {_driving(drivers)}{_owning(run)}"
    )
    for host, source in crew.sources.items():
        run.follows.append(f"host {host} gets the state from host {source}")


def _workers(run: RunState, members: Sequence[int]) -> list[int]:
    return [number for number in members if not run.crew.workers[number].server]


def _driving(drivers: Sequence[int]) -> str:
    counts = Counter(drivers)
    if len(counts) > 8:
        return f"{len(counts)} workers drive {len(drivers)} lanes"
    parts = []
    for worker in counts:
        lanes = [lane for lane, driver in enumerate(drivers) if driver == worker]
        parts.append(f"worker {worker} drives lane{'s' * (len(lanes) > 1)} {compact(lanes)}")
    return ", ".join(parts)


def _owning(run: RunState) -> str:
    """Which servers own the parameters, or only sum, and how much of them where there are several."""
    crew = run.crew
    if not crew.servers:
        return ""
    does = ("own{} the parameters", "sum{} the gradients")[run.limits.sums_only].format("s" * (len(crew.servers) == 1))
    owned = f", {crew.cast.all(crew.servers)} {does}"
    if len(crew.servers) == 1 or not crew.owners:
        return owned
    shares, slices = slice_balance.shares(crew.owners, run.sizes), len(run.sizes)
    if slices < len(crew.servers):
        idle = [server for server in crew.servers if server not in shares]
        there = "there is 1 slice" if slices == 1 else f"there are {slices} slices"
        owned += f"; {there} of them, so {crew.cast.all(idle)} {'has' if len(idle) == 1 else 'have'} none"
        return f"{owned}, and --servers {slices} would do"
    parts = [f"{shares.get(server, 0.0):.0%}" for server in sorted(crew.servers)]
    if len(parts) > 4:  # their names are folded, too
        parts = [f"{min(shares.get(server, 0.0) for server in crew.servers):.0%} to {max(shares.values()):.0%}"]
    return f"{owned} ({', '.join(parts)})"
