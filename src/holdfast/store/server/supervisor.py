"""The supervisor of servers: starts a process for each, and another one when one dies. No torch here.

The supervisor holds what must outlive a server, its memory and its listening socket, and hands both to another process
when one dies; one process stands by for that. Who comes to a server that was given up is told why. There are no names
in any file system, and all of it ends with the process that keeps it, however that ends.
"""

from __future__ import annotations

import os
import secrets
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence

import msgspec

from holdfast.config.limits import STORE
from holdfast.errors import StoreTimeout, UsageError
from holdfast.store.address import GroupAddress
from holdfast.store.messages import Failed, pack
from holdfast.store.region import Region, create
from holdfast.store.remote.store_listener import StoreListener
from holdfast.store.server.exits import ServerExit, exit_reason, given_up, row_of
from holdfast.store.server.ledger import Ledger
from holdfast.store.server.rounds import Clients
from holdfast.transport.auth.credentials import Credentials
from holdfast.transport.link import Link, Outcome
from holdfast.transport.processes import peer

__all__ = ["READY", "Assignment", "ServerSupervisor", "listen"]

#: What a new process says when it has loaded torch and the handler.
READY = b"ready"


class Assignment(msgspec.Struct, frozen=True):
    """Which server a process is. With it come two descriptors: the memory and the listening socket."""

    index: int
    num_servers: int
    limit: int = 0  #: bytes that it may hold; 0: as many as there are


