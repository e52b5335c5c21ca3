"""What a worker does next within a step: one pure function over what the board shows.

The board (in shared memory on one host) shows, for everybody to read:

* for each lane the newest *slot*: a finished partial sum of `span` lanes that starts at this lane,
  for one step. A slot outlives the worker that wrote it;
* for each member the newest step at which it *arrived*: it computes no more units of that step, and has left the
  step before, so sums may take the place of the last step's;
* for each member the newest step that it *closed*: it runs no more user code of that step, so parameters may change
  under it. Where a step has no code between its units and its end (`BoardView.closed` is None), arriving closes it;
* for each slice the *version* it stands at (and, in steps with clipping, the version its gradient
  sum stands at).

A step `t` takes every slice from version `t` to `t + 1`, in this order and never otherwise:

    compute my uncovered lanes -> arrive -> (all lanes covered, all arrived) -> [sum my slices ->
    all summed -> [leave the units; the script's own code; close -> all closed]] -> finish my slices ->
    all slices at t + 1 -> advance

So no slice moves before every lane of the step lies complete in shared memory. Whoever dies, dies
with nothing that is not either published or computable again from parameters at version `t`.

**Several hosts.** Each host has such a board of its own, with slots, sums, parameters and optimizer state; what
others need is carried to them (`dataplane.wire.session`). A slice is summed at its *home* host, from the partial sums
of all hosts, and the sum is carried to every other host. Each host then finishes all slices by itself:

    compute -> arrive -> [gather: merge what local workers have of slices that are summed elsewhere] -> sum the
    covered slices that are at home here, once all members of all hosts have arrived -> (all sums and the facts of
    all lanes are here) -> [leave, close] -> (all local members have arrived and closed) -> finish my slices ->
    all slices of my host at t + 1 -> advance

The same on one host where servers only sum (`Place.summer`), and its workers finish.

So a host stands at version `t` complete, or has all it takes to complete `t + 1` alone; and since no gradients of step
`t + 1` are summed before every host has come that far, no host is ever more than one step behind another.

Only this module says when a step may be finished; the simulation and the real worker both call it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.core.tree import Node, uncovered
from holdfast.errors import listed

__all__ = [
    "Action",
    "Advance",
    "Arrive",
    "BoardView",
    "Close",
    "Compute",
    "Finish",
    "Gather",
    "Leave",
    "Quiesce",
    "StepView",
    "Sum",
    "Wait",
    "next_action",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Quiesce:
    """Touch nothing, tell the coordinator, wait for the next generation."""


@dataclass(frozen=True, slots=True)
class Compute:
    """Compute the units of these lanes, one after the other, and publish the gradient of each.

    Nobody else may compute them in this generation, and nothing they follow from moves before I arrive: so there is
    nothing to decide between two of them, unless the coordinator asks for quiet.
    """

    lanes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Arrive:
    """Mark that this worker computes no more units of this step."""


@dataclass(frozen=True, slots=True)
class Gather:
    """Merge what the workers of this host have of these slices, to be sent to their homes as one partial sum."""

    slices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sum:
    """Sum these slices of the gradient, with their norms in steps that clip (on one host: only in those)."""

    slices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Leave:
    """The gradient of the whole step is here: go on with the script's code between the units and the step's end."""


@dataclass(frozen=True, slots=True)
class Close:
    """Mark that this worker has no more user code to run for this step."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Finish the tree for these slices, run the optimizer on them, publish the new version."""

    slices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do until one of these workers has done its part."""

    workers: tuple[int, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Advance:
    """The step is complete: go on to the next one."""


_HELD = Wait((), "the copy of the state that the step begins with")

Action = Quiesce | Compute | Arrive | Gather | Sum | Leave | Close | Finish | Wait | Advance


class StepView(NamedTuple):
    """Where a worker stands: who it is, and what its generation gives it."""

    worker: int
    step: int
    driver: Sequence[int]  #: lane -> worker that drives it in this generation
    owner: Sequence[int]  #: slice -> worker (of my host) that owns it in this generation
    members: Sequence[int]
    on_host: Sequence[int] = ()  #: the members on my host, where there are several hosts
    home: Sequence[bool] | None = None  #: slice -> is it summed on my host; None where steps are finished without sums
    summer: Sequence[int] = ()  #: slice -> worker of my host that merges and sums it, where that is not its owner
    closing: bool = True  #: the script's code of this step is through; False: it still has code between units and end


class BoardView(NamedTuple):
    """What everybody can see. Lanes that have no samples in this step are not in `lanes`."""

    lanes: Sequence[int]  #: lanes that have work in this step
    nodes: Sequence[Node]  #: complete partial sums published for this step
    arrived: Mapping[int, int]  #: member -> newest step it arrived at
    versions: Sequence[int]  #: slice -> version
    summed: Sequence[int] | None  #: slice -> version of its gradient sum; None where steps are finished without sums
    pausing: bool  #: the coordinator asked for quiet
    covered: Sequence[int] = ()  #: several hosts: slices at home here, whose partial sums of all lanes have come
    gathered: Sequence[int] | None = None  #: slice -> version of this host's merged partial sum; None: nothing to merge
    unknown: Sequence[int] = ()  #: several hosts: lanes of which we do not know what they gave besides gradients
    closed: Mapping[int, int] | None = None  #: member of my host -> newest step it closed; None: arriving closes it
    held: bool = False  #: the state that this step begins with is being copied, and must stand still


def next_action(place: StepView, board: BoardView) -> Action:
    """Say what `place.worker` does next. Total: every board has exactly one answer."""
    if board.pausing:
        return Quiesce()
    step, me = place.step, place.worker
    if all(version > step for version in board.versions):
        return Advance()
    if place.home is not None:
        return _among_hosts(place, board, place.home)
    action = _compute(place, board, uncovered(board.lanes, board.nodes)) or _await_arrival(place, board, place.members)
    if action is not None:
        return action
    if board.summed is not None:
        mine = tuple(s for s, at in enumerate(board.summed) if at <= step and place.owner[s] == me)
        if mine:
            return _HELD if board.held else Sum(mine)
        others = tuple(sorted({place.owner[s] for s, at in enumerate(board.summed) if at <= step}))
        if others:
            return Wait(others, "their part of the gradient")
    return _close(place, board, place.members) or _finish(place, board)


def _among_hosts(place: StepView, board: BoardView, home: Sequence[bool]) -> Action:
    if not all(at > place.step for at in board.summed or ()):
        return _sum_among_hosts(place, board, home)
    # All sums are here: no gradient of others matters any more for this step. Where a host was lost before it could
    # say what its lanes gave besides them (loss, buffers), whoever drives the lane now computes it again.
    if mine := _driven(place, board.unknown):
        return Compute(mine)
    if board.arrived.get(place.worker, -1) < place.step:
        return Arrive()
    if board.closed is None and (waits := _await_arrival(place, board, place.on_host)):
        return waits
    if board.unknown:
        return Wait(_drivers(place, board.unknown), f"what lanes {listed(board.unknown, 8)} gave besides gradients")
    return _close(place, board, place.on_host) or _finish(place, board)


def _sum_among_hosts(place: StepView, board: BoardView, home: Sequence[bool]) -> Action:
    step, me = place.step, place.worker
    missing = [lane for lane in uncovered(board.lanes, board.nodes) if place.driver[lane] in place.on_host]
    if action := _compute(place, board, missing):
        return action
    summer = place.summer or place.owner
    mine = [s for s, at in enumerate(board.summed or ()) if at <= step and summer[s] == me]
    if board.gathered is not None:
        rest = tuple(s for s in mine if not home[s] and board.gathered[s] <= step)
        if rest:
            return Gather(rest)
    if waits := _await_arrival(place, board, place.members):
        return waits
    ready = tuple(s for s in mine if home[s] and s in board.covered)
    if ready:
        return _HELD if board.held else Sum(ready)
    elsewhere = tuple(member for member in place.members if member not in place.on_host)
    late = {summer[s] for s, at in enumerate(board.summed or ()) if at <= step and home[s]} - {me}
    whom = (*elsewhere, *sorted(late)) or tuple(place.members)
    return Wait(whom, f"gradients and sums of {'the other hosts' if elsewhere else 'the others'}")


def _compute(place: StepView, board: BoardView, missing: Sequence[int]) -> Action | None:
    """What there is to do while lanes are missing: mine, then my arrival, then waiting for the others' lanes."""
    if mine := _driven(place, missing):
        return Compute(mine)
    if board.arrived.get(place.worker, -1) < place.step:
        return Arrive()
    return Wait(_drivers(place, missing), f"the gradients of lanes {listed(missing, 8)}") if missing else None


