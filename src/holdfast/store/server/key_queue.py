"""The queue in front of a key: which request is next. Pure.

Requests on a key are served in order of arrival, with one exception: a push whose bytes are still being written is
overtaken by those that are whole, so that a client that is stopped in the middle of a push stops nobody but itself.
The order among the requests of one client is never changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

__all__ = ["KeyQueue"]

Item = TypeVar("Item")


class KeyQueue(Generic[Item]):
    """What waits for one key. `client(item)` says whose it is, `whole(item)` whether all of it is here."""

    def __init__(self, client: Callable[[Item], str], whole: Callable[[Item], bool]) -> None:
        self._client, self._whole = client, whole
        self._items: list[Item] = []

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items)

    def join(self, item: Item) -> None:
        """Stand at the end."""
        self._items.append(item)

    def next(self) -> Item | None:
        """Who can be served now, if anybody; it stays in the line until `leave`."""
        behind = set()
        for item in self._items:
            client = self._client(item)
            if client not in behind and self._whole(item):
                return item
            behind.add(client)
        return None

    def first(self) -> Item | None:
        """Who would be next if all were whole: the one to begin with, while its bytes still come."""
        return self._items[0] if self._items else None

    def leave(self, item: Item) -> None:
        """It was served, or nobody wants it any more."""
        self._items = [other for other in self._items if other is not item]
