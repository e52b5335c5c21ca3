"""The store as one client sees it: push, pull, push_pull, barrier, broadcast.

Each verb returns a Handle at once. Requests of one client on one key are served in the order in which they were made.
A Store is for one thread of one process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from holdfast.errors import StoreError, UsageError
from holdfast.store.handle import Handle
from holdfast.store.heap import Place
from holdfast.store.keyring import Key, Keyring, chosen
from holdfast.store.messages import Done, Init, Meet, Meta, Open, Pull, Push, Request, View, check_alike
from holdfast.store.owners import checked_name, owner
from holdfast.store.region import Owned, Tie, create
from holdfast.store.values import Rows, Values, checked_rows, checked_tensor, copy_in_pieces, meta_of, nbytes, tensor_at
from holdfast.store.wire import Pending, Wire
from holdfast.transport.doorbell import spin_seconds

__all__ = ["Store", "connect"]

#: Seconds that a verb may take unless it is told otherwise.
PATIENCE = 60.0
#: Bytes of a push after which the server is told that it may go on: while it works on them, the next are written.
PIECE = 2 * 2**20


def connect(address: str, client: str, *, timeout: float = PATIENCE) -> Store:
    """Connect to the servers at `address` (see `Group.address`) under a name that no other process has.

    A worker that was killed and comes back takes its old name: its pushes then go on counting where they were.
    """
    return Store(address, client, timeout=timeout)


class Store:
    """One client's connection to all servers.

    Resources: leaving the `with` block waits for what was asked for, and closes; so does `close`.
    Errors: a server that is killed and replaced is waited for, and what was asked of it is asked again; a push is
    applied once nevertheless.
    """

    def __init__(self, address: str, client: str, *, timeout: float = PATIENCE) -> None:
        name, _, counts = address.partition("/")
        servers, _, clients = counts.partition("/")
        if not (name and servers.isdigit() and clients.isdigit() and int(servers) and int(clients)):
            raise UsageError(f"{address!r} is not the address of a store. Use the `address` of the group of servers.")
        self.client = checked_name(client, "client")
        self.num_servers, self.num_clients, self.timeout = int(servers), int(clients), timeout
        self._memory = Owned(create())
        self._values = Values(self._memory)
        spin = spin_seconds(self.num_clients + self.num_servers, os.cpu_count() or 1)
        self._wires = [Wire(i, f"{name}.{i}", client, self._memory, spin=spin) for i in range(self.num_servers)]
        self._keys = Keyring(self.num_servers)
        self._turns: dict[tuple[int, str], int] = {}
        self._buffers: dict[int, Place] = {}  # address of its first byte -> place

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
        for server, share in self._keys.shares(key, value.shape[0] if spread else -1).items():
            part = value if share is None else value[share[0] : share[1]]
            meta = self._meta(part, value.shape[0] if spread else -1)
            place = self._write(part)
            request = Init(self._wires[server].next_id(), key, meta, place)
            pending.append(self._post(server, request, f"init of key {key!r}", deadline, place))
        return Handle(pending, lambda: None, deadline)

    def push(
        self, key: str, value: Tensor | Rows, *, number: int | None = None, timeout: float | None = None
    ) -> Handle[None]:
        """Hand a value, or some rows, to the handler at the key's server.

        It may be changed as soon as this returns, unless it is a `buffer` of this store. `number` is what the push
        counts under, for a worker that repeats its work after it was killed: one that was applied is not applied again.
        """
        return self._guard(lambda: self._pushed(key, value, number, self._deadline(timeout), False))

    def pull(
        self, key: str, *, rows: Any = None, out: Tensor | None = None, timeout: float | None = None
    ) -> Handle[Tensor]:
        """The published version of a key, or of some of its rows.

        Without `rows` it is a view of the server's memory, to be looked at only: whoever writes to it is ended by the
        system. It keeps its version, whatever is pushed, until the last tensor that shows it is gone. Rows, a spread
        key and what is copied into `out` are your own.
        """
        return self._guard(lambda: self._pulled(key, rows, out, self._deadline(timeout)))

    def push_pull(
        self, key: str, value: Tensor | Rows, *, out: Tensor | None = None, number: int | None = None,
        timeout: float | None = None,
    ) -> Handle[Tensor]:  # fmt: skip
        """Push, and pull the version that has it: all of the key, or the rows that were pushed."""
        deadline = self._deadline(timeout)
        if isinstance(value, Rows):
            pushed = self._guard(lambda: self._pushed(key, value, number, deadline, False))
            pulled = self._guard(lambda: self._pulled(key, value.indices, out, deadline))
            return Handle([*pushed._pending, *pulled._pending], pulled.result, deadline)
        return self._guard(lambda: self._pushed(key, value, number, deadline, True, out))

    def barrier(self, name: str = "", *, clients: int | None = None, timeout: float | None = None) -> Handle[None]:
        """Until all clients are at the barrier of this name."""
        name, deadline = "\0barrier " + (name and checked_name(name, "barrier")), self._deadline(timeout)
        server = owner(name, self.num_servers)
        request = self._meet(server, name, clients, deadline)
        shown = f"all {request.parties} clients at barrier {name.removeprefix(chr(0) + 'barrier ')!r}"
        pending = self._post(server, request, shown, deadline)
        pending.late = lambda: self._who_is_here(server, name)
        return Handle([pending], lambda: None, deadline)

    def broadcast(
        self, key: str, value: Tensor | None = None, *, root: str, clients: int | None = None,
        timeout: float | None = None,
    ) -> Handle[Tensor]:  # fmt: skip
        """The value that the client `root` gives, for all clients, when all have asked for it; it is the key's then.

        What the others give is compared in shape and dtype only; they may give nothing.
        """
        checked_name(key, "key")
        deadline, server = self._deadline(timeout), owner(key, self.num_servers)
        if value is None and root == self.client:
            raise UsageError(f"Client {root!r} is the root of a broadcast of key {key!r}, but gave no value. Give one.")
        place = meta = None
        if value is not None:
            value = checked_tensor(value, "broadcast", key)
            meta, place = self._meta(value), self._write(value) if root == self.client else None
        request = self._meet(server, "\0broadcast " + key, clients, deadline, key, meta, place)
        what = f"all {request.parties} clients at the broadcast of key {key!r} by {root!r}"
        pending = self._post(server, request, what, deadline, place)
        pending.late = lambda: self._who_is_here(server, request.name)
        return Handle([pending], lambda: self._shown(pending), deadline)

    # ------------------------------------------------------------ besides

    def applied(self, key: str) -> int:
        """The number of this client's last push on a key that all its servers have settled; 0: there is none."""
        deadline = self._deadline(None)
        self._keys.forget(key)
        return min(self._key(key, deadline).last.values())

    def buffer(self, key: str) -> Tensor:
        """A tensor like the key, in memory that the servers see: pushing it copies nothing.

        Do not write to it between a push and the end of that push.
        """
        meta = self._key(key, self._deadline(None)).meta
        place = self._memory.take(nbytes(meta), f"A buffer for key {key!r}")
        tie = Tie(partial(self._memory.give, place))
        tensor = tensor_at(self._memory, place, meta, tie)
        self._buffers[tensor.data_ptr()] = place
        return tensor

    def wait(self, timeout: float | None = None) -> None:
        """Until all that was asked for has ended. Raises the first error that nobody was told of."""
        for wire in self._wires:
            wire.wait_all(self._deadline(timeout))
        for pending in [one for wire in self._wires for one in wire.failures if not one.seen]:
            pending.seen = True
            if pending.error is not None:
                raise pending.error

    def close(self) -> None:
        """Wait for what was asked for, and close."""
        try:
            self.wait()
        finally:
            self._shut()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._shut()

    def _shut(self) -> None:
        for wire in self._wires:
            wire.close()
        self._values.clear()
        self._memory.close()

    # ------------------------------------------------------------ pushing and pulling

    def _pushed(
        self, key: str, value: Tensor | Rows, number: int | None, deadline: float, pull: bool, out: Tensor | None = None
    ) -> Handle[Any]:
        known = self._key(key, deadline)
        number = known.count(number)
        if isinstance(value, Rows):
            pending = self._push_rows(key, known, value, number, deadline)
        else:
            value = checked_tensor(value, "push", key)
            if known.meta.rows >= 0:
                check_alike(key, known.meta, self._meta(value, known.meta.rows), "pushes")
            pending = [
                self._push_dense(key, server, value if share is None else value[share[0] : share[1]], known, number,
                                 deadline, pull)
                for server, share in known.shares.items()
            ]  # fmt: skip
        if pull:
            return Handle(pending, lambda: self._joined(pending, out), deadline)
        return Handle(pending, lambda: None, deadline)

    def _push_dense(
        self, key: str, server: int, value: Tensor, known: Key, number: int, deadline: float, pull: bool
    ) -> Pending:
        wire, meta = self._wires[server], self._meta(value, known.meta.rows)
        place = self._buffers.get(value.data_ptr()) if value.is_contiguous() else None
        here, taken = value.nbytes, None
        if place is None or place.size != value.nbytes:
            place = taken = self._memory.take(value.nbytes, f"A push of key {key!r}")
            if value.nbytes > PIECE:
                here = 0
            else:
                self._values.at(place, meta).copy_(value)
        request = Push(wire.next_id(), key, number, meta, place, here, None, pull)
        pending = self._post(server, request, f"a push of key {key!r}", deadline, taken, keep=value)
        if here < value.nbytes:
            target = self._values.at(place, meta)
            copy_in_pieces(target, value, PIECE, partial(wire.grown, pending))
        return pending

    def _push_rows(self, key: str, known: Key, value: Rows, number: int, deadline: float) -> list[Pending]:
        values = checked_tensor(value.values, "push", key)
        checked_rows(value.indices, known.meta, key)
        pending = []
        # A share that has none of the rows is pushed to as well, so that all servers stand at the same number.
        for server, share in known.shares.items():
            which, indices = chosen(value.indices, share)
            some = values if which is None else values[which]
            meta = self._meta(some, known.meta.rows)
            first = -(-indices.nbytes // 64) * 64
            place = self._memory.take(1 << (first + some.nbytes).bit_length(), f"A push of rows of key {key!r}")
            rows, body = place.part(0, indices.nbytes), place.part(first, some.nbytes)
            self._fill(rows, indices)
            self._fill(body, some)
            request = Push(self._wires[server].next_id(), key, number, meta, body, body.size, rows)
            pending.append(self._post(server, request, f"a push of rows of key {key!r}", deadline, place))
        return pending

    def _pulled(self, key: str, rows: Any, out: Tensor | None, deadline: float) -> Handle[Tensor]:
        known = self._key(key, deadline)
        if rows is None:
            pending = [
                self._post(server, Pull(self._wires[server].next_id(), key), f"a pull of key {key!r}", deadline)
                for server, _ in known.shares.items()
            ]
            return Handle(pending, lambda: self._joined(pending, out), deadline)
        indices = torch.as_tensor(rows, dtype=torch.int64).detach().flatten()
        checked_rows(indices, known.meta, key)
        asked: list[tuple[Pending, Place, Tensor | None, Tie]] = []
        width = nbytes(known.meta) // max(1, known.meta.shape[0]) if known.meta.shape else 0
        for server, share in known.shares.items():
            which, mine = chosen(indices, share)
            first = -(-mine.nbytes // 64) * 64
            place = self._memory.take(1 << (first + len(mine) * width).bit_length(), f"A pull of rows of key {key!r}")
            tie = Tie(partial(self._memory.give, place))
            body = place.part(first, len(mine) * width)
            self._fill(place.part(0, mine.nbytes), mine)
            request = Pull(self._wires[server].next_id(), key, place.part(0, mine.nbytes), body)
            # The pending request keeps the place, whatever becomes of the handle.
            one = self._post(server, request, f"a pull of rows of key {key!r}", deadline, keep=tie)
            asked.append((one, body, which, tie))
        return Handle([one for one, *_ in asked], lambda: self._gathered(asked, known, len(indices), out), deadline)

    def _gathered(
        self, asked: list[tuple[Pending, Place, Tensor | None, Tie]], known: Key, count: int, out: Tensor | None
    ) -> Tensor:
        shape = (count, *known.meta.shape[1:])
        total = out
        for pending, body, which, tie in asked:
            assert isinstance(pending.answer, Done)
            assert pending.answer.meta is not None
            rows = tensor_at(self._memory, body, pending.answer.meta, tie)
            if which is None and out is None:
                return rows
            if total is None:
                total = torch.empty(shape, dtype=rows.dtype)
            if which is None:
                total.copy_(rows)
            else:
                total[which] = rows
        assert total is not None
        return total

    def _joined(self, pending: list[Pending], out: Tensor | None) -> Tensor:
        views = [self._shown(one) for one in pending]
        if out is not None:
            begin = 0
            for view in views:
                target = out if len(views) == 1 else out[begin : begin + view.shape[0]]
                target.copy_(view)
                begin += view.shape[0] if view.dim() else 0
            return out
        return views[0] if len(views) == 1 else torch.cat(views)

    def _shown(self, pending: Pending) -> Tensor:
        view, region = pending.answer, pending.wire.region
        assert isinstance(view, View)
        assert region is not None
        tie, pending.tie = pending.tie, None
        return tensor_at(region, view.place, view.meta, tie)

    # ------------------------------------------------------------ asking

    def _key(self, key: str, deadline: float) -> Key:
        return self._keys.find(key, lambda server, name: self._ask(server, name, deadline))

    def _ask(self, server: int, key: str, deadline: float) -> Done:
        request = Open(self._wires[server].next_id(), key)
        pending = self._post(server, request, f"what it knows of key {key!r}", deadline)
        pending.wire.wait(pending, deadline)
        pending.seen = True
        if pending.error is not None:
            raise pending.error
        assert isinstance(pending.answer, Done)
        return pending.answer

    def _meet(
        self, server: int, name: str, clients: int | None, deadline: float, key: str = "", meta: Meta | None = None,
        place: Place | None = None,
    ) -> Meet:  # fmt: skip
        turn = self._turns.get((server, name))
        if turn is None:
            turn = self._ask(server, name, deadline).number
        self._turns[server, name] = turn + 1
        parties = self.num_clients if clients is None else clients
        return Meet(self._wires[server].next_id(), name, turn + 1, parties, key, meta, place)

    def _who_is_here(self, server: int, name: str) -> str:
        here = self._ask(server, name, self._deadline(1.0)).here
        return f"Only {', '.join(map(repr, here))} {'is' if len(here) == 1 else 'are'} there"

    def _post(
        self, server: int, request: Request, what: str, deadline: float, place: Place | None = None, keep: object = None
    ) -> Pending:
        """Ask; when it has ended, `place` is given back and `keep` is kept no longer."""
        return self._wires[server].post(request, what, deadline=deadline, settled=partial(self._settled, place, keep))

    def _settled(self, place: Place | None, keep: object) -> None:
        if place is not None:
            self._memory.give(place)

    def _guard(self, act: Callable[[], Handle[Any]]) -> Handle[Any]:
        """What the servers refuse is told by the handle, whenever they were asked."""
        try:
            return act()
        except StoreError as error:
            return Handle.failed(error)

    def _deadline(self, timeout: float | None) -> float:
        return time.monotonic() + (self.timeout if timeout is None else timeout)

    def _meta(self, value: Tensor, rows: int = -1) -> Meta:
        meta = meta_of(value, self.client)
        return meta if rows < 0 else Meta(meta.dtype, meta.shape, meta.by, rows)

    def _write(self, value: Tensor) -> Place:
        place = self._memory.take(value.nbytes, "A first value")
        self._fill(place, value)
        return place

    def _fill(self, place: Place, value: Tensor) -> None:
        self._values.at(place, meta_of(value, "")).copy_(value)
