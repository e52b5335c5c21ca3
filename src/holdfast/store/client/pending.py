"""A request on its way: what was asked, and how it ended. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from holdfast.errors import (
    HandlerFailed,
    HoldfastError,
    Mismatch,
    ResourceError,
    ServerLost,
    StoreError,
    StoreTimeout,
    UnknownKey,
    UsageError,
)
from holdfast.store.messages import Done, Failed, Init, PushRequest, Request, ValueView
from holdfast.store.region import Region, Tie

__all__ = ["Pending", "ServerWire", "complaint", "gone_text", "wait_for"]

#: What a server may say by name; nothing else that it says becomes a class.
_KINDS: dict[str, type[HoldfastError]] = {
    kind.__name__: kind
    for kind in (HandlerFailed, Mismatch, ResourceError, ServerLost, StoreError, UnknownKey, UsageError)
}


def complaint(answer: Failed) -> HoldfastError:
    """What a server said, as an error."""
    return _KINDS.get(answer.kind, StoreError)(answer.text)


def gone_text(server: int, why: object) -> str:
    """What a client is told that has lost a server for good."""
    return (
        f"Server {server} of the store is gone, and nobody takes over ({why}). What was not answered may or may not "
        "have been applied. See how the process that keeps the servers ended."
    )


class ServerWire(Protocol):
    """What a client needs of its way to one server, on this host or on another one."""

    index: int
    failures: list[Pending]  #: that ended badly, perhaps unseen

    @property
    def region(self) -> Region | None:
        """Where the values lie that were shown."""

    def next_id(self) -> int:
        """The number of the next request."""

    def post(
        self, request: Request, what: str, *, deadline: float, settled: Callable[[], object] | None = None
    ) -> Pending:
        """Ask for something; `settled` is called when it has ended, whichever way."""

    def gather(self) -> None:
        """What is asked from now on may travel together, until `send_off`."""

    def send_off(self) -> None:
        """All that was gathered is on its way, and nothing is gathered any more."""

    def grown(self, pending: Pending, here: int) -> None:
        """More bytes of a push are there."""

    def wait(self, pending: Pending, deadline: float) -> None:
        """Until it has ended. Raises StoreTimeout; how it ended is in `pending`."""

    def poll(self) -> None:
        """Take in what has come, without waiting."""

    def under_way(self) -> list[Pending]:
        """What is not answered, in the order in which it was asked for."""

    def close(self) -> None:
        """End the connection. What is pending stays unanswered."""


def wait_for(requests: Sequence[Pending], deadline: float) -> None:
    """Until all of them have ended. Raises StoreTimeout, which is about all of them."""
    try:
        for pending in requests:
            pending.wire.wait(pending, deadline)
    except StoreTimeout:
        for pending in requests:
            pending.overdue = True
        raise


class Pending:
    """A request that is not answered, or its answer, or why there is none."""

    def __init__(
        self, wire: ServerWire, request: Request, what: str, deadline: float, settled: Callable[[], object] | None
    ) -> None:  # fmt: skip
        self.wire, self.request, self.what = wire, request, what
        self.deadline = deadline  #: when its verb gives up
        self.answer: Done | ValueView | None = None
        self.error: Exception | None = None
        self.tie: Tie | None = None  #: of the buffer that a View shows
        self.late: Callable[[], str] | None = None  #: what is known about why it takes so long
        self.seen = False  #: somebody was told how it ended
        self.overdue = False  #: somebody was told that it takes too long
        self._settled = settled

    @property
    def done(self) -> bool:
        return self.answer is not None or self.error is not None

    def patience(self, now: float, deadline: float) -> float | None:
        """Until when whoever closes, and has time until `deadline`, waits for it; None: not at all. Pure.

        What somebody was told to take too long is let go. Only what writes still has the time that its verb was given:
        a push must not be lost because somebody would not wait for it a moment.
        """
        if not self.overdue:
            return deadline
        return (
            min(self.deadline, deadline)
            if isinstance(self.request, PushRequest | Init) and self.deadline > now
            else None
        )

    def settle(self, answer: Done | ValueView | None, error: Exception | None) -> None:
        """It has ended."""
        self.answer, self.error = answer, error
        if self._settled is not None:
            self._settled()
            self._settled = None

    def too_late(self, client: str, pid: int, trouble: str = "") -> StoreTimeout:
        """Why nobody waits for it any longer. `trouble`: what keeps this client from the server."""
        self.overdue = True
        why = f"It is process {pid}" if pid else "It has not come back since its process ended"
        if trouble:
            why = f"It cannot be reached now: {trouble}"
        elif self.late is not None:
            late, self.late = self.late, None  # asking about it may be late as well
            try:
                why = late()
            finally:
                self.late = late
        return StoreTimeout(
            f"Server {self.wire.index} did not answer in time: client {client!r} waits for {self.what}. "
            f"{why}. Allow more time (timeout=), or see what keeps it."
        )
