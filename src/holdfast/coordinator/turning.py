"""How the way of keeping step changes: which mode is wanted, what stands against it, and what was reached. Pure.

A wanted mode is said with every generation until the workers say that it counts; they change it by themselves, at a
step boundary (see `train.turning`).
"""

from __future__ import annotations

from holdfast.coordinator import messages
from holdfast.coordinator.events import SyncRequested
from holdfast.coordinator.state import Reached, RunState
from holdfast.core.clocks import parse

__all__ = ["before", "requested", "turned"]


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
        run.happened.append(f"{asked} instead of {run.sync}; it counts from the next step boundary on")
        run.sync, run.asked = sync, True


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
    if wanted.rounds or present.rounds:
        return (
            "with local:H every lane has an optimizer of its own and the owners another one, so there is no state that "
            "both could go on from; start a run with the mode that is wanted"
        )
    if run.limits.sums_only:
        return "with optimizer = workers servers only sum, and in other modes they have to run the optimizer themselves"
    if run.limits.listening or run.hosts.ever > 1:
        return "the run is, or may be, on several machines, and there the mode cannot change while it is going"
    need = 0 if wanted.exact or run.first is None else wanted.depth * run.limits.lanes * run.first.push_bytes
    if need > event.free:
        return f"its pushes need {need / 2**20:,.1f} MiB, and only {event.free / 2**20:,.1f} MiB are {event.where}"
    return ""


def before(run: RunState, levels: list[int]) -> int:
    """The version before which lanes that keep step exactly change the mode; 0: nobody has asked for any change.

    One number for all, beyond any step that somebody may have begun. Said again as it was while the same mode is
    wanted; also when that seems to be reached: workers may have gone on to another one that we have not heard of.
    """
    crew = run.crew
    if not run.asked:
        return 0
    return crew.turn if crew.turn and crew.sync == run.sync else 1 + max(run.blame.step, *levels)


def turned(run: RunState, event: messages.Turned) -> None:
    """The mode has changed. Every worker says so; the first one is news."""
    if event.serial > run.modes[-1].serial:
        run.modes.append(Reached(event.serial, event.step, event.sync))
        run.happened.append(f"lanes keep step by {event.sync} from step {event.step} on")
