"""A link: whole messages, with descriptors, between two processes of one host.

It is a SOCK_SEQPACKET pair, so message boundaries are the kernel's business and the death of the
other side is seen at once, as an end of file. Rules:

* a message is 1 byte to `MAX_MESSAGE` bytes; the sender shortens what is longer (traces);
* sending never blocks on a link made with `blocking=False`: `send` says False when the message was
  not taken, and whoever cares says it again (see `control.protocol.messages`); `offer` also says why;
* what the other side said before its end is read before the end is;
* every descriptor is close-on-exec, and whoever receives one owns it.
"""

from __future__ import annotations

import array
import contextlib
import errno
import os
import select
import socket
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import NamedTuple

from holdfast.errors import ResourceError

__all__ = ["MAX_DESCRIPTORS", "MAX_MESSAGE", "DescriptorsLost", "Link", "LinkMessage", "Outcome"]

#: More than any message needs: a failure with its trace, cut to size.
MAX_MESSAGE = 64 * 1024
#: What Linux lets travel with one message (SCM_MAX_FD).
MAX_DESCRIPTORS = 253
_ROOM = socket.CMSG_SPACE(MAX_DESCRIPTORS * array.array("i").itemsize)


class LinkMessage(NamedTuple):
    """One message and the descriptors that came with it; they belong to the receiver."""

    data: bytes
    fds: tuple[int, ...]


#: It may be taken a moment later. ETOOMANYREFS: this user has too many descriptors on their way, on any link.
_FULL = frozenset({errno.EAGAIN, errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM})


class Outcome(Enum):
    """What became of a message."""

    TAKEN = "taken"
    FULL = "full"  #: not now; the other side is there
    GONE = "gone"  #: never; nobody is there


class DescriptorsLost(ResourceError):
    """A message came without its descriptors, because this process has no number left for them. `data` is whole."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        super().__init__(
            f"Descriptors that came with a message of {len(data)} bytes are lost: process {os.getpid()} has as many "
            "open as it may. Raise the limit (ulimit -n)."
        )


class Link:
    """One end of a link.

    >>> ours, theirs = Link.pair()
    >>> ours.send(b"hello")
    True
    >>> theirs.recv()
    LinkMessage(data=b'hello', fds=())
    >>> ours.close(); theirs.recv() is None
    True
    >>> theirs.close()

    Resources: `close()` closes the socket; it may be called twice.
    """

    def __init__(self, sock: socket.socket, *, blocking: bool = True) -> None:
        self._socket = sock
        sock.setblocking(blocking)

    @classmethod
    def pair(cls) -> tuple[Link, Link]:
        """Two joined ends, both blocking."""
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(one), cls(other)

    @classmethod
    def from_fd(cls, fd: int) -> Link:
        """The end of a link that another process handed over; owns `fd` from now on."""
        return cls(socket.socket(fileno=fd))

    @classmethod
    def dial(cls, name: str, seconds: float, *, blocking: bool = True) -> Link:
        """A link to whoever listens at an abstract socket of this host. Raises OSError."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            sock.settimeout(seconds)  # it waits only where more than a backlog come at once
            sock.connect("\0" + name)
        except BaseException:
            sock.close()
            raise
        return cls(sock, blocking=blocking)

    def fileno(self) -> int:
        """The descriptor to wait on, -1 when closed."""
        return self._socket.fileno()

    def setblocking(self, blocking: bool) -> None:
        """Whether `send` and `recv` may wait."""
        self._socket.setblocking(blocking)

    def send(self, data: bytes, fds: Sequence[int] = ()) -> bool:
        """Hand one message to the kernel. False: it was not taken (full, or nobody there any more)."""
        return self.offer(data, fds) is Outcome.TAKEN

    def offer(self, data: bytes, fds: Sequence[int] = ()) -> Outcome:
        """Hand one message to the kernel, and say what became of it."""
        if not 0 < len(data) <= MAX_MESSAGE:
            raise ValueError(f"a message of {len(data)} bytes: must be 1 to {MAX_MESSAGE}")
        if len(fds) > MAX_DESCRIPTORS:
            raise ValueError(f"{len(fds)} descriptors in one message: at most {MAX_DESCRIPTORS}")
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            self._socket.sendmsg([data], rights, socket.MSG_NOSIGNAL)
        except OSError as error:
            return Outcome.FULL if error.errno in _FULL else Outcome.GONE
        return Outcome.TAKEN

    def recv(self) -> LinkMessage | None:
        """The next message, or None when the other side is gone.

        Raises BlockingIOError on a link that does not block and has nothing to read, DescriptorsLost in a process
        that has too many open.
        """
        try:
            try:
                data, ancillary, flags, _ = self._receive()
            except ConnectionResetError:  # it ended with messages of ours unread; its own last words are still here
                data, ancillary, flags, _ = self._receive()
        except (ConnectionError, ValueError):
            return None
        fds = tuple(_descriptors(ancillary)) if ancillary else ()
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            for fd in fds:
                os.close(fd)
            if flags & socket.MSG_TRUNC:
                raise ValueError(f"a message longer than {MAX_MESSAGE} bytes arrived")
            raise DescriptorsLost(data)
        return LinkMessage(data, fds) if data else None

    def _receive(self) -> tuple[bytes, list[tuple[int, int, bytes]], int, object]:
        return self._socket.recvmsg(MAX_MESSAGE, _ROOM, socket.MSG_CMSG_CLOEXEC)

    def end(self) -> None:
        """Both sides see an end of file, also a thread that waits in `recv`; `close` is still to be called."""
        with contextlib.suppress(OSError):  # the other side was faster
            self._socket.shutdown(socket.SHUT_RDWR)

    @property
    def ended(self) -> bool:
        """Is the other side gone? It is known at once, also while messages of it are unread."""
        poll = select.poll()
        poll.register(self._socket, 0)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Close this end; the other side sees an end of file."""
        self._socket.close()

    def detach(self) -> int:
        """Give the descriptor away: the caller closes it."""
        return self._socket.detach()

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> Iterator[int]:
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers = array.array("i")
            numbers.frombytes(payload[: len(payload) - len(payload) % numbers.itemsize])
            yield from numbers
