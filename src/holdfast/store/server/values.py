"""Values: those that one server holds, and how they change.

A value lies in up to `MAX_BUFFERS` buffers of the server's region, one of which is published. Clients look at published
buffers directly, so a buffer is written only while nobody looks at it: a push is applied to a copy in another buffer,
which is then published by one change of the ledger. A kill or an exception before that leaves everything as it was.

Rows of a table would be a poor reason to copy all of it. Their new contents are computed aside and written down
together with the change; then they are copied into the published buffer, by whoever takes over if need be. Only if
somebody looks at that buffer, the whole of it is copied first.
"""

from __future__ import annotations

import os
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from holdfast.errors import HandlerFailed, ResourceError, UnknownKey, UsageError
from holdfast.store.dedup import DedupWindow
from holdfast.store.handlers import Handler, is_into
from holdfast.store.heap import Extent
from holdfast.store.messages import Meta, check_alike
from holdfast.store.region import Owned, Region
from holdfast.store.server.ledger import MAX_BUFFERS, Ledger, LedgerChange
from holdfast.store.server.partial_push import PartialPush
from holdfast.store.server.stored_value import StoredValue
from holdfast.store.tensors import checked_rows, coalesced, meta_of, tensor_at

__all__ = ["Values"]

_GHOST = "\0"  #: stands for those who may look at a buffer since before this server took over


