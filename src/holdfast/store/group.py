"""A group of servers on this machine, and whoever keeps it: `with store.local(servers=2) as group: ...`

The keeper holds what must outlive a server, its memory and its listening socket, and hands both to another process
when one dies; one process stands by for that. There are no names in any file system, and all of it ends with the
process that keeps it, however that ends.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec

from holdfast.errors import StoreTimeout, UsageError
from holdfast.quantities import Size
from holdfast.store.address import Address
from holdfast.store.client import PATIENCE, Store, connect
from holdfast.store.gate import Gate
from holdfast.store.handlers import Handler, add, load, name_of
from holdfast.store.ledger import Ledger
from holdfast.store.region import Region, create
from holdfast.store.serve import READY, Assignment
from holdfast.store.server import Server, listen
from holdfast.transport.link import Link

__all__ = ["Group", "local"]

#: A server that dies so often in a row without having changed anything is not replaced: what it is asked kills it.
MAX_DEATHS = 3
_START = 60.0  #: seconds that a new process may take to load torch and the handler


@contextlib.contextmanager
def local(
    servers: int = 1, *, clients: int = 1, handler: Handler | str = add, threads: bool = False,
    memory: str | int | None = None, listen: str | None = None, token_file: Path | str | None = None, tls: bool = False,
) -> Iterator[Group]:  # fmt: skip
    """Start servers on this machine; they end with the block.

    `handler` is a function at the top level of a module, or its name ('module:function' or 'file.py:function'), for
    each server is a process of its own. `clients` is how many of them meet at barriers and broadcasts. `threads=True`
    serves from threads of this process instead, for tests: any function will do, and nothing survives a kill.

    `memory` ("2GiB", or bytes) is how much each server may use for values, all versions counted; what does not fit is
    refused. Without it, they may use what the machine has.

    `listen` (HOST or HOST:PORT of this machine) lets clients of other hosts in: they need `Group.far_address` and the
    file that `Group.write_credentials` writes. It holds a token, made here unless there is one in `token_file`; with
    `tls` also a certificate. Without `listen`, nothing listens on any network.
    """
    if servers < 1 or clients < 1:
        raise UsageError(f"A store of {servers} servers for {clients} clients: there must be at least one of each.")
    if listen is None and (token_file is not None or tls):
        raise UsageError("token_file and tls are for clients of other hosts, and none are let in. Give listen=, too.")
    group = Group(servers, clients, 0 if memory is None else Size(memory).bytes)
    try:
        group.start(handler, threads)
        if listen is not None:
            group.open_gate(listen, Path(token_file) if token_file is not None else None, tls)
        yield group
    finally:
        group.close()


class _Process:
    """A server process, or one that stands by."""

    def __init__(self, handler: str) -> None:
        ours, theirs = Link.pair()
        paths = [path for path in sys.path if path]  # what can be imported here must be there as well
        self.link, self.ready = ours, False
        self.server = -1
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "holdfast.store.serve", str(theirs.fileno()), handler],
            pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": ":".join(paths)},
        )  # fmt: skip
        theirs.close()


class Group:
    """The servers of a store. `address` is what other processes need to connect: hand it to them as they start.

    Resources: made and closed by `local`.
    """

    def __init__(self, num_servers: int, num_clients: int, limit: int = 0) -> None:
        name = f"holdfast-store-{secrets.token_hex(16)}"
        self._address = Address(name, num_servers, num_clients)
        self.address = str(self._address)
        self.num_servers, self._limit = num_servers, limit
        self._gate: Gate | None = None
        self.replaced = 0  #: how many servers have died and were replaced
        self._memories = [create() for _ in range(num_servers)]
        self._listeners: list[socket.socket | None] = [listen(f"{name}.{i}") for i in range(num_servers)]
        self._deaths = [(0, 0)] * num_servers  # in a row, and changes at the last
        self._processes: list[_Process] = []
        self._wake, self._woken = socket.socketpair()
        self._started = threading.Event()
        self._problem = ""
        self._threads: list[threading.Thread] = []
        self._closed = False

    def connect(self, client: str, *, timeout: float = PATIENCE) -> Store:
        """Connect from this process."""
        return connect(self.address, client, timeout=timeout)

    def open_gate(self, listen: str, token_file: Path | None, tls: bool) -> None:
        """Let clients of other hosts in. Raises UsageError."""
        self._gate = Gate(listen, self._address.name, self.num_servers, token_file=token_file, tls=tls)

    @property
    def far_address(self) -> str:
        """What clients on other hosts connect to. Raises UsageError where none are let in."""
        return str(msgspec.structs.replace(self._address, name=self._opened().place))

    def write_credentials(self, path: Path | str) -> None:
        """Write what clients on other hosts need into a new file that only its owner can read. Copy it there."""
        self._opened().credentials.write(Path(path))

    def _opened(self) -> Gate:
        if self._gate is None:
            raise UsageError(
                "This store lets no clients of other hosts in. Start it with local(listen='HOST'), an address of this "
                "machine that they can reach."
            )
        return self._gate

    @property
    def pids(self) -> list[int]:
        """The processes of servers 0, 1, ...; 0 where one is being replaced or lost."""
        found = {one.server: one.popen.pid for one in self._processes if one.popen.poll() is None}
        return [found.get(server, 0) for server in range(self.num_servers)]

    def start(self, handler: Handler | str, threads: bool) -> None:
        """Start all servers. Raises UsageError where the handler cannot be loaded."""
        if threads:
            self._start_threads(load(handler) if isinstance(handler, str) else handler)
            return
        name = name_of(handler)
        # The system ends a child with the *thread* that started it, so one thread starts them all and stays.
        keeper = threading.Thread(target=self._keep, args=(name,), name="holdfast-store-keeper", daemon=True)
        self._threads.append(keeper)
        keeper.start()
        if not self._started.wait(_START):
            raise StoreTimeout(f"No server was ready within {_START:g} s. See what loading {name!r} takes.")
        if self._problem:
            raise UsageError(self._problem)

    def close(self) -> None:
        """End all servers. May be called twice."""
        if self._closed:
            return
        self._closed = True
        if self._gate is not None:
            self._gate.close()
        self._wake.close()
        for thread in self._threads:
            thread.join()
        self._woken.close()
        for memory in self._memories:
            os.close(memory)
        for listener in self._listeners:
            if listener is not None:
                listener.close()

    # ------------------------------------------------------------ threads

    def _start_threads(self, handler: Handler) -> None:
        for index, (memory, listener) in enumerate(zip(self._memories, self._listeners, strict=True)):
            assert listener is not None
            server = Server(
                index, self.num_servers, listener.dup(), handler=handler, memory=os.dup(memory), limit=self._limit
            )
            thread = threading.Thread(target=self._serve, args=(server,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, server: Server) -> None:
        try:
            server.serve(self._woken.fileno())
        finally:
            listener = self._listeners[server.index]
            if listener is not None:
                listener.close()  # whatever ended it, clients see that nobody comes any more

    # ------------------------------------------------------------ the keeper's thread

    def _keep(self, handler: str) -> None:
        try:
            for _ in range(self.num_servers + 1):
                self._processes.append(_Process(handler))
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
            for listener in self._listeners:
                if listener is not None:
                    listener.close()  # clients see that nobody comes any more

    def _watch(self, handler: str) -> bool:
        """Wait for something to happen, and see to it. False: the group is closed."""
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        at = {process.link.fileno(): process for process in self._processes}
        for fd in at:
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll():
            if fd == self._woken.fileno():
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
        free = [server for server in range(self.num_servers) if server not in taken and self._listeners[server]]
        idle = [process for process in self._processes if process.ready and process.server < 0]
        for server, process in zip(free, idle, strict=False):
            listener = self._listeners[server]
            assert listener is not None
            assignment = msgspec.msgpack.encode(Assignment(server, self.num_servers, self._limit))
            if process.link.send(assignment, [self._memories[server], listener.fileno()]):
                process.server = server
        if {process.server for process in self._processes} >= set(range(self.num_servers)):
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
            listener = self._listeners[server]
            if self._deaths[server][0] >= MAX_DEATHS and listener is not None:
                listener.close()
                self._listeners[server] = None
        self._assign()
        self._processes.append(_Process(handler))

    def _changes(self, server: int) -> int:
        region = Region(os.dup(self._memories[server]), writable=True)
        ledger = Ledger(region)
        changes = ledger.changes
        ledger.close()
        region.close()
        return changes