def listen(name: str) -> socket.socket:
    """A socket for clients of this host to connect to. Its name is in no file system: nothing is left of it."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.bind("\0" + name)
    sock.listen(256)
    return sock


class _Process:
    """A server process, or one that stands by."""

    def __init__(self, handler: str, paths: Sequence[str]) -> None:
        ours, theirs = Link.pair()
        ours.setblocking(False)  # a server that is at something long must not hold up who tells it about the crew
        self.link, self.ready = ours, False
        self.server = -1
        self.told = False  #: it knows who is in the crew
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "holdfast.store.server.server_main", str(theirs.fileno()), handler],
            pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": ":".join(paths)},
        )  # fmt: skip
        theirs.close()


class ServerSupervisor:
    """Keeps servers. `paths` is where their processes look for modules, by default where this one does. With a `crew`,
    it is who is in it that meets at barriers and broadcasts.

    Resources: `close` ends all servers, and lets go of their memory.
    """

    def __init__(
        self, num_servers: int, num_clients: int, limit: int = 0, paths: Sequence[str] | None = None, *,
        crew: Clients | None = None,
    ) -> None:  # fmt: skip
        name = f"holdfast-store-{secrets.token_hex(16)}"
        self.address = GroupAddress(name, num_servers, num_clients, crew is not None)
        self._crew, self._telling = crew, threading.Lock()
        self.limit = limit
        self._paths = [path for path in (sys.path if paths is None else paths) if path]
        self.listener: StoreListener | None = None  #: where clients of other hosts come in
        self.replaced = 0  #: how many servers have died and were replaced
        self.memories = [create() for _ in range(num_servers)]
        self.listeners = [listen(f"{name}.{i}") for i in range(num_servers)]
        self._deaths: list[list[ServerExit]] = [[] for _ in range(num_servers)]  # in a row
        self._lost: dict[int, str] = {}  # servers that were given up, and why
        self._processes: list[_Process] = []
        self._wake, self.ending = socket.socketpair()  #: `ending` can be read when all is to end
        self._started = threading.Event()
        self._problem = ""
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def pids(self) -> list[int]:
        """The processes of servers 0, 1, ...; 0 where one is being replaced or lost."""
        found = {one.server: one.popen.pid for one in self._processes if one.popen.poll() is None}
        return [found.get(server, 0) for server in range(self.address.servers)]

    def start(self, handler: str) -> None:
        """Start all servers. Raises UsageError where the handler cannot be loaded."""
        # The system ends a child with the *thread* that started it, so one thread starts them all and stays.
        name = "holdfast-store-supervisor"
        self._thread = threading.Thread(target=self._keep, args=(handler,), name=name, daemon=True)
        self._thread.start()
        if not self._started.wait(STORE.start):
            raise StoreTimeout(f"No server was ready within {STORE.start:g} s. See what loading {handler!r} takes.")
        if self._problem:
            raise UsageError(self._problem)

    def open_listener(self, place: tuple[str, int], ours: Credentials, theirs: Credentials) -> None:
        """Let clients of other hosts in, who have the credentials `theirs`. Raises UsageError."""
        self.listener = StoreListener(place, self.address.name, self.address.servers, ours, theirs)

    def meets(self, crew: Clients) -> None:
        """The crew is another one. The servers have it before this returns, unless one is far behind."""
        with self._telling:
            self._crew = crew
            for process in self._processes:
                process.told = False
            if not self._tell_crew() and not self._closed:
                self._wake.send(b"again")

    def _tell_crew(self) -> bool:
        """Say who is in the crew to all servers that do not know. False: one could not take it now."""
        if self._crew is None:
            return True
        data = msgspec.msgpack.encode(self._crew)
        for process in list(self._processes):
            if process.server >= 0 and not process.told:
                process.told = process.link.offer(data) is not Outcome.FULL
        return all(process.told or process.server < 0 for process in self._processes)

    def close(self) -> None:
        """End all servers. May be called twice."""
        if self._closed:
            return
        self._closed = True
        if self.listener is not None:
            self.listener.close()
        self._wake.close()
        if self._thread is not None:
            self._thread.join()

    def release(self) -> None:
        """Let go of what outlives servers, once nobody serves any more."""
        self.close()
        if self.listener is not None:  # it may have been opened meanwhile
            self.listener.close()
        self.ending.close()
        for memory in self.memories:
            os.close(memory)
        self.memories.clear()
        for listener in self.listeners:
            listener.close()

    # ------------------------------------------------------------ the supervisor's thread

    def _keep(self, handler: str) -> None:
        try:
            for _ in range(self.address.servers + 1):
                self._processes.append(_Process(handler, self._paths))
            while not self._problem:
                if not self._watch(handler):
                    return
        except Exception as error:  # whoever waits for servers must be told
            self._problem = f"The supervisor of the store failed: {type(error).__name__}: {error}."
            raise
        finally:
            self._started.set()
            for process in self._processes:
                process.link.close()
                process.popen.kill()
                process.popen.wait()
            for listener in self.listeners:
                listener.close()  # clients see that nobody comes any more

    def _watch(self, handler: str) -> bool:
        """Wait for something to happen, and see to it. False: the group is closed."""
        poll = select.poll()
        poll.register(self.ending, select.POLLIN)
        at = {process.link.fileno(): process for process in self._processes}
        lost = {self.listeners[i].fileno(): (self.listeners[i], why) for i, why in self._lost.items()}
        for fd in (*at, *lost):
            poll.register(fd, select.POLLIN)
        with self._telling:
            behind = not self._tell_crew()
        for fd, _ in poll.poll(1000 * STORE.retry if behind else None):
            if fd == self.ending.fileno():
                if not self.ending.recv(4096):
                    return False
                continue
            if fd in lost:
                _turn_away(*lost[fd])
                continue
            process = at[fd]
            try:
                frame = process.link.recv()
            except BlockingIOError:
                continue
            if frame is None:
                self._bury(process, handler)
            elif frame.data == READY:
                process.ready = True
                self._assign()
            else:
                self._problem = frame.data.decode(errors="replace")
        return True

    def _assign(self) -> None:
        """Give servers without a process to processes without a server."""
        taken = {process.server for process in self._processes}
        free = [server for server in range(self.address.servers) if server not in taken and server not in self._lost]
        idle = [process for process in self._processes if process.ready and process.server < 0]
        for server, process in zip(free, idle, strict=False):
            assignment = msgspec.msgpack.encode(Assignment(server, self.address.servers, self.limit))
            with self._telling:  # who it serves comes first, then who meets
                if process.link.send(assignment, [self.memories[server], self.listeners[server].fileno()]):
                    process.server = server
                    self._tell_crew()
        if {process.server for process in self._processes} >= set(range(self.address.servers)):
            self._started.set()

    def _bury(self, process: _Process, handler: str) -> None:
        process.link.close()
        process.popen.kill()
        code = process.popen.wait()
        self._processes.remove(process)
        if not process.ready and not self._started.is_set():
            self._problem = f"A server's process ended with status {code} before it was ready. See its output above."
            return
        server = process.server
        if server >= 0:
            self.replaced += 1
            death, keys = self._examine(server, code)
            self._deaths[server] = deaths = row_of(self._deaths[server], death)
            if given_up(deaths):
                self._lost[server] = exit_reason(server, self.address.servers, deaths, keys)
        self._assign()
        self._processes.append(_Process(handler, self._paths))

    def _examine(self, server: int, code: int) -> tuple[ServerExit, list[str]]:
        """How a server has ended, and the keys that it held: its ledger is still there."""
        region = Region(os.dup(self.memories[server]), writable=True)
        ledger = Ledger(region)
        death, keys = ServerExit(ledger.changes, code, ledger.push), ledger.valued
        ledger.close()
        region.close()
        return death, keys


def _turn_away(listener: socket.socket, why: str) -> None:
    """Somebody comes to a server that was given up: they are told, and hear no more."""
    try:
        sock, _ = listener.accept()
    except OSError:
        return  # it went away again
    with Link(sock, blocking=False) as link:
        if peer(sock)[1] == os.getuid():
            link.send(pack(Failed(-1, "ServerLost", why)))
