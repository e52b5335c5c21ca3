"""The store as one client sees it: push, pull, push_pull, barrier, broadcast.

Each verb takes one key, or several in a list or a tuple, and returns one Handle. Requests of one client on one key are
served in the order in which they were made. A Store is for one thread of one process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, overload

from torch import Tensor

from holdfast.config.limits import STORE
from holdfast.errors import StoreError, UsageError
from holdfast.store import address as addresses
from holdfast.store.client.barrier_rounds import BarrierRounds
from holdfast.store.client.handle import Handle
from holdfast.store.client.keyed_requests import KeyedRequests
from holdfast.store.client.multi_key import Keys, multi_keyed, several
from holdfast.store.client.pending import ServerWire, wait_for
from holdfast.store.client.wire import Wire
from holdfast.store.owners import checked_name
from holdfast.store.region import Owned, create
from holdfast.store.remote.tcp_wire import TcpWire
from holdfast.store.tensors import Rows
from holdfast.store.waiting import look_seconds
from holdfast.transport.auth.credentials import Credentials

__all__ = ["Store", "connect"]

Value = Tensor | Rows


def connect(
    address: str, client: str, *, credentials: Path | str | None = None, timeout: float = STORE.timeout
) -> Store:  # fmt: skip
    """Connect to the servers at `address` (see `Group.address`) under a name that no other process has.

    A worker that was killed and comes back takes its old name: its pushes then go on counting where they were. Servers
    on another host (`Group.far_address`) let nobody in without their token: `credentials` is the file that
    `Group.write_credentials` wrote there.
    """
    found = Credentials.read(Path(credentials)) if credentials is not None else None
    return Store(address, client, credentials=found, timeout=timeout)


class Store:
    """One client's connection to all servers.

    Resources: leaving the `with` block waits for what was asked for, and closes; so does `close`.
    Errors: a server that is killed and replaced is waited for, and what was asked of it is asked again; a push is
    applied once nevertheless.
    """

    def __init__(
        self, address: str, client: str, *, credentials: Credentials | None = None, timeout: float = STORE.timeout
    ) -> None:
        where = addresses.parse(address)
        self.client = checked_name(client, "client")
        self.num_servers, self.num_clients, self.timeout = where.servers, where.clients, timeout
        memory = Owned(create())
        self._keyed_requests = KeyedRequests(client, memory, _wires(where, client, memory, credentials))
        self._rounds = BarrierRounds(client, where, self._keyed_requests)
        self._refused: list[Handle[Any]] = []  # that failed before a server was asked, perhaps unseen

    # ------------------------------------------------------------ the verbs

    def init(
        self, key: str | Keys, value: Tensor | Sequence[Tensor], *, spread: bool = False, timeout: float | None = None
    ) -> Handle[None]:
        """Give a key its first value. The first client's counts; the others must give the same shape and dtype.

        `spread` cuts the rows of a large table into one share per server; otherwise the key's name decides which of
        them holds it.
        """
        return self._do("init", key, timeout, partial(self._keyed_requests.init, spread=spread), values=value)

    def push(
        self, key: str | Keys, value: Value | Sequence[Value], *, number: int | None = None,
        timeout: float | None = None,
    ) -> Handle[None]:  # fmt: skip
        """Hand a value, or some rows, to the handler at the key's server; of several keys, to each its own.

        It may be changed as soon as this returns, unless it is a `buffer` of this store. `number` is what the push
        counts under, for a worker that repeats its work after it was killed: one that was applied is not applied again.
        """
        return self._do("push", key, timeout, partial(self._keyed_requests.push, number=number), values=value)

    @overload
    def pull(
        self, key: str, *, rows: Any = None, out: Tensor | None = None, timeout: float | None = None
    ) -> Handle[Tensor]: ...
    @overload
    def pull(
        self, key: Keys, *, rows: Sequence[Any] | None = None, out: Sequence[Tensor | None] | None = None,
        timeout: float | None = None,
    ) -> Handle[tuple[Tensor, ...]]: ...  # fmt: skip
    def pull(self, key: str | Keys, *, rows: Any = None, out: Any = None, timeout: float | None = None) -> Handle[Any]:
        """The published version of a key, or of some of its rows; of several keys a tuple, in their order.

        Without `rows` it is a view of the server's memory, to be looked at only: whoever writes to it is ended by the
        system. It keeps its version, whatever is pushed, until the last tensor that shows it is gone. Rows, a spread
        key and what is copied into `out` are your own. For several keys, `rows` and `out` have one entry for each.
        """
        return self._do("pull", key, timeout, self._keyed_requests.pull, rows=rows, out=out)

    @overload
    def push_pull(
        self, key: str, value: Value, *, out: Tensor | None = None, number: int | None = None,
        timeout: float | None = None,
    ) -> Handle[Tensor]: ...  # fmt: skip
    @overload
    def push_pull(
        self, key: Keys, value: Sequence[Value], *, out: Sequence[Tensor | None] | None = None,
        number: int | None = None, timeout: float | None = None,
    ) -> Handle[tuple[Tensor, ...]]: ...  # fmt: skip
    def push_pull(
        self, key: str | Keys, value: Any, *, out: Any = None, number: int | None = None, timeout: float | None = None
    ) -> Handle[Any]:
        """Push, and pull the version that has it: all of the key, or the rows that were pushed."""
        act = partial(self._keyed_requests.push_pull, number=number)
        return self._do("push_pull", key, timeout, act, values=value, out=out)

    def barrier(self, name: str = "", *, clients: int | None = None, timeout: float | None = None) -> Handle[None]:
        """Until all clients are at the barrier of this name; in the store of a run, until all of its crew are.

        Whoever passes it sees every push that any of them has made before it called `barrier`. For that, this call
        waits for what its own client has pushed at other servers than the barrier's (with one server: for nothing);
        how it ended is told by its own handle. Who calls it again after a StoreTimeout comes to the same round again,
        and not to the next one.
        """
        deadline = self._deadline(timeout)
        return self._guard(lambda: self._rounds.barrier(name, clients, deadline))

    @overload
    def broadcast(
        self, key: str, value: Tensor | None = None, *, root: str, clients: int | None = None,
        timeout: float | None = None,
    ) -> Handle[Tensor]: ...  # fmt: skip
    @overload
    def broadcast(
        self, key: Keys, value: Sequence[Tensor] | None = None, *, root: str, clients: int | None = None,
        timeout: float | None = None,
    ) -> Handle[tuple[Tensor, ...]]: ...  # fmt: skip
    def broadcast(
        self, key: str | Keys, value: Any = None, *, root: str, clients: int | None = None, timeout: float | None = None
    ) -> Handle[Any]:
        """The value that the client `root` gives, for all clients, when all have asked for it; it is the key's then.

        What the others give is compared in shape and dtype only; they may give nothing. As at a barrier, this call
        waits for what its own client has pushed at other servers. What was pushed to this very key is replaced.
        """
        for name, given in zip(several(key) or (), value if isinstance(value, list | tuple) else (), strict=False):
            self._rounds.check(name, given, root)  # all of them, before anybody hears of one
        act = partial(self._rounds.broadcast, root=root, clients=clients)
        return self._do("broadcast", key, timeout, act, values=value)

    # ------------------------------------------------------------ besides

    def applied(self, key: str | Keys) -> int:
        """Up to which number all pushes of this client on a key, or on several, count at all servers; 0: none does.

        One that failed does not, and none behind it is told until it was pushed again under its number, and counts.
        Whoever begins again with the next number repeats all that is missing; what counts already is not applied again.
        Servers remember of the last 63 numbers which have failed.
        """
        deadline, keys = self._deadline(None), several(key)
        found = self._keyed_requests.known([checked_name(key, "key")] if keys is None else keys, deadline)
        return min((self._keyed_requests.counted(one, deadline) for one in found), default=0)

    def buffer(self, key: str) -> Tensor:
        """A tensor like the key, in memory that the servers see: pushing it copies nothing.

        Do not write to it between a push and the end of that push.
        """
        return self._keyed_requests.buffer(key, self._keyed_requests.key(key, self._deadline(None)).meta)

    def wait(self, timeout: float | None = None) -> None:
        """Until all that was asked for has ended. Raises the first error that nobody was told of."""
        wait_for(self._keyed_requests.under_way(), self._deadline(timeout))
        self._raise_unseen()

    def _raise_unseen(self) -> None:
        for pending in [one for wire in self._keyed_requests.wires for one in wire.failures if not one.seen]:
            pending.seen = True
            if pending.error is not None:
                raise pending.error
        for handle in [one for one in self._refused if not one.seen]:
            handle.seen = True
            handle.result(timeout=0.0)  # which raises

    def close(self) -> None:
        """Wait for what was asked for, and close. What somebody was told to take too long is not waited for again."""
        now, deadline = time.monotonic(), self._deadline(None)
        try:
            for pending in self._keyed_requests.under_way():
                if (until := pending.patience(now, deadline)) is not None:
                    pending.wire.wait(pending, until)
            self._raise_unseen()
        finally:
            self._keyed_requests.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._keyed_requests.close()

    # ------------------------------------------------------------ one handle for whatever was asked

    def _guard(self, act: Callable[[], Handle[Any]]) -> Handle[Any]:
        """What the servers refuse is told by the handle, whenever they were asked."""
        try:
            return act()
        except StoreError as error:
            return self._note(Handle.failed(error))

    def _do(
        self, verb: str, key: Any, timeout: float | None, act: Callable[..., Handle[Any]], **given: Any
    ) -> Handle[Any]:
        """A verb on one key, or on several."""
        keys, deadline = several(key), self._deadline(timeout)
        if keys is None:
            return self._guard(lambda: act(key, *given.values(), deadline=deadline))
        handle = multi_keyed(self._keyed_requests, verb, keys, partial(act, deadline=deadline), given, deadline)
        return handle if handle.error is None else self._note(handle)

    def _note(self, handle: Handle[Any]) -> Handle[Any]:
        """It has failed already: whoever waits for all, or closes, is told if nobody was."""
        self._refused = [one for one in self._refused if not one.seen] + [handle]
        return handle

    def _deadline(self, timeout: float | None) -> float:
        return time.monotonic() + (self.timeout if timeout is None else timeout)


def _wires(
    address: addresses.GroupAddress, client: str, memory: Owned, credentials: Credentials | None
) -> list[ServerWire]:  # fmt: skip
    """The ways to all servers. Raises what keeps us from one of them; the others are closed then, and the memory."""
    place = address.place
    spin = look_seconds(max(1, address.clients) + address.servers, os.cpu_count() or 1)
    wires: list[ServerWire] = []
    try:
        if place is not None and credentials is None:
            raise UsageError(
                f"The servers at {address.name} are on another host, and let nobody in without their token. Give "
                "connect(..., credentials=FILE), the file that write_credentials of their group wrote."
            )
        for server in range(address.servers):
            if place is None or credentials is None:
                wires.append(Wire(server, f"{address.name}.{server}", client, memory, spin=spin))
            else:
                wires.append(TcpWire(server, place, client, memory, credentials))
    except BaseException:
        for wire in wires:
            wire.close()
        memory.close()
        raise
    return wires
