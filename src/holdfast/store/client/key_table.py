"""What a client knows of keys: their shapes, which servers have which of their rows, and how it numbers its pushes."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from holdfast.errors import UsageError
from holdfast.store.messages import Done, Meta
from holdfast.store.owners import owner, parts

__all__ = ["Key", "KeyTable", "Share", "chosen"]

#: First and last-but-one row of a share; None: all of the value.
Share = tuple[int, int] | None


class Key:
    """A key. `meta` is of the whole of it; `last` is the number of this client's newest push, by server."""

    def __init__(self, name: str, meta: Meta, shares: dict[int, Share], last: dict[int, int]) -> None:
        self.name, self.meta, self.shares, self.last = name, meta, shares, last

    def count(self, number: int | None) -> int:
        """The number of the next push: one more than the newest, unless the caller has numbers of its own."""
        newest = max(self.last.values())
        if number is None:
            number = newest + 1
        elif number < 1:
            raise UsageError(f"A push of key {self.name!r} has the number {number}: numbers begin at 1.")
        self.last = dict.fromkeys(self.last, max(newest, number))
        return number


class KeyTable:
    """The keys that a client has used. `ask(server, key)` asks a server, and raises UnknownKey."""

    def __init__(self, num_servers: int) -> None:
        self._num_servers = num_servers
        self._keys: dict[str, Key] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._keys

    def home(self, name: str) -> int:
        """The server that always has some of a key."""
        return owner(name, self._num_servers)

    def shares(self, name: str, rows: int) -> dict[int, Share]:
        """Which servers have a key, and which of its rows; `rows` is -1 where it is not spread."""
        if rows < 0:
            return {self.home(name): None}
        return dict(enumerate(parts(rows, self._num_servers)))

    def find(self, name: str, ask: Callable[[int, str], Done]) -> Key:
        """What is known of a key; servers are asked once."""
        if name not in self._keys:
            first = self.home(name)
            answers = {first: ask(first, name)}
            meta = answers[first].meta
            assert meta is not None
            shares = self.shares(name, meta.rows)
            if meta.rows >= 0:
                meta = Meta(meta.dtype, (meta.rows, *meta.shape[1:]), meta.by, meta.rows)
                answers |= {server: ask(server, name) for server in shares if server != first}
            last = {server: answer.number for server, answer in answers.items()}
            self._keys[name] = Key(name, meta, shares, last)
        return self._keys[name]


def chosen(indices: Tensor, share: Share) -> tuple[Tensor | None, Tensor]:
    """Which of these rows are in a share (None: all), and their numbers within it."""
    if share is None:
        return None, indices
    which = ((indices >= share[0]) & (indices < share[1])).nonzero().flatten()
    return which, indices[which] - share[0]
