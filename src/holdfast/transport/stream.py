"""Streams: bytes between two hosts, both directions at once, in few large calls.

One thread may send while another receives. Rules:

* a call moves all of its bytes or raises: OSError (TimeoutError among them), or EOFError where the other
  side closed. After that nobody knows what has travelled: the stream can only be closed;
* the kernel does the waiting: sockets block, a receive waits for all of its bytes (MSG_WAITALL), and a
  megabyte costs one call. What is small and has come already is taken along with what was asked for. Time
  limits are the kernel's too (SO_RCVTIMEO), because a Python time-out would turn every wait into many short
  reads;
* `close` ends both directions at once, also for threads that are inside a call. The descriptor's number is
  given back only when they are out, so none of them can meet a stranger under it. Such a call may still fill its
  view until it returns: who needs a fence closes, and then joins its threads.
"""

from __future__ import annotations

import errno
import select
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

from holdfast.errors import FrameError
from holdfast.transport import congestion
from holdfast.transport.frames import HEADER, Header, unpack

__all__ = ["PlainStream", "Stream", "TlsStream", "name_of", "next_frame"]

Buffer = bytes | bytearray | memoryview
_Result = TypeVar("_Result")

#: From how many bytes on a receiver sleeps until `_WAKE` of them have come.
_LARGE = 128 * 1024
_WAKE = 1024 * 1024
#: Linux takes at most 1024 buffers in one call.
_MOST_BUFFERS = 512
#: Who asks for fewer bytes than these gets them from what has come so far, up to so many: head, meta and small bodies
#: in one call. What follows a head and is long is received where it belongs, but for these.
_AHEAD = 4096
#: How much is taken from the socket, or encrypted, at a time: large enough that calls are few, small enough
#: to stay in the cache between the kernel, the cipher and the caller.
_CHUNK = 256 * 1024
#: A TLS record: at most 16 KiB of text, and what goes around it.
_RECORD = 16 * 1024 + 512


def name_of(address: tuple[str, int] | tuple[object, ...]) -> str:
    """An address as people write it.

    >>> name_of(("10.0.0.5", 4000)), name_of(("::1", 4000, 0, 0)), name_of(("::ffff:10.0.0.5", 4000, 0, 0))
    ('10.0.0.5:4000', '[::1]:4000', '10.0.0.5:4000')
    """
    host, port = str(address[0]), address[1]
    if host.startswith("::ffff:") and "." in host:
        host = host[len("::ffff:") :]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Stream(Protocol):
    """What the exchange and the channels need of a connection."""

    #: Who is at the other end, for messages.
    peer: str

    def send(self, *buffers: Buffer) -> None:
        """Send all of it, in order. Raises OSError."""

    def recv_into(self, view: memoryview) -> None:
        """Receive exactly as many bytes as the view has. Raises EOFError, OSError."""

    def settimeout(self, seconds: float | None) -> None:
        """How long a call may go on without a single byte; None: for ever. Then TimeoutError."""

    def rate(self) -> float:
        """Bytes per second that have got there when there was enough to send; 0: nobody knows. Raises OSError."""

    def unanswered(self) -> int:
        """How often in a row something was sent again without an answer: see `congestion`. Raises OSError."""

    def close(self) -> None:
        """End both directions, now. May be called twice, and by any thread."""


def next_frame(stream: Stream, *, generation: int | None = None) -> tuple[Header, bytearray]:
    """The checked header of the next frame, and its meta. The body is next; where it goes is the caller's to say.

    Raises FrameError, which says where it came from, EOFError, OSError.
    """
    head = bytearray(HEADER)
    stream.recv_into(memoryview(head))
    try:
        header = unpack(head, generation=generation)
    except FrameError as error:
        raise FrameError(f"{error.what} (it came from {stream.peer})") from None
    meta = bytearray(header.meta)
    if meta:
        stream.recv_into(memoryview(meta))
    return header, meta


