"""What should be: compares it with what is, and orders the difference.

`reconcile` runs after every event. It looks at levels only and keeps no memory of its own, so it does not
matter which event led here, in which order events came, or whether one came twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from holdfast.coordinator import policy
from holdfast.coordinator.commands import EndRun, FailRun
from holdfast.coordinator.failures import told_together
from holdfast.coordinator.roster import Stage, compact, names
from holdfast.coordinator.state import RunState

__all__ = ["reconcile"]


def reconcile(run: RunState, now: float) -> None:
    """Order what is missing: the end, workers, the arena's weights, a change of generation."""
    if run.gather is not None:
        told = {failure.worker for failure in run.failures}
        if now >= run.gather or all(worker.number in told for worker in run.crew.active()):
            run.end(told_together(run.failures))
    elif run.running:
        for part in (_end, _fill, _welcome, _turn):
            if not run.over:
                part(run, now)


def _end(run: RunState, now: float) -> None:
    """End the run if there is nothing left to do."""
    crew = run.crew
    if run.drain is not None and not crew.generation:
        run.end(EndRun(f"ended before its first step ({run.drain})", {}))
    elif run.lead is not None and not crew.driving():
        reason = "the script has ended" if run.drain is None else f"ended early ({run.drain})"
        run.end(EndRun(reason, run.finished[run.lead]))
    elif not crew.generation and run.finished and all(w.stage is Stage.FINISHED for w in crew.workers.values()):
        run.end(EndRun("the script has ended without a training step", run.finished[min(run.finished)]))


def _target(run: RunState) -> int:
    """How many workers should drive lanes, or be on their way to."""
    crew = run.crew
    if run.lead is not None:
        return len(crew.active())
    if run.drain is not None and crew.driving():
        return sum(w.stage is Stage.MEMBER for w in crew.active())
    somebody = int(len(run.refused) < run.wanted)  # to end what the others left
    if run.drain is not None:
        return somebody
    target = run.wanted - len(run.refused) - len(run.finished)
    return max(target, somebody) if run.finished and crew.generation else max(target, 0)


def _fill(run: RunState, now: float) -> None:
    """Start workers that are missing, let go of those who are too many or have to go."""
    crew, target = run.crew, _target(run)
    active = crew.active()
    if len(active) > target:
        why = f"scaled down to {run.wanted}" if run.drain is None else "the run is ending"
        active.sort(key=lambda w: (w.stage is Stage.MEMBER, -w.number))  # joiners first, then the youngest
        for worker in active[: len(active) - target]:
            worker.leaving = why
        run.follows.append(f"{names([w.number for w in active[: len(active) - target]])} will leave")
    for worker in crew.joining():
        if worker.leaving and worker.stage is not Stage.SEEDING:  # who seeds writes; it goes when it is done
            crew.dismiss(worker, worker.leaving)
    started: list[int] = []
    while len(active) + len(started) < target and (new := crew.start()):
        started.append(new.number)
    if started:
        place = "" if not run.replacing else " in its place" if len(started) == 1 else " in their place"
        run.follows.append(f"{names(started)} start{'s' * (len(started) == 1)}{place}")
    if run.refused and not target and all(w.stage is Stage.REFUSED for w in crew.workers.values()):
        kind, why = next(iter(run.refused.values()))
        run.end(FailRun(kind, f"No worker is left that fits the run: {why}"))


def _welcome(run: RunState, now: float) -> None:
    """See to it that the arena is filled, and handed to everybody who is ready."""
    ready = sorted((w for w in run.crew.joining() if w.stage is Stage.READY), key=lambda w: w.number)
    if run.seeded:
        for worker in ready:
            worker.stage = Stage.WAITING
            run.crew.welcome(worker, now, seed=False)
    elif ready and run.seeder is None:
        run.seeder = ready[0].number
        ready[0].stage = Stage.SEEDING
        run.follows.append("its weights become everybody's")
        run.crew.welcome(ready[0], now, seed=True)


def _turn(run: RunState, now: float) -> None:
    """Begin a change of generation if one is due, and complete it once all is quiet."""
    crew = run.crew
    coming = crew.next_members()
    if not crew.generation:
        awaited = any(w.stage is not Stage.WAITING for w in crew.active())
        if coming and (not awaited or now >= run.first_ready + run.limits.join_grace):
            _install(run, coming, now)
        return
    if crew.change is None:
        here = tuple(m for m in crew.members if m not in run.finished)
        stop = run.drain is not None and not crew.stopping and bool(here)
        if coming == here and not stop and run.proposal is None:
            return
        crew.begin(now)
    assert crew.change is not None
    if coming and not crew.waited_for():
        _install(run, coming, now)
    elif coming != crew.change.planned:
        crew.change.planned = coming
        whom = names(coming) if coming else "whoever comes first"
        run.follows.append(f"generation {crew.change.generation} with {whom}")


def _install(run: RunState, members: tuple[int, ...], now: float) -> None:
    crew = run.crew
    if run.proposal is not None and members == crew.members:
        drivers = run.proposal.drivers
    else:
        drivers = policy.drivers_for(run.balance, members, run.limits.lanes)
    run.proposal = None
    crew.install(now, members, drivers, stop=run.drain is not None)
    run.balance = policy.installed(run.balance, now, drivers, members, run.limits)
    run.follows.append(f"generation {crew.generation} begins at step {run.blame.step}, {_driving(drivers)}")


def _driving(drivers: Sequence[int]) -> str:
    counts = Counter(drivers)
    if len(counts) > 8:
        return f"{len(counts)} workers drive {len(drivers)} lanes"
    parts = []
    for worker in counts:
        lanes = [lane for lane, driver in enumerate(drivers) if driver == worker]
        parts.append(f"worker {worker} drives lane{'s' * (len(lanes) > 1)} {compact(lanes)}")
    return ", ".join(parts)
