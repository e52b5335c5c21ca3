"""Doors and lines for the tests of what travels between hosts: all of it on loopback, all of it closed again."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from holdfast.transport.auth import token
from holdfast.transport.auth.credentials import Credentials
from holdfast.transport.auth.dial import connect
from holdfast.transport.auth.handshake import Hello
from holdfast.transport.auth.listener import Listener
from holdfast.transport.stream import Stream

#: Nothing here takes long; who waits this long waits for ever.
SOON = 20.0


@contextlib.contextmanager
def nothing_left() -> Iterator[None]:
    """Inside, descriptors and threads may be made; at the end none of them is left.

    Those of before may be gone: what an earlier test left to end in the background has ended.
    """
    descriptors, threads = _descriptors(), set(threading.enumerate())
    yield
    assert not set(threading.enumerate()) - threads
    assert not _descriptors() - descriptors


def _descriptors() -> set[tuple[str, str]]:
    """Number and target of each."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            found.add((fd, os.readlink(f"/proc/self/fd/{fd}")))
    return found


@dataclass
class Door:
    """A listener with open ears: who came, and what it complained about."""

    credentials: Credentials
    keeper: Listener = field(init=False)
    came: queue.Queue[tuple[Hello, Stream]] = field(default_factory=queue.Queue)
    complaints: queue.Queue[str] = field(default_factory=queue.Queue)

    @property
    def address(self) -> tuple[str, int]:
        return self.keeper.address

    def call(self, hello: Hello | None = None, credentials: Credentials | None = None, timeout: float = SOON) -> Stream:
        return connect(self.address, hello or Hello("join"), credentials or self.credentials, timeout)

    def joined(self) -> tuple[Stream, Stream]:
        """Both ends of a greeted connection."""
        ours = self.call()
        return ours, self.came.get(timeout=SOON)[1]

    def raw(self, data: bytes = b"") -> socket.socket:
        """A connection that has said this and nothing else."""
        sock = socket.create_connection(self.address, timeout=SOON)
        if data:
            sock.sendall(data)
        return sock

    def complaint(self) -> str:
        """The next complaint; the caller's port is of no interest."""
        sentence = self.complaints.get(timeout=SOON)
        before, _, after = sentence.partition(": ")
        return f"{before.rpartition(':')[0]}: {after}"


@contextlib.contextmanager
def door(
    credentials: Credentials | None = None,
    *,
    bind: tuple[str, int] = ("127.0.0.1", 0),
    admit: Callable[[Hello], str | None] = lambda hello: None,
    **options: Any,
) -> Iterator[Door]:
    """A door that is closed at the end, with everybody who came in."""
    opened = Door(credentials or Credentials(token.make()))
    options.setdefault("came", lambda hello, stream: opened.came.put((hello, stream)))
    opened.keeper = Listener(bind, opened.credentials, admit=admit, complain=opened.complaints.put, **options)
    try:
        yield opened
    finally:
        opened.keeper.close()
        while not opened.came.empty():
            opened.came.get()[1].close()


def closed_by_the_other_side(sock: socket.socket) -> bytes:
    """Read until the end, whatever kind of end it is, and close: returns what was said."""
    said = b""
    with sock:
        try:
            while data := sock.recv(65536):
                said += data
        except ConnectionError:
            pass
    return said
