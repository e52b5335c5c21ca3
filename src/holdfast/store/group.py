"""A group of servers on this machine: `with store.local(servers=2) as group: ...`

Servers are processes that a supervisor looks after (see `supervisor`), or threads of this process.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec

from holdfast.config.limits import STORE
from holdfast.errors import UsageError
from holdfast.quantities import Size
from holdfast.store.client.store import Store, connect
from holdfast.store.handlers import Handler, add, load, name_of
from holdfast.store.remote.store_listener import StoreListener
from holdfast.store.server.server import Server
from holdfast.store.server.supervisor import ServerSupervisor
from holdfast.transport.auth.credentials import secrets_for
from holdfast.transport.endpoint import listening_on, parse

__all__ = ["Group", "local"]


@contextlib.contextmanager
def local(
    servers: int = 1, *, clients: int | None = None, handler: Handler | str = add, threads: bool = False,
    memory: str | int | None = None, listen: str | None = None, token_file: Path | str | None = None, tls: bool = False,
) -> Iterator[Group]:  # fmt: skip
    """Start servers on this machine; they end with the block.

    `handler` is a function at the top level of a module, or its name ('module:function' or 'file.py:function'), for
    each server is a process of its own. `clients` is how many meet at barriers and broadcasts; without it, those have
    to be told each time. `threads=True` serves from threads of this process instead, for tests: any function will do,
    and nothing survives a kill.

    `memory` ("2GiB", or bytes) is how much each server may use for values, all versions counted; what does not fit is
    refused. Without it, they may use what the machine has.

    `listen` (HOST or HOST:PORT of this machine) lets clients of other hosts in: they need `Group.far_address` and the
    file that `Group.write_credentials` writes. It holds a token, made here unless there is one in `token_file`; with
    `tls` also a certificate. Without `listen`, nothing listens on any network.
    """
    if servers < 1 or (clients is not None and clients < 1):
        whose = "" if clients is None else f" for {clients} clients"
        raise UsageError(f"A store of {servers} servers{whose}: there must be at least one of each.")
    if listen is None and (token_file is not None or tls):
        raise UsageError("token_file and tls are for clients of other hosts, and none are let in. Give listen=, too.")
    group = Group(servers, clients or 0, 0 if memory is None else Size(memory).bytes)
    try:
        group.start(handler, threads)
        if listen is not None:
            group.open_listener(listen, Path(token_file) if token_file is not None else None, tls)
        yield group
    finally:
        group.close()


class Group:
    """The servers of a store. `address` is what other processes need to connect: hand it to them as they start.

    Resources: made and closed by `local`.
    """

    def __init__(self, num_servers: int, num_clients: int, limit: int = 0) -> None:
        self._supervisor = ServerSupervisor(num_servers, num_clients, limit)
        self.address = str(self._supervisor.address)
        self.num_servers = num_servers
        self._threads: list[threading.Thread] = []

    def connect(self, client: str, *, timeout: float = STORE.timeout) -> Store:
        """Connect from this process."""
        return connect(self.address, client, timeout=timeout)

    @property
    def pids(self) -> list[int]:
        """The processes of servers 0, 1, ...; 0 where one is being replaced or lost."""
        return self._supervisor.pids

    @property
    def replaced(self) -> int:
        """How many servers have died and were replaced."""
        return self._supervisor.replaced

    def start(self, handler: Handler | str, threads: bool) -> None:
        """Start all servers. Raises UsageError where the handler cannot be loaded."""
        if threads:
            self._start_threads(load(handler) if isinstance(handler, str) else handler)
        else:
            self._supervisor.start(name_of(handler))

    def open_listener(self, listen: str, token_file: Path | None, tls: bool) -> None:
        """Let clients of other hosts in. Raises UsageError."""
        host, port = parse(listen, port=0)
        ours, theirs = secrets_for(self._supervisor.address.name, token_file, tls)
        self._supervisor.open_listener((listening_on(host), port), ours, theirs)

    @property
    def far_address(self) -> str:
        """What clients on other hosts connect to. Raises UsageError where none are let in."""
        return str(msgspec.structs.replace(self._supervisor.address, name=self.listener.place))

    def write_credentials(self, path: Path | str) -> None:
        """Write what clients on other hosts need into a new file that only its owner can read. Copy it there."""
        self.listener.credentials.write(Path(path))

    @property
    def listener(self) -> StoreListener:
        """Where clients of other hosts come in. Raises UsageError where none are let in."""
        if self._supervisor.listener is None:
            raise UsageError(
                "This store lets no clients of other hosts in. Start it with local(listen='HOST'), an address of this "
                "machine that they can reach."
            )
        return self._supervisor.listener

    def close(self) -> None:
        """End all servers. May be called twice."""
        self._supervisor.close()
        for thread in self._threads:
            thread.join()
        self._supervisor.release()

    # ------------------------------------------------------------ threads

    def _start_threads(self, handler: Handler) -> None:
        supervisor = self._supervisor
        for index, (memory, listener) in enumerate(zip(supervisor.memories, supervisor.listeners, strict=True)):
            server = Server(
                index, self.num_servers, listener.dup(), handler=handler, memory=os.dup(memory), limit=supervisor.limit
            )
            thread = threading.Thread(target=self._serve, args=(server,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, server: Server) -> None:
        try:
            server.serve(self._supervisor.ending.fileno())
        finally:
            self._supervisor.listeners[
                server.index
            ].close()  # whatever ended it, clients see that nobody comes any more
