"""The store as one client sees it: push, pull, push_pull, barrier, broadcast.

Each verb returns a Handle at once. Requests of one client on one key are served in the order in which they were made.
A Store is for one thread of one process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from holdfast.errors import StoreError, UsageError
from holdfast.store import address as addresses
from holdfast.store.errands import Errands
from holdfast.store.farwire import FarWire
from holdfast.store.handle import Handle
from holdfast.store.messages import Done, Init, Meet
from holdfast.store.owners import checked_name, owner
from holdfast.store.pending import Asked, Pending, wait_for
from holdfast.store.region import Owned, create
from holdfast.store.values import Rows, checked_tensor
from holdfast.store.waiting import look_seconds
from holdfast.store.wire import Wire
from holdfast.transport.credentials import Credentials

__all__ = ["Store", "connect"]

#: Seconds that a verb may take unless it is told otherwise.
PATIENCE = 60.0


def connect(
    address: str, client: str, *, credentials: Path | str | None = None, timeout: float = PATIENCE
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
        self, address: str, client: str, *, credentials: Credentials | None = None, timeout: float = PATIENCE
    ) -> None:
        where = addresses.parse(address)
        self.client = checked_name(client, "client")
        self.num_servers, self.num_clients, self.timeout = where.servers, where.clients, timeout
        memory = Owned(create())
        self._errands = Errands(client, memory, _wires(where, client, memory, credentials))
        self._crew = where.crew
        self._met: dict[tuple[int, str], Pending] = {}  # the last round of each meeting that we came to

    # ------------------------------------------------------------ the verbs

    def init(self, key: str, value: Tensor, *, spread: bool = False, timeout: float | None = None) -> Handle[None]:
        """Give a key its first value. The first client's counts; the others must give the same shape and dtype.

        `spread` cuts the rows of a large table into one share per server; otherwise the key's name decides which of
        them holds it.
        """
        checked_name(key, "key")
        value, deadline = checked_tensor(value, "init", key), self._deadline(timeout)
        if spread and value.dim() == 0:
            raise UsageError(f"Key {key!r} is a single number and cannot be spread. Leave out spread=True.")
        pending = []
        for server, share in self._errands.keys.shares(key, value.shape[0] if spread else -1).items():
            part = value if share is None else value[share[0] : share[1]]
            meta = self._errands.meta(part, value.shape[0] if spread else -1)
            place = self._errands.write(part)
            request = Init(self._errands.wires[server].next_id(), key, meta, place)
            pending.append(self._errands.post(server, request, f"init of key {key!r}", deadline, place))
        return Handle(pending, lambda: None, deadline)

    def push(
        self, key: str, value: Tensor | Rows, *, number: int | None = None, timeout: float | None = None
    ) -> Handle[None]:
        """Hand a value, or some rows, to the handler at the key's server.

        It may be changed as soon as this returns, unless it is a `buffer` of this store. `number` is what the push
        counts under, for a worker that repeats its work after it was killed: one that was applied is not applied again.
        """
        return self._guard(lambda: self._errands.push(key, value, number, self._deadline(timeout), False))

    def pull(
        self, key: str, *, rows: Any = None, out: Tensor | None = None, timeout: float | None = None
    ) -> Handle[Tensor]:
        """The published version of a key, or of some of its rows.

        Without `rows` it is a view of the server's memory, to be looked at only: whoever writes to it is ended by the
        system. It keeps its version, whatever is pushed, until the last tensor that shows it is gone. Rows, a spread
        key and what is copied into `out` are your own.
        """
        return self._guard(lambda: self._errands.pull(key, rows, out, self._deadline(timeout)))

    def push_pull(
        self, key: str, value: Tensor | Rows, *, out: Tensor | None = None, number: int | None = None,
        timeout: float | None = None,
    ) -> Handle[Tensor]:  # fmt: skip
        """Push, and pull the version that has it: all of the key, or the rows that were pushed."""
        deadline = self._deadline(timeout)
        if isinstance(value, Rows):
            pushed = self._guard(lambda: self._errands.push(key, value, number, deadline, False))
            pulled = self._guard(lambda: self._errands.pull(key, value.indices, out, deadline))
            return Handle([*pushed._pending, *pulled._pending], pulled.result, deadline)
        return self._guard(lambda: self._errands.push(key, value, number, deadline, True, out))

    def barrier(self, name: str = "", *, clients: int | None = None, timeout: float | None = None) -> Handle[None]:
        """Until all clients are at the barrier of this name; in the store of a run, until all of its crew are.

        Whoever passes it sees every push that any of them has made before it called `barrier`. For that, this call
        waits for the pushes of its own client; how they ended is told by their own handles. Who calls it again after a
        StoreTimeout comes to the same round again, and not to the next one.
        """
        deadline, meeting = self._deadline(timeout), f"\0barrier {name}"
        if name != "":
            checked_name(name, "barrier")
        server = owner(meeting, self.num_servers)
        turn, parties = self._come(server, meeting, clients, deadline)
        request = Meet(self._errands.wires[server].next_id(), meeting, turn, parties)
        pending = self._errands.post(server, request, f"{_all(parties)} at barrier {name!r}", deadline)
        pending.late = lambda: self._who_is_here(server, meeting)
        self._met[server, meeting] = pending
        return Handle([pending], lambda: None, deadline)

    def broadcast(
        self, key: str, value: Tensor | None = None, *, root: str, clients: int | None = None,
        timeout: float | None = None,
    ) -> Handle[Tensor]:  # fmt: skip
        """The value that the client `root` gives, for all clients, when all have asked for it; it is the key's then.

        What the others give is compared in shape and dtype only; they may give nothing. As at a barrier, this call
        waits for the pushes of its own client. What was pushed to this very key is replaced.
        """
        checked_name(key, "key")
        checked_name(root, "client")
        deadline, server = self._deadline(timeout), owner(key, self.num_servers)
        if value is None and root == self.client:
            raise UsageError(f"Client {root!r} is the root of a broadcast of key {key!r}, but gave no value. Give one.")
        if value is not None:
            value = checked_tensor(value, "broadcast", key)
        turn, parties = self._come(server, "\0broadcast " + key, clients, deadline)
        meta = None if value is None else self._errands.meta(value)
        place = self._errands.write(value) if value is not None and root == self.client else None
        request = Meet(
            self._errands.wires[server].next_id(), "\0broadcast " + key, turn, parties, key, meta, place
        )  # fmt: skip
        what = f"{_all(parties)} at the broadcast of key {key!r} by {root!r}"
        pending = self._errands.post(server, request, what, deadline, place)
        pending.late = lambda: self._who_is_here(server, request.name)
        self._met[server, request.name] = pending
        return Handle([pending], lambda: self._errands.shown(pending), deadline)

    # ------------------------------------------------------------ besides

    def applied(self, key: str) -> int:
        """Up to which number all pushes of this client on a key count, at all its servers; 0: none does.

        One that failed does not, and none behind it is told until it was pushed again under its number, and counts.
        Whoever begins again with the next number repeats all that is missing; what counts already is not applied again.
        Servers remember of the last 63 numbers which have failed.
        """
        deadline = self._deadline(None)
        servers = self._errands.key(key, deadline).shares
        return min(self._errands.ask(server, key, deadline).counted for server in servers)

    def buffer(self, key: str) -> Tensor:
        """A tensor like the key, in memory that the servers see: pushing it copies nothing.

        Do not write to it between a push and the end of that push.
        """
        return self._errands.buffer(key, self._errands.key(key, self._deadline(None)).meta)

    def wait(self, timeout: float | None = None) -> None:
        """Until all that was asked for has ended. Raises the first error that nobody was told of."""
        wait_for(self._errands.under_way(), self._deadline(timeout))
        self._raise_unseen()

    def _raise_unseen(self) -> None:
        for pending in [one for wire in self._errands.wires for one in wire.failures if not one.seen]:
            pending.seen = True
            if pending.error is not None:
                raise pending.error

    def close(self) -> None:
        """Wait for what was asked for, and close. What somebody was told to take too long is not waited for again."""
        now, deadline = time.monotonic(), self._deadline(None)
        try:
            for pending in self._errands.under_way():
                if (until := pending.patience(now, deadline)) is not None:
                    pending.wire.wait(pending, until)
            self._raise_unseen()
        finally:
            self._errands.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._errands.close()

    # ------------------------------------------------------------ meeting others

    def _come(self, server: int, name: str, clients: int | None, deadline: float) -> tuple[int, int]:
        """Make ready for a meeting: which round of it is ours, and how many meet."""
        parties = clients if clients is not None else 0 if self._crew else self.num_clients
        what = name.strip("\0 ")
        if clients is None and not parties and not self._crew:
            verb = what.partition(" ")[0]
            raise UsageError(
                f"Client {self.client!r} is at {what!r}, and nobody knows for how many clients to wait. Say so when "
                f"the servers are started, store.local(clients=3), or here, {verb}(..., clients=3)."
            )
        if parties < 1 and (clients is not None or not self._crew):
            raise UsageError(f"Client {self.client!r} is at {what!r} with clients={parties}: there is at least one.")
        # Others take our arrival for the end of what we have pushed, and a server knows only of its own keys.
        self._errands.await_writes(deadline)
        last = self._met.get((server, name))
        if last is not None:
            last.wire.poll()
        return _turn(last) or self._errands.ask(server, name, deadline).number + 1, parties

    def _who_is_here(self, server: int, name: str) -> str:
        found = self._errands.ask(server, name, self._deadline(1.0))
        here, awaited = (", ".join(map(repr, some)) for some in (found.here, found.awaited if self._crew else ()))
        missing = f", and {awaited} {'is' if len(found.awaited) == 1 else 'are'} not" if awaited else ""
        return f"Only {here} {'is' if len(found.here) == 1 else 'are'} there{missing}"

    def _guard(self, act: Callable[[], Handle[Any]]) -> Handle[Any]:
        """What the servers refuse is told by the handle, whenever they were asked."""
        try:
            return act()
        except StoreError as error:
            return Handle.failed(error)

    def _deadline(self, timeout: float | None) -> float:
        return time.monotonic() + (self.timeout if timeout is None else timeout)


def _all(parties: int) -> str:
    return f"all {parties} clients" if parties else "the crew of the run"


def _turn(last: Pending | None) -> int | None:
    """The number of the next round of a meeting, by what became of the last one. Pure. None: the server has to say."""
    if last is None or last.error is not None:
        return None
    assert isinstance(last.request, Meet)
    turn = last.request.turn
    if isinstance(last.answer, Done):
        return last.answer.number + 1
    return turn if last.overdue and not last.done else turn + 1


def _wires(
    address: addresses.Address, client: str, memory: Owned, credentials: Credentials | None
) -> list[Asked]:  # fmt: skip
    """The ways to all servers. Raises what keeps us from one of them; the others are closed then, and the memory."""
    place = address.place
    spin = look_seconds(max(1, address.clients) + address.servers, os.cpu_count() or 1)
    wires: list[Asked] = []
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
                wires.append(FarWire(server, place, client, memory, credentials))
    except BaseException:
        for wire in wires:
            wire.close()
        memory.close()
        raise
    return wires
