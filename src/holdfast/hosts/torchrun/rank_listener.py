"""The rank listener: where ranks of another launcher say who they are, before and while they are workers here.

It is one socket, without a name in any file system, and a connection of every rank that has come. Only processes of
this user are heard. A rank's own pidfd, which it brings along, says for certain when it is gone; the connections stay
open as long as this process lives, so that a rank that has finished can wait for its end.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
import struct
import time
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from holdfast.hosts.torchrun import rank_messages as say
from holdfast.transport import processes
from holdfast.transport.link import Link

__all__ = ["News", "RankConnection", "RankGone", "RankListener"]

#: Linux 6.15 and newer tell how a process ended that somebody else has reaped: PIDFD_GET_INFO with PIDFD_INFO_EXIT.
_INFO_SIZE, _INFO_EXIT, _EXIT_CODE_AT = 64, 1 << 3, 60
_GET_INFO = 3 << 30 | _INFO_SIZE << 16 | 0xFF << 8 | 11


@dataclass(slots=True)
class RankConnection:
    """A rank that has come."""

    index: int  #: its place among the ranks of this node
    rank: int
    pid: int
    pidfd: int
    link: Link
    parted: bool = False  #: it has nothing to do with the run any more

    def tell(self, message: say.ToRank, fds: tuple[int, ...] = ()) -> bool:
        """Say something to it."""
        return self.link.send(say.encode(message), fds)


class RankGone(NamedTuple):
    """Its process has ended: with this exit status, or minus this signal; None where nobody can say."""

    code: int | None


News = tuple[RankConnection, say.FromRank | RankGone]


class RankListener:
    """Hears ranks.

    Args:
        listener: the socket, which listens already.
        leader: pidfd of the rank that started this process.

    Resources: owns both; `close` closes every connection, which lets ranks go that wait for our end.
    """

    def __init__(self, listener: socket.socket, leader: int) -> None:
        self._listener, self._leader = listener, leader
        listener.setblocking(False)
        self.guests: dict[int, RankConnection] = {}  #: by index
        self._strangers: dict[int, Link] = {}  #: by descriptor: who has not said who it is
        self._owners: dict[int, RankConnection] = {}  #: descriptor of a connection or process -> whose it is
        self._letters: dict[int, say.ToRank] = {}
        self._seen: set[int] = set()
        self._epoll = select.epoll()
        self._epoll.register(listener.fileno(), select.EPOLLIN)

    def fileno(self) -> int:
        """Readable when `hear` has something to say."""
        return self._epoll.fileno()

    def hear(self) -> list[News]:
        """What ranks said and did since the last call, in order for each of them; never waits."""
        news: list[News] = []
        ends: list[News] = []
        for fd, _ in self._epoll.poll(0):
            guest = self._owners.get(fd)
            if fd == self._listener.fileno():
                self._let_in()
            elif fd in self._strangers:
                news += self._introduced(self._strangers[fd])
            elif guest is not None and fd == guest.pidfd:
                news += self._heard(guest)  # its last words come before its end
                self._forget(guest)
                ends.append((guest, RankGone(_how_it_ended(guest.pid, guest.pidfd))))
                os.close(guest.pidfd)
            elif guest is not None:
                news += self._heard(guest)
        return news + ends

    def keep(self, index: int, letter: say.ToRank) -> None:
        """Say this to the rank of this index, when it is there."""
        if index in self.guests:
            self.guests[index].tell(letter)
        else:
            self._letters[index] = letter

    def tell_all(self, message: say.ToRank, *, ranks: int = 0, seconds: float = 0.0) -> None:
        """Say something to everybody who has come. Waits for `seconds` at most until so many ranks have."""
        until, told = time.monotonic() + seconds, set[int]()
        while True:
            while self._epoll.poll(0):
                self.hear()
            for guest in self.guests.values():
                if guest.index not in told and guest.tell(message):
                    told.add(guest.index)
            left = until - time.monotonic()
            if len(self._seen) >= ranks or self.deserted() or left <= 0:
                return
            self._epoll.poll(min(left, 0.1))

    def deserted(self) -> bool:
        """No rank of this node is left, as far as any was known."""
        poll = select.poll()
        there = [self._leader, *(guest.pidfd for guest in self.guests.values())]
        for pidfd in there:
            poll.register(pidfd, select.POLLIN)
        return len(poll.poll(0)) == len(there)

    def close(self) -> None:
        """Let go of everybody. May be called twice."""
        if self._epoll.closed:
            return
        for guest in list(self.guests.values()):
            self._forget(guest)
            os.close(guest.pidfd)
        for link in self._strangers.values():
            link.close()
        self._strangers.clear()
        self._listener.close()
        self._epoll.close()
        os.close(self._leader)

    # ------------------------------------------------------------ coming

    def _let_in(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while True:
                sock, _ = self._listener.accept()
                if processes.peer(sock)[1] != os.getuid():
                    sock.close()
                    continue
                link = Link(sock, blocking=False)
                self._strangers[link.fileno()] = link
                self._epoll.register(link.fileno(), select.EPOLLIN)

    def _introduced(self, link: Link) -> list[News]:
        try:
            frame = link.recv()
        except BlockingIOError:
            return []
        words = _read(frame.data) if frame is not None else None
        del self._strangers[link.fileno()]
        if frame is None or not isinstance(words, say.Announced) or len(frame.fds) != 1 or words.index in self.guests:
            for fd in frame.fds if frame is not None else ():
                os.close(fd)
            self._epoll.unregister(link.fileno())
            link.close()
            return []
        guest = self.guests[words.index] = RankConnection(words.index, words.rank, words.pid, frame.fds[0], link)
        self._seen.add(guest.index)
        self._owners[link.fileno()] = self._owners[guest.pidfd] = guest
        self._epoll.register(guest.pidfd, select.EPOLLIN)
        if letter := self._letters.pop(guest.index, None):
            guest.tell(letter)
        return [(guest, words)]

    # ------------------------------------------------------------ staying, going

    def _heard(self, guest: RankConnection) -> list[News]:
        news: list[News] = []
        while guest.link.fileno() in self._owners:
            try:
                frame = guest.link.recv()
            except BlockingIOError:
                break
            if frame is None:  # it is going; its pidfd says when it is gone
                self._epoll.unregister(guest.link.fileno())
                del self._owners[guest.link.fileno()]
                break
            for fd in frame.fds:
                os.close(fd)
            words = _read(frame.data)
            if words is not None and not isinstance(words, say.Announced):
                guest.parted = guest.parted or isinstance(words, say.Parted)
                news.append((guest, words))
        return news

    def _forget(self, guest: RankConnection) -> None:
        """Its descriptors are of no more interest; its pidfd is still open."""
        self._epoll.unregister(guest.pidfd)
        del self._owners[guest.pidfd], self.guests[guest.index]
        if self._owners.pop(guest.link.fileno(), None) is not None:
            self._epoll.unregister(guest.link.fileno())
        guest.link.close()


def _read(data: bytes) -> say.FromRank | None:
    try:
        return say.decode_from_rank(data)
    except msgspec.MsgspecError:  # any process of this user may knock here
        return None


def _how_it_ended(pid: int, pidfd: int) -> int | None:
    """The exit status of a process that has ended and is not our child, or minus its signal; None: nobody knows."""
    info = bytearray(_INFO_SIZE)
    struct.pack_into("<Q", info, 0, _INFO_EXIT)
    with contextlib.suppress(OSError):  # an older kernel
        fcntl.ioctl(pidfd, _GET_INFO, info)
        if struct.unpack_from("<Q", info, 0)[0] & _INFO_EXIT:  # it has been reaped
            return os.waitstatus_to_exitcode(struct.unpack_from("<i", info, _EXIT_CODE_AT)[0])
    there = processes.stat(pid)
    return os.waitstatus_to_exitcode(there.ended) if there.state == "Z" else None