def _await_arrival(place: StepView, board: BoardView, of: Sequence[int]) -> Wait | None:
    absent = tuple(member for member in of if board.arrived.get(member, -1) < place.step)
    return Wait(absent, f"their arrival at step {place.step}") if absent else None


def _close(place: StepView, board: BoardView, of: Sequence[int]) -> Leave | Close | Wait | None:
    """What is between the step's gradient and its end, where the script has code there."""
    if board.closed is None:
        return None
    if not place.closing:
        return Leave()
    if board.closed.get(place.worker, -1) < place.step:
        return Close()
    open_ = tuple(member for member in of if board.closed.get(member, -1) < place.step)
    return Wait(open_, f"the end of their step {place.step}") if open_ else None


def _finish(place: StepView, board: BoardView) -> Finish | Wait:
    left = [s for s, at in enumerate(board.versions) if at <= place.step]
    mine = tuple(s for s in left if place.owner[s] == place.worker)
    if mine:
        return _HELD if board.held else Finish(mine)
    return Wait(tuple(sorted({place.owner[s] for s in left})), "their slices of the new parameters")


def _driven(place: StepView, lanes: Sequence[int]) -> tuple[int, ...]:
    return tuple([lane for lane in lanes if place.driver[lane] == place.worker])


def _drivers(place: StepView, lanes: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted({place.driver[lane] for lane in lanes}))