class _Socket:
    """A connected, blocking socket that threads share, and that outlives nobody who is inside a call."""

    def __init__(self, sock: socket.socket, peer: str) -> None:
        self.peer = peer
        self._socket = sock
        self._lock = threading.Lock()
        self._inside = 0
        self._patience: float | None = None  # milliseconds
        self._closed = False
        self._coming = select.poll()
        self._coming.register(sock.fileno(), select.POLLIN)
        sock.setblocking(True)
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def settimeout(self, seconds: float | None) -> None:
        """How long a call may go on without a single byte; None: for ever. Then TimeoutError."""
        if seconds is not None and seconds <= 0:
            raise ValueError(f"a time limit of {seconds} s: must be more than 0")
        self._patience = None if seconds is None else seconds * 1000
        micros = 0 if seconds is None else max(1, round(seconds * 1e6))
        limit = struct.pack("ll", micros // 1_000_000, micros % 1_000_000)
        self._call(lambda: self._limit(limit))

    def rate(self) -> float:
        """Bytes per second that have got there when there was enough to send; 0: nobody knows. Raises OSError."""
        return self._call(lambda: congestion.rate(self._socket))

    def unanswered(self) -> int:
        """How often in a row something was sent again without an answer: see `congestion`. Raises OSError."""
        return self._call(lambda: congestion.unanswered(self._socket))

    def close(self) -> None:
        """End both directions, now. May be called twice, and by any thread."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # the other side was faster
            if not self._inside:
                self._socket.close()

    def _limit(self, value: bytes) -> None:
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, option, value)

    def _call(self, action: Callable[[], _Result]) -> _Result:
        """Run one call on the socket; the descriptor is kept until it is over."""
        with self._lock:
            self._refuse_closed()
            self._inside += 1
        try:
            return action()
        except BlockingIOError:
            raise TimeoutError(errno.ETIMEDOUT, f"no byte to or from {self.peer} within the time limit") from None
        except OSError:
            self._refuse_closed()  # what it met is our own closing
            raise
        finally:
            with self._lock:
                self._inside -= 1
                if self._closed and not self._inside:
                    self._socket.close()

    def _refuse_closed(self) -> None:
        if self._closed:
            why = f"the connection to {self.peer} was closed on this side"
            raise ConnectionAbortedError(errno.ECONNABORTED, why) from None

    def _ended(self) -> EOFError:
        self._refuse_closed()
        return EOFError(f"{self.peer} closed the connection")

    def _send_all(self, buffers: tuple[Buffer, ...]) -> None:
        rest = [view for view in (memoryview(buffer).cast("B") for buffer in buffers) if view.nbytes]
        while rest:
            sent = self._socket.sendmsg(rest[:_MOST_BUFFERS], (), socket.MSG_NOSIGNAL)
            while rest and sent >= rest[0].nbytes:
                sent -= rest.pop(0).nbytes
            if sent:
                rest[0] = rest[0][sent:]

    def _recv_all(self, view: memoryview) -> None:
        if view.nbytes >= _LARGE:
            self._recv_large(view)
        else:
            self._recv_whole(view)

    def _recv_large(self, view: memoryview) -> None:
        """Receive many bytes, waking up seldom: once for every `_WAKE` bytes, not for every packet or two.

        The kernel wakes a receiver when so many bytes are there, however few of them it still wants. So all but the
        last of them are received in one call, and the last when they are all there.
        """
        last = min(view.nbytes, _WAKE)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, last)
        try:
            self._recv_whole(view[: view.nbytes - last])
            if not self._coming.poll(self._patience):
                raise BlockingIOError
        finally:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        self._recv_whole(view[view.nbytes - last :])

    def _recv_whole(self, view: memoryview) -> None:
        while left := view.nbytes:  # in one go, but for a signal, the time limit, or the end
            count = self._socket.recv_into(view, left, socket.MSG_WAITALL)
            if not count:
                raise self._ended()
            view = view[count:]


class PlainStream(_Socket):
    """A TCP connection (or a socket pair, in tests).

    >>> ours, theirs = PlainStream.pair()
    >>> ours.send(b"head", memoryview(b"body"))
    >>> got = bytearray(8); theirs.recv_into(memoryview(got)); bytes(got)
    b'headbody'
    >>> ours.close(); theirs.close()

    Resources: owns the socket; `close` closes it.
    """

    def __init__(self, sock: socket.socket, peer: str = "") -> None:
        super().__init__(sock, peer)
        self._ahead = memoryview(bytearray(_AHEAD))
        self._here = self._ahead[:0]  # what was received and not asked for yet

    @classmethod
    def pair(cls) -> tuple[PlainStream, PlainStream]:
        """Two joined ends inside this host."""
        one, other = socket.socketpair()
        return cls(one, "the other end"), cls(other, "the first end")

    def send(self, *buffers: Buffer) -> None:
        """Send all of it, in order: one call where the kernel takes it all. Raises OSError."""
        self._call(lambda: self._send_all(buffers))

    def recv_into(self, view: memoryview) -> None:
        """Receive exactly as many bytes as the view has. Raises EOFError, OSError."""
        view, here = view.cast("B"), self._here
        if len(here) >= len(view) and not self._closed:  # often: heads and other small things come many at a time
            view[:], self._here = here[: len(view)], here[len(view) :]
        else:
            self._call(lambda: self._receive(view))

    def _receive(self, view: memoryview) -> None:
        had = len(self._here)
        view[:had], view, self._here = self._here, view[had:], self._ahead[:0]
        if len(view) >= _AHEAD:
            self._recv_all(view)
            return
        count = 0
        while count < len(view):
            more = self._socket.recv_into(self._ahead[count:])
            if not more:
                raise self._ended()
            count += more
        view[:], self._here = self._ahead[: len(view)], self._ahead[len(view) : count]


class TlsStream(_Socket):
    """A TCP connection whose bytes are encrypted by `tls`, which has shaken hands already.

    `tls` is not for two threads, so it works on memory (`incoming`, `outgoing`) under a lock, and the socket is used
    outside of it: a sender that waits for the network does not stop a receiver.

    Resources: owns the socket; `close` closes it. No farewell is said: the end of a connection is never taken for the
    end of a frame, so cutting it short tells nobody anything.
    """

    def __init__(
        self, sock: socket.socket, tls: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, peer: str = ""
    ) -> None:
        super().__init__(sock, peer)
        self._tls, self._incoming, self._outgoing = tls, incoming, outgoing
        self._cipher = threading.Lock()  # held while `tls` works
        self._wire = threading.Lock()  # held from taking encrypted bytes until they are sent, so they stay in order
        self._taken = memoryview(bytearray(_CHUNK))

    def send(self, *buffers: Buffer) -> None:
        """Encrypt and send all of it, in order. Raises OSError."""
        self._call(lambda: self._send_encrypted(buffers))

    def recv_into(self, view: memoryview) -> None:
        """Receive and decrypt exactly as many bytes as the view has. Raises EOFError, OSError."""
        self._call(lambda: self._recv_decrypted(view.cast("B")))

    def _send_encrypted(self, buffers: tuple[Buffer, ...]) -> None:
        last = len(buffers) - 1
        with self._wire:
            for number, buffer in enumerate(buffers):
                view = memoryview(buffer).cast("B")
                for begin in range(0, view.nbytes, _CHUNK):
                    chunk = view[begin : begin + _CHUNK]
                    with self._cipher:
                        self._tls.write(chunk)
                        # A short head goes out together with what follows it.
                        short = number < last and self._outgoing.pending < _RECORD
                        encrypted = b"" if short else self._outgoing.read()
                    if encrypted:
                        self._send_all((encrypted,))
            with self._cipher:
                encrypted = self._outgoing.read()
            self._send_all((encrypted,))

    def _recv_decrypted(self, view: memoryview) -> None:
        done, size = 0, view.nbytes
        while done < size:
            with self._cipher:
                done = self._decrypt(view, done)
                asked = self._outgoing.pending
            if asked:
                self._answer()
            if done < size:
                self._take(size - done)

    def _decrypt(self, view: memoryview, done: int) -> int:
        """Decrypt what has come in, as far as it goes, straight into the view."""
        try:
            while done < view.nbytes:
                count = self._tls.read(view.nbytes - done, view[done:])
                if not count:
                    raise self._ended()
                done += int(count)
        except ssl.SSLWantReadError:
            pass  # the rest has not come yet; the caller brings more
        except ssl.SSLEOFError:
            raise self._ended() from None
        return done

    def _take(self, missing: int) -> None:
        """Bring encrypted bytes from the socket: as many as must come in any case, or as there are."""
        sure = missing - _RECORD  # one record may have come in part
        if sure > _RECORD:
            count = self._socket.recv_into(self._taken, min(sure, _CHUNK), socket.MSG_WAITALL)
        else:
            count = self._socket.recv_into(self._taken)
        if not count:
            raise self._ended()
        with self._cipher:
            self._incoming.write(self._taken[:count])

    def _answer(self) -> None:
        """Send what the protocol itself has to say. If a sender is at it, it takes this along."""
        if self._wire.acquire(blocking=False):
            try:
                with self._cipher:
                    encrypted = self._outgoing.read()
                self._send_all((encrypted,))
            finally:
                self._wire.release()
