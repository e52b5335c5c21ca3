"""A carrier: messages of one replica over a stream, each with the raw bytes that it speaks of.

    PART  all | bytes        as often as it takes; `all` is how many bytes there are together
    REPLICA   message

The bytes come first, so that they are received where they belong: into the memory that the next process reads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from holdfast.config.limits import SERVING
from holdfast.errors import FrameError
from holdfast.transport.frames import MAX_BODY, Kind, pack
from holdfast.transport.stream import Stream, next_frame

__all__ = ["Carrier"]

_PART = MAX_BODY[Kind.PART]
_SIZE = 8  # bytes of `all`


class Carrier:
    """Sends and receives; one thread may do each. Resources: owns the stream; `close` closes it."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._sending = threading.Lock()
        self.peer = stream.peer

    def send(self, message: bytes, data: bytes | memoryview = b"") -> None:
        """Send a message and what belongs to it. Raises OSError."""
        view = memoryview(data)
        buffers: list[bytes | memoryview] = []
        for begin in range(0, len(view), _PART):
            piece = view[begin : begin + _PART]
            buffers += [pack(Kind.PART, 0, len(view).to_bytes(_SIZE, "little"), len(piece)), piece]
        with self._sending:
            self._stream.send(*buffers, pack(Kind.REPLICA, 0, b"", len(message)), message)

    def receive(self, room: Callable[[int], memoryview]) -> tuple[bytes, int]:
        """The next message, and how many bytes came with it; they lie where `room(size)` says.

        Raises FrameError, EOFError, OSError, and what `room` raises.
        """
        into, got = memoryview(b""), 0
        while True:
            header, meta = next_frame(self._stream, generation=0)
            if header.kind is Kind.REPLICA:
                if got != len(into):
                    raise FrameError(f"{len(into)} bytes were announced, and {got} came before their message")
                message = bytearray(header.body)
                self._stream.recv_into(memoryview(message))
                return bytes(message), got
            if header.kind is not Kind.PART:
                raise FrameError(f"its kind is {header.kind.name}, which has no business on this connection")
            size = int.from_bytes(meta, "little")
            if len(meta) != _SIZE or not 0 < size <= SERVING.batch_bytes or (got and size != len(into)):
                raise FrameError(f"it announces {size} bytes for one message")
            if not got:
                into = room(size)[:size]
            if not 0 < header.body <= size - got:
                raise FrameError(f"it has {header.body} bytes, where {size - got} are left of {size}")
            self._stream.recv_into(into[got : got + header.body])
            got += header.body

    def close(self) -> None:
        """End it, also for threads that are inside a call."""
        self._stream.close()
