"""The keeper of servers: starts a process for each, and another one when one dies. No torch here.

The keeper holds what must outlive a server, its memory and its listening socket, and hands both to another process
when one dies; one process stands by for that. There are no names in any file system, and all of it ends with the
process that keeps it, however that ends.
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

from holdfast.errors import StoreTimeout, UsageError
from holdfast.store.address import Address
from holdfast.store.gate import Gate
from holdfast.store.ledger import Ledger
from holdfast.store.region import Region, create
from holdfast.transport.credentials import Credentials
from holdfast.transport.link import Link

__all__ = ["MAX_DEATHS", "READY", "Assignment", "Keeper", "listen"]

#: A server that dies so often in a row without having changed anything is not replaced: what it is asked kills it.
MAX_DEATHS = 3
#: What a new process says when it has loaded torch and the handler.
READY = b"ready"
_START = 60.0  #: seconds that a new process may take for that


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
        self.link, self.ready = ours, False
        self.server = -1
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "holdfast.store.serve", str(theirs.fileno()), handler],
            pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": ":".join(paths)},
        )  # fmt: skip
        theirs.close()


class Keeper:
    """Keeps servers. `paths` is where their processes look for modules, by default where this one does.

    Resources: `close` ends all servers, and lets go of their memory.
    """

    def __init__(
        self, num_servers: int, num_clients: int, limit: int = 0, paths: Sequence[str] | None = None
    ) -> None:  # fmt: skip
        name = f"holdfast-store-{secrets.token_hex(16)}"
        self.address = Address(name, num_servers, num_clients)
        self.limit = limit
        self._paths = [path for path in (sys.path if paths is None else paths) if path]
        self.gate: Gate | None = None  #: where clients of other hosts come in
        self.replaced = 0  #: how many servers have died and were replaced
        self.memories = [create() for _ in range(num_servers)]
        self.listeners: list[socket.socket | None] = [listen(f"{name}.{i}") for i in range(num_servers)]
        self._deaths = [(0, 0)] * num_servers  # in a row, and changes at the last
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
        self._thread = threading.Thread(target=self._keep, args=(handler,), name="holdfast-store-keeper", daemon=True)
        self._thread.start()
        if not self._started.wait(_START):
            raise StoreTimeout(f"No server was ready within {_START:g} s. See what loading {handler!r} takes.")
        if self._problem:
            raise UsageError(self._problem)

    def open_gate(self, place: tuple[str, int], ours: Credentials, theirs: Credentials) -> None:
        """Let clients of other hosts in, who have the credentials `theirs`. Raises UsageError."""
        self.gate = Gate(place, self.address.name, self.address.servers, ours, theirs)

    def close(self) -> None:
        """End all servers. May be called twice."""
        if self._closed:
            return
        self._closed = True
        if self.gate is not None:
            self.gate.close()
        self._wake.close()
        if self._thread is not None:
            self._thread.join()

    def release(self) -> None:
        """Let go of what outlives servers, once nobody serves any more."""
        self.close()
        if self.gate is not None:  # it may have been opened meanwhile
            self.gate.close()
        self.ending.close()
        for memory in self.memories:
            os.close(memory)
        self.memories.clear()
        for listener in self.listeners:
            if listener is not None:
                listener.close()

    # ------------------------------------------------------------ the keeper's thread

    def _keep(self, handler: str) -> None:
        try:
            for _ in range(self.address.servers + 1):
                self._processes.append(_Process(handler, self._paths))
            while not self._problem:
                if not self._watch(handler):
                    return
        except Exception as error:  # whoever waits for servers must be told
            self._problem = f"The keeper of the store failed: {type(error).__name__}: {error}."
            raise
        finally:
            self._started.set()
            for process in self._processes:
                process.link.close()
                process.popen.kill()
                process.popen.wait()
            for listener in self.listeners:
                if listener is not None:
                    listener.close()  # clients see that nobody comes any more

    def _watch(self, handler: str) -> bool:
        """Wait for something to happen, and see to it. False: the group is closed."""
        poll = select.poll()
        poll.register(self.ending, select.POLLIN)
        at = {process.link.fileno(): process for process in self._processes}
        for fd in at:
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll():
            if fd == self.ending.fileno():
                return False
            process = at[fd]
            frame = process.link.recv()
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
        free = [server for server in range(self.address.servers) if server not in taken and self.listeners[server]]
        idle = [process for process in self._processes if process.ready and process.server < 0]
        for server, process in zip(free, idle, strict=False):
            listener = self.listeners[server]
            assert listener is not None
            assignment = msgspec.msgpack.encode(Assignment(server, self.address.servers, self.limit))
            if process.link.send(assignment, [self.memories[server], listener.fileno()]):
                process.server = server
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
            changes = self._changes(server)
            deaths, before = self._deaths[server]
            self._deaths[server] = (deaths + 1 if changes == before else 1, changes)
            listener = self.listeners[server]
            if self._deaths[server][0] >= MAX_DEATHS and listener is not None:
                listener.close()
                self.listeners[server] = None
        self._assign()
        self._processes.append(_Process(handler, self._paths))

    def _changes(self, server: int) -> int:
        region = Region(os.dup(self.memories[server]), writable=True)
        ledger = Ledger(region)
        changes = ledger.changes
        ledger.close()
        region.close()
        return changes
