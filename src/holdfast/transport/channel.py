"""Channels: whole messages over a stream, for what is said rarely and must not wait.

One thread reads, one writes. Saying something never blocks: it goes into a queue that is bounded in messages and in
bytes, and `send` says False when it was not taken (full, or closed), as a `Link` does. The end comes once, with a
reason, after the last message that came in; no thread ends without it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Container

from holdfast.config.limits import NETWORK
from holdfast.errors import FrameError
from holdfast.transport.frames import Frame, FrameParser, Kind, pack
from holdfast.transport.stream import Stream

__all__ = ["Channel"]


class Channel:
    """Both directions of one control connection.

    `on_frame(frame)` is called for each message, `on_closed(reason)` once, at the end; both in the channel's reader
    thread, never at the same time. An exception out of `on_frame` closes the channel and is its reason.

    Resources: owns the stream and two threads; `close` ends them.
    """

    def __init__(
        self,
        stream: Stream,
        on_frame: Callable[[Frame], None],
        on_closed: Callable[[str], None],
        *,
        kinds: Container[Kind] = frozenset({Kind.CONTROL, Kind.ROWS, Kind.BYE}),
    ) -> None:
        self.peer = stream.peer
        #: When something was last heard, by the monotonic clock.
        self.heard = time.monotonic()
        self._stream, self._on_frame, self._on_closed = stream, on_frame, on_closed
        self._parser = FrameParser(kinds=kinds)
        self._queue: deque[bytes] = deque()
        self._messages = self._bytes = 0  # said, and not yet with the kernel
        self._changed = threading.Condition()
        self._ending = False
        #: Why it has ended; nothing as long as it goes on.
        self.ended = ""
        self._reader = threading.Thread(target=self._read, name=f"holdfast-channel-in {self.peer}", daemon=True)
        self._writer = threading.Thread(target=self._write, name=f"holdfast-channel-out {self.peer}", daemon=True)
        self._reader.start()
        self._writer.start()

    @property
    def backlog(self) -> int:
        """Bytes that were said and are not yet with the kernel."""
        return self._bytes

    def send(self, body: bytes, *, kind: Kind = Kind.CONTROL, generation: int = 0, meta: bytes = b"") -> bool:
        """Say something. False: it was not taken, because the queue is full or the channel is closed."""
        message = pack(kind, generation, meta, len(body)) + body
        with self._changed:
            full = self._messages >= NETWORK.queued_messages or self._bytes + len(message) > NETWORK.queued_bytes
            if self._ending or full:
                return False
            self._queue.append(message)
            self._messages += 1
            self._bytes += len(message)
            self._changed.notify()
        return True

    def close(self, reason: str = "closed on this side") -> None:
        """End it, after what was said before has got out, or a second has passed. May be called from its callbacks."""
        self._end(reason)
        me = threading.current_thread()
        if me is not self._writer:
            self._writer.join(NETWORK.close)
        self._stream.close()
        for thread in (self._reader, self._writer):
            if thread is not me:
                thread.join()

    # ---------------------------------------------------------------- threads

    def _end(self, reason: str) -> None:
        with self._changed:
            self._ending = True
            self.ended = self.ended or reason
            self._changed.notify()

    def _write(self) -> None:
        try:
            while batch := self._next():
                self._stream.send(*batch)
                with self._changed:
                    self._messages -= len(batch)
                    self._bytes -= sum(map(len, batch))
        except (BrokenPipeError, ConnectionResetError):
            pass  # the other side is gone: the reader takes its last words first, and then says so
        except OSError as error:
            self._end(_why(error))
            self._stream.close()  # the reader sees it, and says why

    def _next(self) -> list[bytes]:
        """What waits to be sent, all of it at once; nothing: it is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._ending)
            batch = list(self._queue)
            self._queue.clear()
            return batch

    def _read(self) -> None:
        reason = "an error of its own"
        try:
            reason = self._listen()
        except FrameError as error:
            reason = str(error)
        except (EOFError, OSError) as error:
            reason = _why(error)
        except Exception as error:
            reason = f"a message could not be handled: {type(error).__name__}: {error}"
        finally:
            self._end(reason)
            self._stream.close()
            self._on_closed(self.ended)

    def _listen(self) -> str:
        buffer = bytearray()
        while True:
            wanted = self._parser.wanted
            if len(buffer) < wanted:
                buffer = bytearray(wanted)
            view = memoryview(buffer)[:wanted]
            self._stream.recv_into(view)
            self.heard = time.monotonic()
            for frame in self._parser.feed(view):
                if frame.header.kind is Kind.BYE:
                    return "the other side said goodbye"
                self._on_frame(frame)


def _why(error: EOFError | OSError) -> str:
    """Why a connection has ended. That of a process that is killed may end in either way, as its kernel finds it."""
    if isinstance(error, EOFError | ConnectionResetError | BrokenPipeError):
        return "the other side closed the connection"
    return f"the connection broke: {error.strerror or error}"
