"""State transfers of an agent: it sends the state that it holds for a checkpoint, and fetches the one to go on with.

Both go over the connection to the coordinator, which has no other way to a machine that only it has let in.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from holdfast.checkpoint.capture import put_state
from holdfast.config.limits import AGENT
from holdfast.dataplane.memory.arena_view import ArenaView
from holdfast.dataplane.memory.snapshot import SnapshotRoom
from holdfast.errors import NetworkError
from holdfast.hosts import orders
from holdfast.hosts.state_parts import StateParts, cut_taken, send_parts, state_of_parts
from holdfast.hosts.state_source import LocalState

__all__ = ["StateTransfers"]


class StateTransfers:
    """Those of one visit.

    Args:
        send: says something to the coordinator; False: it was not taken.
        backlog: bytes that were said and are not yet with the kernel.

    Resources: `close` ends the thread that sends.
    """

    def __init__(self, send: Callable[[orders.Report], bool], backlog: Callable[[], int]) -> None:
        self._send, self._backlog = send, backlog
        self._room = SnapshotRoom()
        self._closing = threading.Event()
        self._sender: threading.Thread | None = None
        self._newest = 0  # of the states that were asked for
        self._parts: StateParts | None = None  # of the one that is fetched
        self._fetched = threading.Event()

    def give(self, number: int, state: LocalState, *, still: bool) -> None:
        """Copy the state here and send it, in a thread; an older request is over."""
        before, self._newest = self._sender, number
        self._sender = threading.Thread(
            target=self._give, args=(number, state, still, before), name=f"holdfast-state-{number}", daemon=True
        )
        self._sender.start()

    def _give(self, number: int, state: LocalState, still: bool, before: threading.Thread | None) -> None:
        if before is not None:
            before.join()

        def stopped() -> bool:
            return self._closing.is_set() or self._newest != number

        taken = state.take(self._room, stopped, still=still) if state.step() >= 0 else None
        if taken is None:
            self._send(orders.StateEnd(number))
        else:
            send_parts(cut_taken(number, taken), self._send, self._backlog, stopped)

    def fetch(self, view: ArenaView) -> None:
        """Fetch the state that the run goes on with, and put it in place. Blocks. Raises NetworkError, OtherState."""
        self._parts = StateParts(0, lambda _, size: memoryview(bytearray(size)))
        self._fetched.clear()
        if not self._send(orders.WantState()):
            raise NetworkError("The coordinator takes nothing any more.")
        while not self._fetched.wait(AGENT.tick):
            if self._closing.is_set():
                raise NetworkError("The connection to the coordinator ended while the run's state came over it.")
        parts, self._parts = self._parts, None
        if not parts.whole:
            raise NetworkError("The coordinator ended the run's state before all of it was here.")
        put_state(state_of_parts(parts), view)

    def came(self, order: orders.StateHead | orders.StatePart | orders.StateEnd) -> None:
        """A part of it is here. Raises FrameError."""
        if self._parts is not None and self._parts.take(order):
            self._fetched.set()

    def close(self) -> None:
        """End it. May be called twice."""
        self._closing.set()
        if self._sender is not None:
            self._sender.join()
