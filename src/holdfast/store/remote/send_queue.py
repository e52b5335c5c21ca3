"""An send queue: what one client still has to send to a server on another host, piece by piece and in order. Pure.

A request goes out with the first bytes of its payload; the others follow in runs, as soon as they are there. Nothing
goes out between them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from holdfast.store.client.pending import Pending
from holdfast.store.heap import Extent
from holdfast.store.messages import Bytes, PushRequest, Say
from holdfast.store.payload import payload_of, run_length

__all__ = ["SendQueue"]

#: Bytes after which nothing more goes along, and about what a message has besides those of its value.
_AT_ONCE, _HEAD = 2**16, 2**10


class SendQueue:
    """Requests that are not out yet."""

    def __init__(self) -> None:
        self._waiting: deque[Pending] = deque()
        self._sent = -1  # bytes of the first one's payload that are out; -1: not even the request is

    def add(self, pending: Pending) -> None:
        """One more request."""
        self._waiting.append(pending)

    def renew(self, pending: Iterable[Pending]) -> None:
        """Begin again with these: nobody knows what of it has arrived."""
        self._waiting, self._sent = deque(pending), -1

    def several(self) -> list[tuple[Say, Extent | None]]:
        """What goes out next in one go: one piece, or some small ones; empty: nothing yet."""
        pieces: list[tuple[Say, Extent | None]] = []
        size = 0
        while size < _AT_ONCE and (piece := self.next()) is not None:
            pieces.append(piece)
            size += _HEAD + (piece[1].size if piece[1] is not None else 0)
        return pieces

    def next(self) -> tuple[Say, Extent | None] | None:
        """What goes out next, and where its bytes lie; None: nothing, or nothing yet."""
        if not self._waiting:
            return None
        request = self._waiting[0].request
        payload = payload_of(request)
        if payload is None:
            self._waiting.popleft()
            return request, None
        begin = max(0, self._sent)
        here = request.here if isinstance(request, PushRequest) and request.rows is None else payload.sent
        size = min(here - begin, run_length(payload.sent))
        if not size and self._sent >= 0:
            return None
        message = request if self._sent < 0 else Bytes(request.id, begin, payload.sent)
        self._sent = begin + size
        if self._sent == payload.sent:
            self._waiting.popleft()
            self._sent = -1
        return message, payload.place.part(begin, size)
