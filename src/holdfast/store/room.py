"""The room of a server where clients meet: what `meeting` decides, with the ledger, and the values of broadcasts."""

from __future__ import annotations

from torch import Tensor

from holdfast.errors import HoldfastError, Mismatch
from holdfast.store.ledger import Change, Ledger
from holdfast.store.meeting import Meeting
from holdfast.store.messages import Answer, Done, Failed, Meet, Meta, View, check_alike
from holdfast.store.shelf import Shelf

__all__ = ["Room"]

Answers = list[tuple[str, Answer]]


class _Table:
    """One meeting and who waits in it."""

    def __init__(self, number: int, done: int) -> None:
        self.number = number
        self.meeting = Meeting(done)
        self.waiting: dict[str, Meet] = {}
        self.value: tuple[str, Tensor] | None = None  #: of a broadcast, and whose it is


class Room:
    """All meetings of one server."""

    def __init__(self, ledger: Ledger, shelf: Shelf) -> None:
        self._ledger, self._shelf = ledger, shelf
        self._tables = {
            name: _Table(number, ledger.version(number))
            for number, (name, meta) in enumerate(ledger.keys)
            if not meta.dtype
        }

    def stands(self, name: str) -> tuple[int, tuple[str, ...]]:
        """How many rounds of a meeting are over, and who has arrived at the next one."""
        table = self._tables.get(name)
        return (table.meeting.done, tuple(table.meeting.here)) if table else (0, ())

    def arrive(self, client: str, message: Meet, value: Tensor | None) -> Answers:
        """A client is here: who is to be told what."""
        table = self._tables.get(message.name)
        if table is None:
            number = self._ledger.add_key(message.name, Meta("", (), client))
            table = self._tables[message.name] = _Table(number, 0)
        if not table.meeting.arrive(client, message.turn):
            return [(client, self._answer(client, message))]
        table.waiting[client] = message
        if value is not None:
            if table.value is not None and table.value[0] != client:
                both = f"Clients {table.value[0]!r} and {client!r} both broadcast key {message.key!r}"
                return self._refuse(table, f"{both}. Name one of them as root.")
            table.value = client, value
        if len({other.parties for other in table.waiting.values()}) > 1:
            told = ", ".join(f"{name!r} for {other.parties}" for name, other in table.waiting.items())
            what = f"Clients at {message.name.lstrip(chr(0))} wait for different numbers of clients"
            return self._refuse(table, f"{what}: {told}. Say the same.")
        return self._close(table, message) if table.meeting.over(message.parties) else []

    def lose(self, client: str) -> None:
        """A client is gone; if it comes back, it arrives again."""
        for table in self._tables.values():
            table.meeting.lose(client)
            table.waiting.pop(client, None)
            if table.value is not None and table.value[0] == client:
                table.value = None

    def close(self) -> None:
        """Look away from all memory."""
        self._tables.clear()

    def _close(self, table: _Table, message: Meet) -> Answers:
        change = Change(meeting=table.number, turn=table.meeting.done + 1)
        if message.key:
            if table.value is None:
                names = ", ".join(map(repr, table.waiting))
                awaited = f"Clients {names} wait for a broadcast of key {message.key!r}, and none of them is its root"
                return self._refuse(table, f"{awaited}. The root must be one of them.")
            client, value = table.value
            meta = table.waiting[client].meta
            assert meta is not None
            try:
                self._shelf.assign(message.key, meta, value, change)
            except HoldfastError as error:
                return self._refuse(table, str(error), type(error).__name__)
        else:
            self._ledger.begin(change)
            self._ledger.end(change)
        table.meeting.close()
        waiting, table.waiting, table.value = table.waiting, {}, None
        return [(client, self._answer(client, other)) for client, other in waiting.items()]

    def _refuse(self, table: _Table, text: str, kind: str = "Mismatch") -> Answers:
        waiting, table.waiting, table.value = table.waiting, {}, None
        for client in waiting:
            table.meeting.lose(client)
        return [(client, Failed(message.id, kind, text)) for client, message in waiting.items()]

    def _answer(self, client: str, message: Meet) -> Answer:
        if not message.key:
            return Done(message.id, None, message.turn)
        held = self._shelf.get(message.key)
        if message.meta is not None:
            try:
                check_alike(held.name, held.meta, message.meta, "expects")
            except Mismatch as error:
                return Failed(message.id, "Mismatch", str(error))
        place = held.places[held.current]
        assert place is not None
        buffer = self._shelf.look(held, client)
        return View(message.id, held.name, held.meta, place, buffer, held.version)
