"""How the way of keeping step changes: which mode is wanted, what stands against it, and when it counts. Pure.

Every generation has one mode (`Reached`), the same on all its hosts. Another one that is wanted is said with it; then
its members go to a step boundary and stand there (see `train.loop.boundary`). When all of them do, nothing is under way
anywhere: that generation ends, and the next one has the new mode. Who is lost in between takes nothing along; the state
is the same at a boundary, whatever the mode, but for local steps: see `dataplane.relaxed.inner_state`.
"""

from __future__ import annotations

from holdfast.control import state_holders
from holdfast.control.membership.hosts import KnownHost
from holdfast.control.protocol.events import SyncRequested
from holdfast.control.protocol.messages import AtBoundary, Reached, StaysExact
from holdfast.control.state import RunState
from holdfast.core.sync.modes import Mode, parse
from holdfast.core.sync.weights import parted

__all__ = ["before", "centralizes", "reached", "requested", "stays_exact", "stood", "wanted"]


def requested(run: RunState, event: SyncRequested) -> None:
    """Somebody wants lanes to keep step in another way."""
    asked = f"sync = {event.sync} was asked for"
    if why := _against(run, event):
        run.happened.append(f"{asked}, but {why}: still {run.sync}")
        return
    sync = parse(event.sync).name
    if sync == run.sync:
        when = "" if run.modes[-1].sync == run.sync else ", which is on its way"
        run.happened.append(f"{asked}, as before{when}")
    else:
        when = "the end of the round at hand" if parse(run.modes[-1].sync).rounds else "the next step boundary"
        run.happened.append(f"{asked} instead of {run.sync}; it counts from {when} on")
        run.sync = sync


def stays_exact(run: RunState, event: StaysExact) -> None:
    """The script does what only `exact` has: the mode has to stay."""
    run.only_exact = event.why


def _against(run: RunState, event: SyncRequested) -> str:
    """Why the mode cannot become this one; empty where it can."""
    try:
        wanted, present = parse(event.sync, run.limits.lanes), parse(run.sync)
    except ValueError as error:
        return str(error)
    if wanted == present:
        return ""
    if run.drain is not None or run.finished:
        return "the run is ending"
    if not run.crew.generation:
        return "the run has not begun its first step; ask again then"
    if run.only_exact and not wanted.exact:
        return run.only_exact
    if run.limits.sums_only:
        return "with optimizer = workers servers only sum, and in other modes they have to run the optimizer themselves"
    if why := _cannot(run, wanted):
        return why
    need, what = _needs(run, wanted, present)
    if need > event.free and 0 in run.hosts.live:
        return f"{what} {need / 2**20:,.1f} MiB, and only {event.free / 2**20:,.1f} MiB are {event.where}"
    return ""


def _cannot(run: RunState, wanted: Mode) -> str:
    """Why the optimizer cannot do what a mode asks of it; empty where it can."""
    what = parted(wanted, run.limits.lanes)
    if run.first is None or not run.first.wholly or not what:
        return ""
    return f"{what}, which is a step with a smaller lr, and {run.first.wholly}"


def _needs(run: RunState, wanted: Mode, present: Mode) -> tuple[int, str]:
    """How much memory a mode needs that the present one has not, and what for."""
    if run.first is None or (wanted.rounds and present.rounds):
        return 0, ""
    lanes, push, state = run.limits.lanes, run.first.push_bytes, run.first.state_bytes
    need = 0 if wanted.exact else lanes * push
    if wanted.rounds:  # each lane's state twice, and the owners' momentum
        return need + 2 * lanes * state + push, "its pushes and the lanes' optimizers need"
    if present.rounds and parse(run.modes[0].sync).rounds:  # the owners may not have had a state like theirs before
        return need + state, "its pushes and the owners' optimizer need" if need else "the owners' optimizer needs"
    return need, "its pushes need"


def wanted(run: RunState) -> str:
    """How lanes are to keep step. In a run that is to end, or has for some, as they do: it ends as it is.

    Whoever stood for another mode then would wait for ever: those who have ended do not stand.
    """
    return run.sync if run.drain is None and not run.finished else run.modes[-1].sync


def _pending(run: RunState) -> bool:
    """Is the mode to become another one?"""
    return wanted(run) != run.modes[-1].sync


def stood(run: RunState) -> AtBoundary | None:
    """The step boundary at which all members stand now, for the sake of a change; None where not all do."""
    crew = run.crew
    if not _pending(run) or crew.change is not None:
        return None
    said = [worker.stands if (worker := crew.workers.get(number)) else None for number in crew.members]
    places = {(one.version, one.step) if one and one.generation == crew.generation else None for one in said}
    return said[0] if len(places) == 1 and None not in places else None


def centralizes(run: RunState) -> bool:
    """Is the change under way one to a mode in which one host holds the state?"""
    change = run.crew.change
    return change is not None and change.stood is not None and _pending(run) and not parse(run.sync).exact


def reached(run: RunState, primary: KnownHost) -> Reached:
    """The mode of the generation that is to be installed: everybody is quiet, and `primary` has the newest state."""
    change = run.crew.change
    at = change.stood if change is not None else None
    if state_holders.precedes(run, primary):  # all that held the state since are lost
        serial, left = run.modes[-1].serial + 1, run.modes[-1].sync
        while state_holders.precedes(run, primary):
            run.modes.pop()
        run.begun[serial] = run.begun.get(run.modes[-1].serial, 0)
        run.modes[-1] = Reached(serial, run.modes[-1].sync, run.modes[-1].version, run.modes[-1].step)
        run.follows.append(f"the state is from before sync = {left}: lanes keep step by {run.modes[-1].sync} again")
    elif at is not None and _pending(run) and at.version == primary.level and not state_holders.went_back(run, primary):
        carried = _carried(parse(run.modes[-1].sync), parse(run.sync))
        run.modes.append(Reached(run.modes[-1].serial + 1, run.sync, at.version, at.step))
        run.begun[run.modes[-1].serial] = run.crew.generation + 1
        run.follows.append(f"lanes keep step by {run.sync} from step {at.step} on{carried}")
    return run.modes[-1]


def _carried(before: Mode, after: Mode) -> str:
    """What becomes of the optimizer's state. Between modes without local steps, nothing."""
    if before.rounds == after.rounds:
        return ""
    if after.rounds:
        return ", each with an optimizer of its own, whose state is the owners'"
    return ", with the mean of the lanes' optimizer states; the outer momentum is given up"


def before(run: RunState, levels: list[int]) -> int:
    """The version before which lanes stand for the sake of a change, if they keep step exactly or make local steps;
    0: there is none.

    One number for all, beyond any step that somebody may have begun; as it was, while the same mode is wanted.
    """
    if not _pending(run):
        return 0
    crew = run.crew
    return crew.turn if crew.turn and crew.sync == run.sync else 1 + max(run.version, *levels)
