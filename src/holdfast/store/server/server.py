"""A server: serves the keys it holds, one request at a time, over memory that outlives it.

One thread, one loop. It reads what clients say, has it done (see `dispatcher`) and answers. It never waits for a
client: what a client does not read is kept for it. When it is killed, another Server over the same memory and the same
listening socket goes on where it was; clients notice a pause.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from functools import partial

import msgspec
import torch

from holdfast.config.limits import STORE
from holdfast.errors import HoldfastError
from holdfast.quantities import Size
from holdfast.store.diagnostics import complain
from holdfast.store.handlers import Handler, add
from holdfast.store.messages import Answer, Failed, Hello, Say, Welcome, pack, packed, says
from holdfast.store.region import Limit, Owned, Region, create
from holdfast.store.server.dispatcher import ClientRecord, Dispatcher
from holdfast.store.server.ledger import LEDGER, Ledger
from holdfast.store.server.rounds import Clients
from holdfast.store.waiting import Waiting, look_seconds
from holdfast.transport import processes
from holdfast.transport.auth.listener import SHORT
from holdfast.transport.link import MAX_MESSAGE, DescriptorsLost, Link, Outcome

__all__ = ["Server"]


class Peer:
    """A connection. `client_record` is who is at its other end, once it has said so."""

    def __init__(self, link: Link, pid: int) -> None:
        self.link, self.pid = link, pid
        self.client_record: ClientRecord | None = None
        self.said: list[Answer] = []  #: answers that are not packed yet
        self.unsent: deque[bytes] = deque()
        self.blocked = False  #: there is more for it than the kernel takes


class Server:
    """Server `index` of `num_servers`. `memory` is the descriptor of a region; what is in it goes on. `limit` is how
    many bytes of values it may hold, all versions counted; 0: as many as there are.

    Resources: owns `memory` and `listener`; `server_main` closes them when it returns.
    """

    def __init__(
        self, index: int, num_servers: int, listener: socket.socket, *, handler: Handler | None = None,
        memory: int | None = None, limit: int = 0,
    ) -> None:  # fmt: skip
        self.index, self.num_servers = index, num_servers
        most = Limit(limit, f"server {index}", f"memory={Size(limit)}") if limit else None
        self._region = Owned(create() if memory is None else memory, most)
        self._ledger = Ledger(self._region)
        self._region.begin(max(self._ledger.top, LEDGER), self._ledger.used)
        self._dispatcher = Dispatcher(self._region, self._ledger, handler or add, index)
        self._listener = listener
        listener.setblocking(False)
        self._peers: dict[int, Peer] = {}  # by descriptor
        self._named: dict[str, Peer] = {}
        self._kept: set[Peer] = set()  # for whom there are answers that may travel together
        self._soon = 0.0  # until when
        self._poll = select.poll()
        self._waiting = Waiting()

    def meets(self, crew: Clients) -> None:
        """Who belongs to the crew of the run has changed."""
        self._dispatcher.meets(crew)

    def serve(self, lifeline: int, news: Callable[[], bool] = lambda: False) -> None:
        """Serve until the descriptor `lifeline` has something to read or is at its end, and `news` says that it is."""
        torch.set_grad_enabled(False)  # of this thread
        self._poll.register(self._listener, select.POLLIN)
        self._poll.register(lifeline, select.POLLIN)
        try:
            while True:
                # Whoever keeps us is heard first: what it said counts for what clients have said since.
                for fd, event in sorted(self._waiting.wait(self._poll, None), key=lambda one: one[0] != lifeline):
                    if fd == lifeline:
                        if not news():
                            return
                        continue
                    if fd == self._listener.fileno():
                        self._accept()
                    elif (peer := self._peers.get(fd)) is not None:
                        if event & select.POLLOUT:
                            self._flush(peer)
                        if event & ~select.POLLOUT:
                            self._read(peer)
        finally:
            self._dispatcher.close()
            for peer in self._peers.values():
                peer.link.close()
                if peer.client_record is not None:
                    peer.client_record.close()
            self._listener.close()
            self._ledger.close()
            self._region.close()

    def _count(self) -> None:
        """Clients have come or gone: is there a core for each of us?"""
        here = len(self._named)
        self._waiting.spin = look_seconds(here + self.num_servers, os.cpu_count() or 1) if here else 0.0

    # ------------------------------------------------------------ clients come, speak and go

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError as error:
            if error.errno in SHORT:  # it stays in the kernel's queue, so looking again at once would be vain
                complain(f"Server {self.index} can take no client at the moment: {error.strerror}. It tries again.")
                time.sleep(STORE.accept_pause)
            return  # else it went away again
        pid, uid = processes.peer(sock)
        if uid != os.getuid():
            sock.close()
            return
        self._peers[sock.fileno()] = Peer(Link(sock, blocking=False), pid)
        self._poll.register(sock, select.POLLIN)

    def _read(self, peer: Peer) -> None:
        """Take one message: asking once more, to be told that there is none, costs more than another turn."""
        try:
            frame = peer.link.recv()
        except BlockingIOError:
            return
        except DescriptorsLost as error:
            complain(f"Server {self.index} lets go of a client, which will come again. {error}")
            time.sleep(STORE.accept_pause)
            frame = None
        except ValueError:  # not one of ours: no client of the store sends so much
            frame = None
        if frame is None:
            self._lose(peer)
            return
        fds = frame.fds
        try:
            messages = says(frame.data)
            self._soon = time.monotonic() + STORE.together if len(messages) > 1 else 0.0
            for message in messages:
                if peer.link.fileno() >= 0:
                    fds = self._hear(peer, message, fds)
        except msgspec.DecodeError as error:
            self._refuse(peer, "StoreError", f"Server {self.index} does not understand what was said: {error}.")
        self._soon = 0.0
        self._send_kept()
        for fd in fds:  # that nobody has taken
            os.close(fd)

    def _hear(self, peer: Peer, message: Say, fds: tuple[int, ...]) -> tuple[int, ...]:
        """Heed a message; the descriptors that it has left."""
        if isinstance(message, Hello) and peer.client_record is None and len(fds) == 1:
            self._welcome(peer, message, fds[0])
            return ()
        if peer.client_record is None or isinstance(message, Hello):
            self._refuse(peer, "StoreError", f"Server {self.index} heard {type(message).__name__} out of turn.")
        else:
            self._dispatcher.heed(peer.client_record, message)
        return fds

    def _welcome(self, peer: Peer, message: Hello, memory: int) -> None:
        if (old := self._named.get(message.client)) is not None:
            text = f"Another process has connected as client {message.client!r}. Give every process a name of its own."
            self._refuse(old, "StoreError", text)
        try:
            number = self._ledger.add_client(message.client)
        except HoldfastError as error:
            os.close(memory)
            self._refuse(peer, type(error).__name__, str(error))
            return
        peer.client_record = ClientRecord(
            message.client, number, Region(memory, writable=True), partial(self._answer, peer)
        )
        self._named[message.client] = peer
        self._count()
        self._ledger.note_process(number, 0 if message.far else peer.pid)
        self._dispatcher.enter(peer.client_record, message.looks)
        looking = self._region.look_only()
        try:
            peer.link.send(pack(Welcome(self.index, self.num_servers, os.getpid())), [looking])
        finally:
            os.close(looking)

    def _refuse(self, peer: Peer, kind: str, text: str) -> None:
        self._answer(peer, Failed(-1, kind, text))
        self._send_kept()
        self._lose(peer)

    def _lose(self, peer: Peer) -> None:
        if peer.link.fileno() < 0:
            return
        del self._peers[peer.link.fileno()]
        self._poll.unregister(peer.link.fileno())
        peer.link.close()
        if (client_record := peer.client_record) is not None:
            del self._named[client_record.name]
            self._count()
            self._ledger.note_process(client_record.number, 0)
            self._dispatcher.leave(client_record)
            client_record.close()

    def _answer(self, peer: Peer, message: Answer) -> None:
        if peer.link.fileno() >= 0:
            peer.said.append(message)
            self._kept.add(peer)
            if not self._soon or time.monotonic() > self._soon:
                self._send_kept()

    def _send_kept(self) -> None:
        while self._kept:
            self._flush(self._kept.pop())

    def _flush(self, peer: Peer) -> None:
        if peer.said:
            peer.unsent.extend(packed(peer.said, MAX_MESSAGE))
            peer.said.clear()
        while peer.unsent:
            outcome = peer.link.offer(peer.unsent[0])
            if outcome is Outcome.FULL:
                peer.blocked = True
                self._poll.modify(peer.link.fileno(), select.POLLIN | select.POLLOUT)
                return
            if outcome is Outcome.GONE:
                peer.unsent.clear()  # its end is read next
                return
            peer.unsent.popleft()
            if peer.blocked and not peer.unsent:
                peer.blocked = False
                self._poll.modify(peer.link.fileno(), select.POLLIN)