class Values:
    """All values of one server, over memory that may have had another server before."""

    def __init__(self, region: Owned, ledger: Ledger, handler: Handler, server: int) -> None:
        self.handler, self._region, self._ledger, self._server = handler, region, ledger, server
        self._sealed = Region(region.look_only(), writable=False) if is_into(handler) else None
        self._held: dict[str, StoredValue] = {}
        self._staging: Extent | None = None
        for number, (name, meta) in enumerate(ledger.keys):
            if meta.dtype:  # meetings have records too, and no value
                self._take_over(StoredValue(number, name, meta))
        if change := ledger.under_way():
            if change.rows:
                self._write_rows(change)
            ledger.end(change)
            for held in self._held.values():
                held.version, held.current = ledger.version(held.number), ledger.current(held.number)
        ledger.note_push()  # that of whoever was here before has been read by whoever buried it
        self._awaited = {name for i, name in enumerate(ledger.clients) if ledger.process(i)}
        self._haunted = True
        self._no_ghosts()

    # ------------------------------------------------------------ looking

    def find(self, key: str) -> StoredValue | None:
        """A key that has a value."""
        held = self._held.get(key)
        return held if held is not None and held.version else None

    def get(self, key: str) -> StoredValue:
        """The same. Raises UnknownKey."""
        held = self.find(key)
        if held is None:
            known = sorted(name for name, other in self._held.items() if other.version)
            shown = ", ".join(map(repr, known[:5])) + (", ..." if len(known) > 5 else "")
            raise UnknownKey(
                f"Key {key!r} was never initialised. Server {self._server}, where it would be, holds "
                f"{shown or 'no key yet'}. Call init({key!r}, tensor) first, in any one client."
            )
        return held

    def look(self, held: StoredValue, client: str) -> int:
        """From now on this client looks at the published buffer."""
        held.looks[held.current][client] += 1
        return held.current

    def release(self, key: str, buffer: int, client: str) -> None:
        """One look less."""
        held = self._held.get(key)
        if held is not None and 0 <= buffer < MAX_BUFFERS and held.looks[buffer][client] > 0:
            held.looks[buffer][client] -= 1
            if not held.looks[buffer][client]:
                del held.looks[buffer][client]  # one that is empty is looked at by nobody

    def came(self, client: str, looks: tuple[tuple[str, int], ...]) -> None:
        """A client is here (again), and looks at these buffers, which it knows from whoever was here before."""
        self.left(client)
        for key, buffer in looks:
            if (held := self._held.get(key)) is not None and 0 <= buffer < MAX_BUFFERS:
                held.looks[buffer][client] += 1
        self._no_ghosts(client)

    def left(self, client: str) -> None:
        """A client is gone, and with it all its looks."""
        for held in self._held.values():
            for looks in held.looks:
                looks.pop(client, None)
        self._no_ghosts(client)

    def close(self) -> None:
        """Look away from all memory."""
        self._held.clear()
        if self._sealed is not None:
            self._sealed.close()

    # ------------------------------------------------------------ changing

    def init(self, key: str, meta: Meta, value: Tensor) -> StoredValue:
        """A new key; one that is there stays as it is, if it is alike. Raises Mismatch."""
        held = self.find(key)
        if held is not None:
            check_alike(key, held.meta, meta, "initialises")
            return held
        held = self._new(key, meta)
        self._assign(held, value, LedgerChange())
        return held

    def assign(self, key: str, meta: Meta, value: Tensor, change: LedgerChange) -> StoredValue:
        """Replace a value by another one, past the handler; what else `change` has happens with it."""
        held = self.find(key)
        if held is None:
            held = self._new(key, meta)
        else:
            check_alike(key, held.meta, meta, "broadcasts")
        self._assign(held, value, change)
        return held

    def publish(self, applying: PartialPush, client: int, dedup: DedupWindow) -> None:
        """All of a push is applied: it becomes the published version."""
        held = applying.held
        self._commit(held, LedgerChange(held.number, applying.buffer, held.version + 1, client, dedup))

    def push_rows(self, held: StoredValue, indices: Tensor, values: Tensor, client: int, dedup: DedupWindow) -> None:
        """Hand rows to the handler. Raises UsageError, and what the handler raises."""
        checked_rows(indices, held.meta, held.name)
        indices, values = coalesced(indices, values)
        rows = held.value.index_select(0, indices)
        self.handler(held.name, rows, values, *([rows] if is_into(self.handler) else ()))
        if held.looks[held.current]:
            buffer = self.spare(held)
            copy = held.tensors[buffer]
            assert copy is not None
            copy.copy_(held.value).index_copy_(0, indices, rows)
            self._commit(held, LedgerChange(held.number, buffer, held.version + 1, client, dedup))
            return
        staged = self._stage(indices, rows)
        change = LedgerChange(held.number, held.current, held.version + 1, client, dedup, rows=staged)
        self._ledger.begin(change)
        held.value.index_copy_(0, indices, rows)
        self._ledger.end(change)
        held.version = change.version

    def fail(self, held: StoredValue, client: int, dedup: DedupWindow) -> None:
        """A push has failed, which is remembered; the value is as it was."""
        change = LedgerChange(held.number, client=client, dedup=dedup)
        self._ledger.begin(change)
        self._ledger.end(change)

    def guarded(self, held: StoredValue, number: int, pushed: Tensor, act: Callable[[], None]) -> None:
        """Run what runs the handler, for client `number`. Raises HandlerFailed instead of what that raises."""
        before, client = pushed._version, self._ledger.clients[number]
        self._ledger.note_push(held.number, number)
        try:
            act()
        except (ResourceError, UsageError):
            raise
        except (Exception, SystemExit) as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            text = traceback.format_exception_only(error)[-1].strip()
            if isinstance(error, MemoryError) or "can't allocate memory" in text:
                raise ResourceError(
                    f"There was no memory to apply a push of client {client!r} on key {held.name!r}: {text} The push "
                    f"was not applied and the value is as it was; server {self._server} goes on. Push smaller values, "
                    "or free some memory on its machine."
                ) from error
            where = f"{Path(last.filename).name}, line {last.lineno}, in {last.name}"
            raise HandlerFailed(
                f"The handler raised for a push of client {client!r} on key {held.name!r}: {text} ({where}). The push "
                f"was not applied and the value is as it was; server {self._server} goes on. Correct the handler, or "
                "what was pushed."
            ) from error
        finally:
            self._ledger.note_push()
        if pushed._version != before:
            # It would be applied changed if it had to be applied again after a kill.
            raise HandlerFailed(
                f"The handler changed what client {client!r} pushed on key {held.name!r}. The push was not applied. "
                "Change `stored` only; write `pushed * 2`, not `pushed *= 2`."
            )

    # ------------------------------------------------------------ buffers

    def spare(self, held: StoredValue) -> int:
        """A buffer to write the next version into; made if need be. Raises ResourceError."""
        buffer = held.spare()
        if buffer is None or held.places[buffer] is None:
            self._no_ghosts()
            buffer = held.spare()
        if buffer is None:
            who: Counter[str] = sum(held.looks, Counter())
            names = ", ".join(f"{name!r} ({count})" for name, count in who.most_common(5) if name != _GHOST)
            raise ResourceError(
                f"All {MAX_BUFFERS} buffers of key {held.name!r} are looked at, by {names}: a pulled value keeps its "
                "version for as long as a tensor shows it. Drop older ones (del), or keep clones."
            )
        if held.places[buffer] is None:
            what = "Another version" if held.version else "The first value"
            place = self._region.take(held.size, f"{what} of key {held.name!r}")
            self._ledger.note_top(self._region.top)
            self._ledger.put_buffer(held.number, buffer, place)
            self._show(held, buffer, place)
        held.authors[buffer] = None
        return buffer

    def _new(self, key: str, meta: Meta) -> StoredValue:
        held = self._held.get(key)
        if held is None:
            held = StoredValue(self._ledger.add_key(key, meta), key, meta)
        else:  # whoever was here before was killed before it had a value
            self._ledger.put_meta(held.number, meta)
            held = StoredValue(held.number, key, meta)
        self._held[key] = held
        held.current = MAX_BUFFERS - 1  # so that the first one is as good as any other
        return held

    def _assign(self, held: StoredValue, value: Tensor, change: LedgerChange) -> None:
        buffer = self.spare(held)
        target = held.tensors[buffer]
        assert target is not None
        target.copy_(value)
        change = LedgerChange(held.number, buffer, held.version + 1, barrier=change.barrier, turn=change.turn)
        self._commit(held, change)

    def _commit(self, held: StoredValue, change: LedgerChange) -> None:
        self._ledger.begin(change)
        self._ledger.end(change)
        held.current, held.version = change.buffer, change.version

    def _show(self, held: StoredValue, buffer: int, place: Extent) -> None:
        held.places[buffer] = place
        held.tensors[buffer] = tensor_at(self._region, place, held.meta)
        if self._sealed is not None:
            held.sealed[buffer] = tensor_at(self._sealed, place, held.meta)

    def _stage(self, indices: Tensor, rows: Tensor) -> tuple[Extent, Extent]:
        """Write row numbers and contents to where whoever takes over finds them."""
        first = -(-indices.nbytes // 64) * 64
        if self._staging is None or self._staging.size < first + rows.nbytes:
            if self._staging is not None:
                self._region.give(self._staging)
            self._staging = self._region.take(1 << (first + rows.nbytes).bit_length(), "A push of rows")
            self._ledger.note_top(self._region.top)
        places = self._staging.part(0, indices.nbytes), self._staging.part(first, rows.nbytes)
        for place, tensor in zip(places, (indices, rows), strict=True):
            tensor_at(self._region, place, meta_of(tensor, "")).copy_(tensor)
        return places

    # ------------------------------------------------------------ taking over

    def _take_over(self, held: StoredValue) -> None:
        held.version, held.current = self._ledger.version(held.number), self._ledger.current(held.number)
        for buffer, place in enumerate(self._ledger.buffers(held.number)):
            if place is not None and place.size == held.size:
                self._show(held, buffer, place)
                held.looks[buffer][_GHOST] += 1
        self._held[held.name] = held

    def _write_rows(self, change: LedgerChange) -> None:
        assert change.rows is not None
        held = self._held[self._ledger.keys[change.key][0]]
        target = held.tensors[change.buffer]
        assert target is not None
        numbers, values = change.rows
        indices = tensor_at(self._region, numbers, Meta("int64", (numbers.size // 8,), ""))
        rows = tensor_at(self._region, values, Meta(held.meta.dtype, (len(indices), *held.meta.shape[1:]), ""))
        target.index_copy_(0, indices, rows)

    def _no_ghosts(self, came: str | None = None) -> None:
        """Who looked at what before the takeover is known when all clients of that time have come back or are dead."""
        if not self._haunted:
            return
        pids = {name: self._ledger.process(i) for i, name in enumerate(self._ledger.clients)}
        self._awaited = {name for name in self._awaited if name != came and os.path.exists(f"/proc/{pids[name]}")}
        self._haunted = bool(self._awaited)
        if not self._haunted:
            for held in self._held.values():
                for looks in held.looks:
                    looks.pop(_GHOST, None)
