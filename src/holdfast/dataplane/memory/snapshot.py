"""Snapshots: the state of a run at one version, taken from an arena and put into one. No torch.

A state enters an arena in one way, whether it comes from another host or from a disk: its sections are put in place
(`put_sections`) while the arena counts as empty, and `Board.land_state` makes them real.

In mode `exact` a snapshot is taken while the crew goes on: the host's owners are told at which version they are to
stand (`Board.hold`), at the present one while lanes of its step are missing, else at the next. Units of that step are
computed meanwhile, so what it costs is what the copy takes longer than they do. What a script does between steps
(settings, evaluations, what it keeps) is not held up; those sections are small, and are copied until they have not
changed meanwhile. In relaxed modes owners stand likewise: they decide on no commit set beyond that version, and pushes
that are under way are computed again by whoever goes on from the snapshot.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from holdfast.config.limits import TRANSFER
from holdfast.core.tree import uncovered
from holdfast.dataplane.memory import board as cells
from holdfast.dataplane.memory.arena_view import ArenaView
from holdfast.dataplane.memory.sections import CELL, Life, family

__all__ = ["Snapshot", "SnapshotRoom", "copy_script", "no_clocks", "of_script", "put_sections", "take"]

_CHUNK = 64 << 10  # bytes that are compared at once, in memory that is used again
_PART = 8 << 20  # bytes that are copied between two looks at whether the crew waits
_SETTINGS = "settings"  # its cells are numbered, and the newest of each counts


class Snapshot(NamedTuple):
    """A state. What it holds lies in room that is used again: see `SnapshotRoom`."""

    version: int
    words: bytes  #: what the board holds of the state (`Board.state_words`)
    clocks: bytes  #: in relaxed modes, how far lanes were (`PrimarySync.cut`)
    sections: Mapping[str, memoryview]
    held: float  #: seconds for which the state stood still
    waited: float  #: those of them in which its step could have been finished


class SnapshotRoom:
    """Memory for one snapshot after the other: fresh pages would cost more than the copy itself."""

    def __init__(self) -> None:
        self._places: dict[str, mmap.mmap] = {}

    def place(self, name: str, size: int) -> memoryview:
        """Where the copy of a section goes."""
        place = self._places.get(name)
        if place is None or len(place) < size:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
            place = self._places[name] = mmap.mmap(-1, max(1, size), flags=flags)
        return memoryview(place)[:size]

    def prepare(self, view: ArenaView) -> None:
        """Have room for all that is durable, before anybody stands still for it."""
        for name in view.manifest.durable():
            self.place(name, view.manifest.sections[name][1])


def put_sections(view: ArenaView, sections: Mapping[str, memoryview | bytes]) -> None:
    """Put sections of a state in place. There is no state here until `Board.land_state`.

    Settings that this host's own workers have left are kept where they are newer.
    """
    view.board.words[cells.H_MAGIC] = 0
    for name, data in sections.items():
        if name != _SETTINGS:
            view.section(name)[:] = data
            continue
        for cell in range(len(data) // CELL):
            own = memoryview(data)[cell * CELL : (cell + 1) * CELL]
            if own[:8].cast("q")[0]:
                view.land_cell(cell, own)


def no_clocks(version: int) -> bytes:
    """In mode `exact` lanes are at no steps of their own."""
    return b""


def take(
    view: ArenaView, room: SnapshotRoom, ring: Callable[[], None], closing: Callable[[], bool],
    clocks: Callable[[int], bytes | None] = no_clocks, *, still: bool = False,
) -> Snapshot | None:  # fmt: skip
    """Copy the state at one of the next versions; None if the run ends.

    `ring` wakes the workers of this host; in relaxed modes, `clocks` cuts how far lanes are at a version. Where all is
    `still`, since the script has ended everywhere, no version will follow the present one.
    """
    board = view.board
    room.prepare(view)
    try:
        while not closing():
            if board.words[cells.H_MAGIC] != cells.MAGIC:
                time.sleep(TRANSFER.state_poll)
                continue
            version, current = _announce(view, still=still), board.current()
            if not _await_version(view, version, ring, closing):
                continue
            if (cut := clocks(version)) is None:  # a pass is about to begin, for which owners must not stand
                board.hold(None)
                time.sleep(TRANSFER.state_poll)
                continue
            snapshot = _copy(view, version, cut, room)
            untouched = board.words[cells.H_MAGIC] == cells.MAGIC and board.current() == current
            if untouched and set(board.versions()) == {version} and not board.torn():
                return snapshot
        return None
    finally:
        board.hold(None)
        ring()


def _announce(view: ArenaView, *, still: bool) -> int:
    """Say at which version owners are to stand: one that no slice has come to yet, or that none can leave yet."""
    board = view.board
    version = max(board.versions(), default=0)
    if still:
        board.hold(version)
        return version
    if _short_of_lanes(view, version):
        board.hold(version)
        time.sleep(0)  # the system is asked for something, so what was stored is seen before what follows is loaded
        if _short_of_lanes(view, version):
            return version
    while True:
        version = max(board.versions(), default=0) + 1
        board.hold(version)
        if max(board.versions(), default=0) < version:
            return version


def _short_of_lanes(view: ArenaView, version: int) -> bool:
    """Is the state at this version, and so far from the next that no owner can have begun with it?

    Only where no other host sends anything: what has come of it tells nothing about what owners do with it.
    """
    board = view.board
    work = board.work(version)
    alone = not any(view.pieces.marks())
    short = work is None or bool(uncovered(work, board.nodes(version)))
    return not view.manifest.relaxed and alone and short and set(board.versions()) == {version} and not board.torn()


def _await_version(view: ArenaView, version: int, ring: Callable[[], None], closing: Callable[[], bool]) -> bool:
    """Wait until all slices stand there. False: they will not."""
    board = view.board
    while set(board.versions()) != {version}:
        if closing() or board.words[cells.H_MAGIC] != cells.MAGIC or max(board.versions(), default=0) > version:
            return False
        time.sleep(TRANSFER.snapshot_poll)
    return True


def _copy(view: ArenaView, version: int, clocks: bytes, room: SnapshotRoom) -> Snapshot:
    began, sections = time.monotonic(), dict[str, memoryview]()
    whole = began  # when the step that follows was last seen to lack lanes
    for name in view.manifest.durable():
        if of_script(name):
            continue
        size = view.manifest.sections[name][1]
        place, section = room.place(name, size), view.section(name)
        for at in range(0, size, _PART):
            place[at : at + _PART] = section[at : at + _PART]
            if _short_of_lanes(view, version):
                whole = time.monotonic()
        sections[name] = place
    words, script = copy_script(view, room)
    end = time.monotonic()
    return Snapshot(version, words, clocks, {**sections, **script}, end - began, end - whole)


def of_script(name: str) -> bool:
    """Does a section of a state hold what scripts leave between steps? It goes with where they stand."""
    return family(name).life is Life.SCRIPT or name == "kept"


def copy_script(view: ArenaView, room: SnapshotRoom) -> tuple[bytes, dict[str, memoryview]]:
    """What the board holds of the state, and what scripts have left, as both were at one moment."""
    names = [name for name in view.manifest.state() if of_script(name)]
    sections = {name: room.place(name, view.manifest.sections[name][1]) for name in names}
    while True:
        words = view.board.state_words()
        for name, place in sections.items():
            place[:] = view.section(name)
        if words == view.board.state_words() and _same(view, sections, names):
            return words, sections
        time.sleep(TRANSFER.snapshot_poll)


def _same(view: ArenaView, sections: Mapping[str, memoryview], names: Iterable[str]) -> bool:
    return all(
        bytes(sections[name][at : at + _CHUNK]) == bytes(view.section(name)[at : at + _CHUNK])
        for name in names for at in range(0, len(sections[name]), _CHUNK)
    )  # fmt: skip
