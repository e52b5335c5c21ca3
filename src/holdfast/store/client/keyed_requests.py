"""A client's requests: its memory, what it knows of keys, and the requests that pushes and pulls are made of.

A value that is pushed is written into the client's own memory first, and requests say where it lies; so is a place for
rows that are pulled. What is made of the answers is made here, too. For one thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from holdfast.errors import StoreError, UsageError
from holdfast.store.client.handle import Handle
from holdfast.store.client.key_table import Key, KeyTable, chosen
from holdfast.store.client.pending import Pending, ServerWire
from holdfast.store.heap import Extent
from holdfast.store.messages import Done, Init, Meta, Open, Pull, PushRequest, Request, ValueView, check_alike
from holdfast.store.owners import checked_name
from holdfast.store.region import Owned, Tie
from holdfast.store.tensors import (
    Rows,
    TensorCache,
    checked_rows,
    checked_tensor,
    copy_in_pieces,
    meta_of,
    nbytes,
    row_numbers,
    tensor_at,
)

__all__ = ["PIECE", "KeyedRequests"]

#: Bytes of a push after which the server is told that it may go on: while it works on them, the next are written.
PIECE = 2 * 2**20


class KeyedRequests:
    """All that one client asks of its servers. `wires[i]` is the way to server i.

    Resources: owns `memory` and `wires`; `close` closes them.
    """

    def __init__(self, client: str, memory: Owned, wires: Sequence[ServerWire]) -> None:
        self._client, self._memory, self.wires = client, memory, wires
        self.keys = KeyTable(len(wires))
        self._values = TensorCache(memory)
        self._buffers: dict[int, Extent] = {}  # address of its first byte -> place

    def close(self) -> None:
        """End all connections. What is under way stays unanswered."""
        for wire in self.wires:
            wire.close()
        self._values.clear()
        self._memory.close()

    # ------------------------------------------------------------ asking

    def key(self, key: str, deadline: float) -> Key:
        """What is known of a key. Raises UnknownKey, UsageError."""
        checked_name(key, "key")
        return self.keys.find(key, lambda server, name: self.ask(server, name, deadline))

    def known(self, keys: Sequence[str], deadline: float) -> list[Key]:
        """The same of several keys; servers are asked about all of them at once."""
        unknown = [key for key in keys if key not in self.keys]
        with self.together():
            asked = {(home, key): self._open(home, key, deadline) for key in unknown for home in [self.keys.home(key)]}

        def ask(server: int, key: str) -> Done:
            pending = asked.get((server, key))
            return _told(pending, deadline) if pending is not None else self.ask(server, key, deadline)

        return [self.keys.find(key, ask) for key in keys]

    def ask(self, server: int, key: str, deadline: float) -> Done:
        """What a server knows of a key or of a meeting; waits for it."""
        return _told(self._open(server, key, deadline), deadline)

    def counted(self, known: Key, deadline: float) -> int:
        """Up to which number all pushes of this client on a key count."""
        return min(self.ask(server, known.name, deadline).counted for server in known.shares)

    def _open(self, server: int, key: str, deadline: float) -> Pending:
        request = Open(self.wires[server].next_id(), key)
        what = f"which round of {key[1:]!r} is next" if key.startswith("\0") else f"what it knows of key {key!r}"
        pending = self.post(server, request, what, deadline)
        pending.seen = True  # whoever asked is told
        return pending

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is asked of one server in this block may travel together."""
        for wire in self.wires:
            wire.gather()
        try:
            yield
        finally:
            for wire in self.wires:
                wire.send_off()

    def post(
        self,
        server: int,
        request: Request,
        what: str,
        deadline: float,
        place: Extent | None = None,
        keep: object = None,
    ) -> Pending:
        """Ask; when it has ended, `place` is given back and `keep` is kept no longer."""
        return self.wires[server].post(request, what, deadline=deadline, settled=partial(self._settled, place, keep))

    def _settled(self, place: Extent | None, keep: object) -> None:
        if place is not None:
            self._memory.give(place)

    def under_way(self) -> list[Pending]:
        """All that no server has answered."""
        return [pending for wire in self.wires for pending in wire.under_way()]

    def await_writes(self, deadline: float, but: int) -> None:
        """Until all that this client has pushed or initialised has ended, whichever way, at every server but one.

        Raises StoreTimeout.
        """
        for wire in self.wires:
            for pending in wire.under_way() if wire.index != but else ():
                if isinstance(pending.request, PushRequest | Init):
                    wire.wait(pending, deadline)

    def meta(self, value: Tensor, rows: int = -1) -> Meta:
        """What is said of a value, or of a share of one that has so many rows."""
        meta = meta_of(value, self._client)
        return meta if rows < 0 else Meta(meta.dtype, meta.shape, meta.by, rows)

    def write(self, value: Tensor) -> Extent:
        """Put a whole value into this client's memory."""
        place = self._memory.take(value.nbytes, "A first value")
        self._fill(place, value)
        return place

    def _fill(self, place: Extent, value: Tensor) -> None:
        self._values.at(place, meta_of(value, "")).copy_(value)

    def buffer(self, key: str, meta: Meta) -> Tensor:
        """A tensor in this client's memory; pushing it copies nothing."""
        place = self._memory.take(nbytes(meta), f"A buffer for key {key!r}")
        tie = Tie(partial(self._memory.give, place))
        tensor = tensor_at(self._memory, place, meta, tie)
        self._buffers[tensor.data_ptr()] = place
        return tensor

    # ------------------------------------------------------------ pushing

    def init(self, key: str, value: Tensor, spread: bool, deadline: float) -> Handle[None]:
        """Give a key its first value, at one server or a share at each."""
        checked_name(key, "key")
        value = checked_tensor(value, "init", key)
        if spread and value.dim() == 0:
            raise UsageError(f"Key {key!r} is a single number and cannot be spread. Leave out spread=True.")
        rows = value.shape[0] if spread else -1
        pending = []
        for server, share in self.keys.shares(key, rows).items():
            part = value if share is None else value[share[0] : share[1]]
            place = self.write(part)
            request = Init(self.wires[server].next_id(), key, self.meta(part, rows), place)
            pending.append(self.post(server, request, f"init of key {key!r}", deadline, place))
        return Handle(pending, lambda: None, deadline)

    def check(self, known: Key, value: Tensor | Rows) -> None:
        """Would a key's servers take this push? They look again. Raises Mismatch, UsageError."""
        if not isinstance(value, Rows):
            mine = self.meta(checked_tensor(value, "push", known.name), known.meta.rows)
            check_alike(known.name, known.meta, mine, "pushes")
            return
        rows = self.meta(checked_tensor(value.values, "push", known.name))
        checked_rows(value.indices, known.meta, known.name)
        whole = Meta(rows.dtype, known.meta.shape[:1] + rows.shape[1:], rows.by, known.meta.rows)
        check_alike(known.name, known.meta, whole, "pushes rows of")

    def push(
        self, key: str, value: Tensor | Rows, number: int | None, deadline: float, pull: bool = False,
        out: Tensor | None = None,
    ) -> Handle[Any]:  # fmt: skip
        """Push, and pull the version that has it where that is wanted (not for rows)."""
        known = self.key(key, deadline)
        number = known.count(number)
        if isinstance(value, Rows):
            pending = self._push_rows(key, known, value, number, deadline)
        else:
            value = checked_tensor(value, "push", key)
            if known.meta.rows >= 0:
                check_alike(key, known.meta, self.meta(value, known.meta.rows), "pushes")
            pending = [
                self._push_dense(key, server, value if share is None else value[share[0] : share[1]], known, number,
                                 deadline, pull)
                for server, share in known.shares.items()
            ]  # fmt: skip
        if pull:
            return Handle(pending, lambda: self._joined(pending, out), deadline)
        return Handle(pending, lambda: None, deadline)

    def push_pull(
        self, key: str, value: Tensor | Rows, out: Tensor | None, number: int | None, deadline: float
    ) -> Handle[Tensor]:
        """Push, and pull the version that has it; rows in two requests."""
        if not isinstance(value, Rows):
            return self.push(key, value, number, deadline, True, out)
        pushed = self.push(key, value, number, deadline)
        try:
            pulled = self.pull(key, value.indices, out, deadline)
        except StoreError as error:  # the push is on its way nevertheless
            pulled = Handle.failed(error)
        return Handle([*pushed._pending, *pulled._pending], pulled.result, deadline)

    def _push_dense(
        self, key: str, server: int, value: Tensor, known: Key, number: int, deadline: float, pull: bool
    ) -> Pending:
        wire, meta = self.wires[server], self.meta(value, known.meta.rows)
        place = self._buffers.get(value.data_ptr()) if value.is_contiguous() else None
        here, taken = value.nbytes, None
        if place is None or place.size != value.nbytes:
            place = taken = self._memory.take(value.nbytes, f"A push of key {key!r}")
            if value.nbytes > PIECE:
                here = 0
            else:
                self._values.at(place, meta).copy_(value)
        request = PushRequest(wire.next_id(), key, number, meta, place, here, None, pull)
        pending = self.post(server, request, f"a push of key {key!r}", deadline, taken, keep=value)
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
            meta = self.meta(some, known.meta.rows)
            first = -(-indices.nbytes // 64) * 64
            place = self._memory.take(1 << (first + some.nbytes).bit_length(), f"A push of rows of key {key!r}")
            rows, body = place.part(0, indices.nbytes), place.part(first, some.nbytes)
            self._fill(rows, indices)
            self._fill(body, some)
            request = PushRequest(self.wires[server].next_id(), key, number, meta, body, body.size, rows)
            pending.append(self.post(server, request, f"a push of rows of key {key!r}", deadline, place))
        return pending

    # ------------------------------------------------------------ pulling

    def pull(self, key: str, rows: Any, out: Tensor | None, deadline: float) -> Handle[Tensor]:
        """The published version of a key, or of some of its rows."""
        known = self.key(key, deadline)
        if rows is None:
            pending = [
                self.post(server, Pull(self.wires[server].next_id(), key), f"a pull of key {key!r}", deadline)
                for server in known.shares
            ]
            return Handle(pending, lambda: self._joined(pending, out), deadline)
        indices = row_numbers(rows)
        checked_rows(indices, known.meta, key)
        asked: list[tuple[Pending, Extent, Tensor | None, Tie]] = []
        width = nbytes(known.meta) // max(1, known.meta.shape[0]) if known.meta.shape else 0
        for server, share in known.shares.items():
            which, mine = chosen(indices, share)
            first = -(-mine.nbytes // 64) * 64
            place = self._memory.take(1 << (first + len(mine) * width).bit_length(), f"A pull of rows of key {key!r}")
            tie = Tie(partial(self._memory.give, place))
            body = place.part(first, len(mine) * width)
            self._fill(place.part(0, mine.nbytes), mine)
            request = Pull(self.wires[server].next_id(), key, place.part(0, mine.nbytes), body)
            # The pending request keeps the place, whatever becomes of the handle.
            one = self.post(server, request, f"a pull of rows of key {key!r}", deadline, keep=tie)
            asked.append((one, body, which, tie))
        return Handle([one for one, *_ in asked], lambda: self._gathered(asked, known, len(indices), out), deadline)

    def _gathered(
        self, asked: list[tuple[Pending, Extent, Tensor | None, Tie]], known: Key, count: int, out: Tensor | None
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
        views = [self.shown(one) for one in pending]
        if out is not None:
            begin = 0
            for view in views:
                target = out if len(views) == 1 else out[begin : begin + view.shape[0]]
                target.copy_(view)
                begin += view.shape[0] if view.dim() else 0
            return out
        return views[0] if len(views) == 1 else torch.cat(views)

    def shown(self, pending: Pending) -> Tensor:
        """The value that an answer shows; once."""
        view, region = pending.answer, pending.wire.region
        assert isinstance(view, ValueView)
        assert region is not None
        tie, pending.tie = pending.tie, None
        return tensor_at(region, view.place, view.meta, tie)


def _told(pending: Pending, deadline: float) -> Done:
    """What a server says of a key or a meeting; waits for it."""
    pending.wire.wait(pending, deadline)
    if pending.error is not None:
        raise pending.error
    assert isinstance(pending.answer, Done)
    return pending.answer
