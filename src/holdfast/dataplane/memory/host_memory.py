"""Host memory: a host's shared memory as its holder sees it, the arena and the sections of the mode that counts.

A generation says how lanes keep step in it. A host for which that is news takes it up here, before any of its workers
hears of the generation: they are quiet, and nothing is under way. The new mode's sections are laid out, what the
old one left is given back, and the board says what counts. Parameters and versions are the same in all modes, and so is
the optimizer's state, but after local steps: then the owners go on with the mean of all lanes (`inner_state`). Nobody
can be killed in the middle of it but the host as a whole. No torch here.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
import time
from collections.abc import Callable

import msgspec

from holdfast.config.limits import TRANSFER
from holdfast.control.protocol.messages import Reached
from holdfast.core.sync.modes import parse
from holdfast.dataplane.memory import board as cells
from holdfast.dataplane.memory.arena import discard, grow
from holdfast.dataplane.memory.arena_view import ArenaView
from holdfast.dataplane.memory.board import Board, ModeRecord
from holdfast.dataplane.memory.manifest import Manifest, read_manifest
from holdfast.dataplane.memory.sections import lay_out_mode, passing
from holdfast.dataplane.relaxed.inner_state import InnerState
from holdfast.dataplane.relaxed.pushes import Pushes

__all__ = ["HostMemory", "await_view"]


class HostMemory:
    """One host's memory. `arena` is mapped from its descriptor `fd`, or from none where the mode never changes."""

    def __init__(self, arena: mmap.mmap, fd: int = -1) -> None:
        self.memory, self._fd = memoryview(arena), fd
        self._lock = threading.Lock()
        self._whole = 0, self.memory  # (serial of the mode, all memory that it uses)

    def view(self, reached: Reached | None = None) -> ArenaView | None:
        """All of it, in the mode that counts; None while no worker has left a manifest. Called by several threads.

        `reached` is the mode of a generation that begins, which is taken up if it is news.
        """
        with self._lock:
            manifest = read_manifest(self.memory)
            if manifest is None:
                return None
            board = Board(self.memory, manifest.lanes, manifest.rows, len(manifest.slices))
            news = reached is not None and reached.serial > board.pace_serial()
            if reached is not None and news and not _goes_back_to(manifest, board, reached):
                self._turn(manifest, board, reached)
            return self._now(manifest, board.pace())

    def begin(self, reached: Reached) -> None:
        """A generation begins, and its workers here have not heard of it: take up its mode, and part lanes.

        Who pushed for several may be gone, and they may be driven by several from now on.
        """
        view = self.view(reached)
        if view is not None and view.manifest.relaxed:
            Pushes(view.section("pushes"), view.manifest.lanes).part()

    def close(self) -> None:
        """Let go of the memory, as far as nobody looks at it any more. May be called twice."""
        self._whole = 0, self.memory
        with contextlib.suppress(BufferError):
            self.memory.release()

    def _now(self, manifest: Manifest, pace: ModeRecord | None) -> ArenaView:
        return (
            ArenaView(self.memory, manifest)
            if pace is None
            else ArenaView(self._mapped(pace), _in_mode(manifest, pace))
        )

    def _turn(self, manifest: Manifest, board: Board, reached: Reached) -> None:
        """Another mode counts from now on."""
        old = board.pace()
        mode, before = parse(reached.sync), self._now(manifest, old)
        begin, size = (old.begin, old.size) if old is not None else (0, 0)
        if before.manifest.relaxed:
            board.disown(reached.version)
        if goes_on := before.manifest.rounds and mode.rounds:  # with rounds of another length: all lies where it did
            _wipe(before.section("pushes"))
        else:
            if before.manifest.rounds:
                _end_rounds(before)
            discard(self._fd, [span for name, span in manifest.sections.items() if passing(name)])
            if size:
                discard(self._fd, [(begin, size)])
            begin, size = len(self.memory), lay_out_mode(manifest.room(), mode).size
            grow(self._fd, begin + size)
        pace = ModeRecord(reached.serial, reached.sync, begin, size, reached.version, reached.step)
        after = self._now(manifest, pace)
        if not mode.exact:
            Pushes(after.section("pushes"), manifest.lanes).go_on_from(reached.step)
        if mode.rounds and not goes_on:
            InnerState(after.section, manifest.owners()).begin(reached.version)
        board.put_pace(pace)

    def _mapped(self, pace: ModeRecord) -> memoryview:
        if not pace.size:
            return self.memory
        if self._whole[0] != pace.serial:
            self._whole = pace.serial, memoryview(mmap.mmap(self._fd, pace.begin + pace.size))
        return self._whole[1]


def await_view(find: Callable[[], ArenaView | None], closing: Callable[[], bool]) -> ArenaView | None:
    """What `find` finds, once a worker of this host has left a manifest; None when that is not wanted any more."""
    while not closing():
        if (view := find()) is not None:
            return view
        time.sleep(TRANSFER.manifest_poll)
    return None


def _wipe(section: memoryview) -> None:
    section[:] = bytes(len(section))


def _end_rounds(view: ArenaView) -> None:
    """Local steps are over: have the owners go on with the mean of all lanes, if the state is here."""
    board, manifest = view.board, view.manifest
    if board.words[cells.H_MAGIC] == cells.MAGIC and not board.words[cells.H_MIRROR]:
        inner = InnerState(view.section, manifest.owners())
        inner.end(min(board.versions(), default=0), manifest.lanes, manifest.kinds, manifest.pieces)


def _goes_back_to(manifest: Manifest, board: Board, reached: Reached) -> bool:
    """Is this the mode that counts here still, which the run goes back to because what was made since is lost?

    Then all that was pushed in it is here; only the number of the change is another one.
    """
    mode, now = parse(reached.sync), board.pace()
    if now is None:
        now = ModeRecord(0, mode.name if manifest.relaxed != mode.exact else "")
    same = (now.sync, now.version, now.step) == (mode.name, reached.version, reached.step)
    if same:
        board.put_pace(now._replace(serial=reached.serial))
    return same


def _in_mode(manifest: Manifest, pace: ModeRecord) -> Manifest:
    """The manifest of an arena, with the sections of the mode that counts and without those of others."""
    mode = parse(pace.sync)
    if pace.first:
        return manifest
    lasting = {name: span for name, span in manifest.sections.items() if not passing(name)}
    spans = lay_out_mode(manifest.room(), mode).spans.items()
    more = {name: (pace.begin + begin, size) for name, (begin, size) in spans}
    return msgspec.structs.replace(manifest, sections={**lasting, **more}, relaxed=not mode.exact)
