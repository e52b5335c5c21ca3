"""A bridge: carries what goes through a replica's link to another machine, and back.

There is one at each end of a replica's connection; what is particular to an end is its *side*. Two threads: one waits
for the link, one for the network. Either's end is the end of both.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from holdfast.errors import HoldfastError
from holdfast.serve.remote.carrier import Carrier
from holdfast.serve.replica.batch_memory import BatchReader, BatchWriter
from holdfast.transport.link import Link

__all__ = ["Bridge", "Side"]


class Side(Protocol):
    """What an end does with messages. False from either: it is over."""

    def from_link(self, data: bytes, memory: memoryview) -> bool:
        """The process on this machine says something; its tensors are in this memory."""

    def from_stream(self, data: bytes, size: int) -> bool:
        """The other machine says something; so many bytes have come before it, into `Bridge.memory`."""

    def link_ended(self) -> None:
        """The process on this machine is gone, or is to go."""


class Bridge:
    """One end of a replica's connection. `ended(reason)` is called once, in one of its threads.

    Resources: owns link and carrier, and two threads; `close` ends them.
    """

    def __init__(self, link: Link, carrier: Carrier, ended: Callable[[str], None]) -> None:
        self._link, self.carrier, self._ended = link, carrier, ended
        self._reader, self._writer = BatchReader(), BatchWriter()
        self._fds: tuple[int, ...] = ()  # of memory that nobody at the link was told of yet
        self._lock = threading.Lock()
        self._left, self._reason = 2, ""

    def start(self, side: Side) -> None:
        """Begin to carry."""
        for name, work in (("out", self._outward), ("in", self._inward)):
            threading.Thread(target=work, args=(side,), name=f"holdfast-replica-{name}", daemon=True).start()

    @property
    def closed(self) -> bool:
        """Has somebody ended it?"""
        return bool(self._reason)

    @property
    def memory(self) -> memoryview:
        """What has come from the other machine."""
        return self._writer.memory

    def room(self, size: int) -> memoryview:
        """Memory for so many bytes."""
        self._fds = self._writer.room(size) or self._fds
        return self._writer.memory

    def to_link(self, data: bytes) -> bool:
        """Pass a message on, with what has come. False: nobody is there."""
        fds, self._fds = self._fds, ()
        return self._link.send(data, fds)

    def close(self, reason: str) -> None:
        """End it, now. May be called by any thread."""
        with self._lock:
            self._reason = self._reason or reason
        self.carrier.close()
        self._link.end()

    # ------------------------------------------------------------ threads

    def _outward(self, side: Side) -> None:
        reason = "its link has ended"
        try:
            while (frame := self._link.recv()) is not None:
                self._reader.take(frame.fds)
                if not side.from_link(frame.data, self._reader.memory):
                    break
            side.link_ended()
        except Exception as error:
            reason = _told(error)
        finally:
            self._end(reason)

    def _inward(self, side: Side) -> None:
        reason = "it was told to end"
        try:
            going = True
            while going:
                going = side.from_stream(*self.carrier.receive(self.room))
        except Exception as error:
            reason = _told(error)
        finally:
            self._end(reason)

    def _end(self, reason: str) -> None:
        self.close(reason)
        with self._lock:
            self._left -= 1
            if self._left:
                return
        self._link.close()
        self._reader.close()
        self._writer.close()
        self._ended(self._reason)


def _told(error: Exception) -> str:
    if isinstance(error, EOFError):
        return "its connection was closed"
    if isinstance(error, OSError):
        return f"its connection broke: {error.strerror or error}"
    return str(error) if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"
