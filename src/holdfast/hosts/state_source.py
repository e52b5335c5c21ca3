"""Where the state for checkpoints comes from: this machine's arena, or that of a host elsewhere. No torch."""

from __future__ import annotations

import threading
from collections.abc import Callable

from holdfast.checkpoint.capture import Taken, progress, take_state
from holdfast.config.limits import CHECKPOINT
from holdfast.dataplane.memory.arena_view import ArenaView
from holdfast.dataplane.memory.board import H_MAGIC, H_MIRROR, MAGIC
from holdfast.dataplane.memory.board_snapshot import level
from holdfast.dataplane.memory.snapshot import SnapshotRoom
from holdfast.errors import FrameError
from holdfast.hosts import orders
from holdfast.hosts.state_parts import StateParts, taken_of

__all__ = ["LocalState", "RemoteState"]


class LocalState:
    """The state in this machine's arena. See `checkpointer.StateSource`.

    Args:
        view: finds the arena; None while there is none.
        ring: wakes the workers here.
    """

    def __init__(self, view: Callable[[], ArenaView | None], ring: Callable[[], None]) -> None:
        self._view, self._ring = view, ring

    def step(self) -> int:
        """How far it is; -1 where there is none, or only what another host's workers compute with."""
        view = self._view()
        if view is None or (view.board.words[H_MAGIC] == MAGIC and view.board.words[H_MIRROR]):
            return -1
        if level(view.memory) < 0:
            return -1
        return progress(view, min(view.board.versions(), default=0)).step

    def take(self, room: SnapshotRoom, stopped: Callable[[], bool], *, still: bool) -> Taken | None:
        """Copy it."""
        view = self._view()
        return None if view is None else take_state(view, room, self._ring, stopped, still=still)


class RemoteState:
    """The state of a host elsewhere. See `checkpointer.StateSource`.

    `take` is called in one thread, `showed`, `came` and `lost` in the loop's.
    """

    def __init__(self, order: Callable[[orders.Order], bool]) -> None:
        self._order = order
        self._step, self._number, self._lost = -1, 0, False
        self._lock = threading.Lock()
        self._parts: StateParts | None = None  # of the state that was asked for
        self._over = threading.Event()  # all of them are here, or none will come

    def showed(self, step: int) -> None:
        """So far is the host's board."""
        self._step = max(self._step, step)

    def step(self) -> int:
        """How far it is, as far as its board was shown."""
        return -1 if self._lost else self._step

    def take(self, room: SnapshotRoom, stopped: Callable[[], bool], *, still: bool) -> Taken | None:
        """Have it copied there, and sent."""
        with self._lock:
            self._number += 1
            parts = self._parts = StateParts(self._number, room.place)
            self._over.clear()
        try:
            if not self._order(orders.TakeState(self._number, still)):
                return None
            while not self._over.wait(CHECKPOINT.poll):
                if stopped() or self._lost:
                    return None
            return taken_of(parts) if parts.whole else None
        finally:
            with self._lock:  # from now on nothing is written to the room
                self._parts = None

    def came(self, report: orders.StateHead | orders.StatePart | orders.StateEnd) -> None:
        """A part is here. Raises FrameError where it makes no sense."""
        with self._lock:
            if self._parts is not None and report.number == self._parts.number:
                try:
                    if self._parts.take(report):
                        self._over.set()
                except FrameError:
                    self._over.set()
                    raise

    def lost(self) -> None:
        """Nothing comes from there any more."""
        self._lost = True
