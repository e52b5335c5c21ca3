"""Capture: what of an arena goes into a checkpoint, and how it comes back into one. No torch.

A checkpoint has the sections of the state, by name, and the board's words of it. So it does not matter to it in which
order an arena is laid out, nor how many workers there were.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from holdfast.checkpoint.content import Content, RunFacts, Script, StateEntry, Tensor
from holdfast.checkpoint.dtypes import DTYPES
from holdfast.checkpoint.reader import Checkpoint
from holdfast.dataplane.memory import board as cells
from holdfast.dataplane.memory.arena_view import ArenaView
from holdfast.dataplane.memory.manifest import Manifest
from holdfast.dataplane.memory.results import NESTED
from holdfast.dataplane.memory.sections import family
from holdfast.dataplane.memory.snapshot import Snapshot, SnapshotRoom, no_clocks, put_sections, take
from holdfast.dataplane.wire.primary_sync import PrimarySync, inherit
from holdfast.errors import OtherState

__all__ = [
    "BOARD", "CLOCKS", "Progress", "State", "Taken", "content", "progress", "put_state", "restore", "state_of",
    "take_state",
]  # fmt: skip

#: In the place of a section's name: what the board holds of the state; and how far lanes were, in relaxed modes.
BOARD, CLOCKS = "board", "clocks"


class Progress(NamedTuple):
    """How far a run is."""

    step: int
    epoch: int
    samples: int
    loss: float
    serial: int  #: of the way in which lanes keep step


class Taken(NamedTuple):
    """A state that was copied, and what its bytes are."""

    manifest: Manifest
    snapshot: Snapshot
    at: Progress


class State(NamedTuple):
    """A state that is to be put into an arena."""

    sections: Mapping[str, memoryview]
    words: memoryview
    clocks: bytes
    ended: bool  #: its run had ended: what came after its last loop counts as not made
    where: str  #: it comes from


def take_state(
    view: ArenaView, room: SnapshotRoom, ring: Callable[[], None], stopped: Callable[[], bool], *, still: bool
) -> Taken | None:  # fmt: skip
    """Copy the state at one of the next versions, or the one where all stands `still`; None where it was `stopped`."""
    clocks = PrimarySync(view).cut_now if view.manifest.relaxed else no_clocks
    snapshot = take(view, room, ring, stopped, clocks, still=still)
    return None if snapshot is None else Taken(view.manifest, snapshot, progress(view, snapshot.version))


def content(
    taken: Taken, facts: RunFacts, script: Script, config: dict[str, Any], control: dict[str, Any]
) -> Content:  # fmt: skip
    """What goes into a checkpoint of this state."""
    manifest, snapshot, _ = taken
    tensors = {name: _tensor(manifest, name, data) for name, data in snapshot.sections.items()}
    tensors[BOARD] = Tensor("uint8", (len(snapshot.words),), snapshot.words)
    tensors[CLOCKS] = Tensor("uint8", (len(snapshot.clocks),), snapshot.clocks)
    state = [
        StateEntry(
            entry.name, entry.dtype, tuple(entry.shape), entry.section,
            entry.begin + (snapshot.version % 2 * manifest.buffers_size if entry.section == "buffers" else 0),
        )
        for entry in manifest.model
    ]  # fmt: skip
    return Content(facts=facts, script=script, config=config, control=control, state=state, tensors=tensors)


def state_of(checkpoint: Checkpoint, *, ended: bool) -> State:
    """The state in a checkpoint. Raises DamagedCheckpoint: its bytes are not those that were written."""
    names = [name for name in checkpoint.manifest.tensors if name not in (BOARD, CLOCKS)]
    sections = {name: checkpoint.read(name) for name in names}
    return State(sections, checkpoint.read(BOARD), bytes(checkpoint.read(CLOCKS)), ended, str(checkpoint.path))


def restore(checkpoint: Checkpoint, view: ArenaView, *, ended: bool = False) -> int:
    """Put the state of a checkpoint into an arena: see `put_state`. Raises DamagedCheckpoint besides."""
    return put_state(state_of(checkpoint, ended=ended), view)


def put_state(state: State, view: ArenaView) -> int:
    """Put a state into an arena that a worker has laid out; returns its version.

    Raises:
        OtherState: it is not a state of what the worker has built.
    """
    theirs = {name: section.nbytes for name, section in state.sections.items()}
    ours = {name: view.manifest.sections[name][1] for name in view.manifest.durable()}
    if theirs != ours:
        raise OtherState(state.where, _differing(theirs, ours))
    if len(state.words) != len(view.board.state_words()):
        here = len(view.board.state_words())
        raise OtherState(state.where, f"its board has {len(state.words)} bytes, and {here} here")
    put_sections(view, state.sections)
    version = view.board.land_state(state.words)
    if state.ended:
        _forget_end(view)
    if state.clocks:
        inherit(view, state.clocks)
        PrimarySync(view).pushes.guard(None)  # there is no replica that holds less
    return version


def _forget_end(view: ArenaView) -> None:
    following = (view.board.rewind_op() // NESTED + 1) * NESTED  # what is inside of that loop stays
    for op in view.past.since(following - 1):
        view.past.drop(op)
    rows = view.section("evaluation")
    rows[:] = bytes(len(rows))  # of evaluations with these numbers


def progress(view: ArenaView, version: int) -> Progress:
    """How far the run is at a version that is complete."""
    board = view.board
    facts, pace = board.step_facts(version), board.pace()
    since, serial = (0, 0) if pace is None else (pace.version - pace.step, pace.serial)
    step = version - since - facts.extra
    if view.manifest.relaxed:  # versions are parts of steps
        step = max(board.cell(row, cells.R_STEP) for row in range(board.num_rows))
    return Progress(step, board.epoch()[0], facts.samples, facts.loss, serial)


def _tensor(manifest: Manifest, name: str, data: memoryview) -> Tensor:
    kind, declared = family(name), {entry.section: entry.dtype for entry in manifest.model}
    dtype = kind.numbers or manifest.kinds.get(name) or declared.get(name) or "uint8"
    if dtype == "DTYPE":
        dtype = name.rpartition("/")[2]
    if dtype not in DTYPES or len(data) % DTYPES[dtype].size:
        dtype = "uint8"
    return Tensor(dtype, (len(data) // DTYPES[dtype].size,), data)


def _differing(theirs: dict[str, int], ours: dict[str, int]) -> str:
    names = [name for name in {**theirs, **ours} if theirs.get(name) != ours.get(name)]
    told = [f"{name} ({theirs.get(name, 'none')} bytes there, {ours.get(name, 'none')} here)" for name in names[:10]]
    return ", ".join(told) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
