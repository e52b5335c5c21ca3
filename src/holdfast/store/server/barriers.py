"""The barriers and broadcasts of a server: what `rounds` decides, with the ledger, and the values of broadcasts."""

from __future__ import annotations

from torch import Tensor

from holdfast.errors import HoldfastError, Mismatch
from holdfast.store.messages import Answer, Done, Failed, JoinRound, Meta, ValueView, check_alike
from holdfast.store.server.ledger import Ledger, LedgerChange
from holdfast.store.server.rounds import Clients, Rounds
from holdfast.store.server.values import Values

__all__ = ["Answers", "Barriers"]

Answers = list[tuple[str, Answer]]


class _Barrier:
    """One meeting and who waits in it."""

    def __init__(self, number: int, done: int) -> None:
        self.number = number
        self.rounds = Rounds(done)
        #: What a client waits for: a round that it came to, and came to again because it took too long.
        self.waiting: dict[str, list[JoinRound]] = {}
        self.later: list[tuple[str, JoinRound, Tensor | None]] = []  #: who came for the round after that, too
        self.value: tuple[str, Tensor] | None = None  #: of a broadcast, and whose it is

    @property
    def asked(self) -> list[tuple[str, JoinRound]]:
        """All that wait, one by one."""
        return [(client, message) for client, messages in self.waiting.items() for message in messages]


class Barriers:
    """All meetings of one server."""

    def __init__(self, ledger: Ledger, values: Values) -> None:
        self._ledger, self._values = ledger, values
        self._crew = Clients()
        self._tables = {
            name: _Barrier(number, ledger.version(number))
            for number, (name, meta) in enumerate(ledger.keys)
            if not meta.dtype
        }

    def stands(self, name: str) -> tuple[int, tuple[str, ...], tuple[str, ...]]:
        """How many rounds of a meeting are over, who has arrived at the next one, and who of the crew has not."""
        table = self._tables.get(name)
        here = tuple(table.rounds.here) if table else ()
        return table.rounds.done if table else 0, here, tuple(one for one in self._crew.awaited if one not in here)

    def meets(self, crew: Clients) -> Answers:
        """The crew is another one: whose waiting is over."""
        self._crew = crew
        waiting = [table for table in self._tables.values() if table.waiting]
        return [answer for table in waiting for answer in self._look(table)]

    def arrive(self, client: str, message: JoinRound, value: Tensor | None) -> Answers:
        """A client is here: who is to be told what."""
        table = self._tables.get(message.name)
        if table is None:
            number = self._ledger.add_key(message.name, Meta("", (), client))
            table = self._tables[message.name] = _Barrier(number, 0)
        if not message.parties and table.rounds.skips(client, self._crew):
            return [(client, self._answer(client, message, table.rounds.done))]
        before = table.waiting.get(client, ())
        if before and before[0].turn < message.turn:
            table.later.append((client, message, value))
            return []
        if not table.rounds.arrive(client, message.turn):
            return [(client, self._answer(client, message, message.turn))]
        table.waiting.setdefault(client, []).append(message)
        if value is not None:
            if table.value is not None and table.value[0] != client:
                both = f"Clients {table.value[0]!r} and {client!r} both broadcast key {message.key!r}"
                return self._refuse(table, f"{both}. Name one of them as root.")
            table.value = client, value
        if len({other.parties for _, other in table.asked}) > 1:
            told = ", ".join(f"{name!r} for {other.parties or 'the crew'}" for name, other in table.asked)
            what = f"Clients at {message.name.lstrip(chr(0))} wait for different numbers of clients"
            return self._refuse(table, f"{what}: {told}. Say the same.")
        return self._look(table)

    def lose(self, client: str) -> None:
        """A client is gone; if it comes back, it arrives again."""
        for table in self._tables.values():
            table.rounds.lose(client)
            table.waiting.pop(client, None)
            table.later = [other for other in table.later if other[0] != client]
            if table.value is not None and table.value[0] == client:
                table.value = None

    def close(self) -> None:
        """Look away from all memory."""
        self._tables.clear()

    def _look(self, table: _Barrier) -> Answers:
        """Is the round of a table over? Then all who wait there are told, and those who came for the next one wait."""
        _, message = table.asked[0]
        if not table.rounds.over(message.parties, self._crew):
            return []
        change = LedgerChange(barrier=table.number, turn=table.rounds.done + 1)
        if message.key:
            if table.value is None:
                names = ", ".join(map(repr, sorted(table.waiting)))
                awaited = f"Clients {names} wait for a broadcast of key {message.key!r}, and none of them is its root"
                return self._refuse(table, f"{awaited}. The root must be one of them.")
            client, value = table.value
            meta = table.waiting[client][0].meta
            assert meta is not None
            try:
                self._values.assign(message.key, meta, value, change)
            except HoldfastError as error:
                return self._refuse(table, str(error), type(error).__name__)
        else:
            self._ledger.begin(change)
            self._ledger.end(change)
        table.rounds.close()
        asked, table.waiting, table.value = table.asked, {}, None
        answers = [(client, self._answer(client, other, other.turn)) for client, other in asked]
        return answers + self._next_round(table)

    def _next_round(self, table: _Barrier) -> Answers:
        later, table.later = table.later, []
        return [answer for client, message, value in later for answer in self.arrive(client, message, value)]

    def _refuse(self, table: _Barrier, text: str, kind: str = "Mismatch") -> Answers:
        asked, table.waiting, table.value = table.asked, {}, None
        for client, _ in asked:
            table.rounds.lose(client)
        refused: Answers = [(client, Failed(message.id, kind, text)) for client, message in asked]
        return refused + self._next_round(table)

    def _answer(self, client: str, message: JoinRound, turn: int) -> Answer:
        if not message.key:
            return Done(message.id, None, turn)
        held = self._values.get(message.key)
        if message.meta is not None:
            try:
                check_alike(held.name, held.meta, message.meta, "expects")
            except Mismatch as error:
                return Failed(message.id, "Mismatch", str(error))
        place = held.places[held.current]
        assert place is not None
        buffer = self._values.look(held, client)
        return ValueView(message.id, held.name, held.meta, place, buffer, held.version)
