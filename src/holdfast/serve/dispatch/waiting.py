"""The requests of a model that no replica has begun, in the order in which they came. Pure.

Items are computed together where they have one shape (`key`). A batch is made from the oldest request and later ones
that go with it, so nobody is passed over for long: the oldest always goes next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

__all__ = ["R", "Waiting", "WaitingRequest"]


class WaitingRequest:
    """One request, as far as it matters to when and where it is computed."""

    __slots__ = ("alone", "came", "deadline", "given_up", "items", "key", "size", "tries")

    def __init__(self, items: int, came: float, deadline: float, key: Hashable = None, size: int = 0) -> None:
        self.items = items  #: how many of a batch are its own
        self.came = came
        self.deadline = deadline  #: when an answer is of no use to the client any more; infinite: it said nothing
        self.key = key  #: what it has to have in common with others that are computed with it
        self.size = size  #: bytes
        self.tries = 0  #: replicas that were lost, or failed, while they computed it
        self.alone = False  #: it is not computed together with others any more: a batch with it has failed
        self.given_up = False  #: the client is gone


R = TypeVar("R", bound=WaitingRequest)


class Waiting(Generic[R]):
    """The queue. `items` and `bytes` are what is in it."""

    def __init__(self) -> None:
        self._line: deque[R] = deque()
        self.items = self.bytes = 0

    def __len__(self) -> int:
        return len(self._line)

    def __iter__(self) -> Iterator[R]:
        return iter(self._line)

    def append(self, request: R) -> None:
        """A new request: it goes last."""
        self._line.append(request)
        self.items += request.items
        self.bytes += request.size

    def put_back(self, requests: list[R]) -> None:
        """Requests that were begun, and have to be begun again: they go first, in their order."""
        self._line.extendleft(reversed(requests))
        self.items += sum(request.items for request in requests)
        self.bytes += sum(request.size for request in requests)

    def oldest(self) -> R | None:
        """The request that goes next."""
        return self._line[0] if self._line else None

    def take(self, most: int) -> list[R]:
        """Take out the oldest request, and with it what may be computed together with it: at most so many items.

        A request is never cut: one that has more items than that makes a batch of its own.
        """
        first = self._line.popleft()
        batch, items = [first], first.items
        if not first.alone:
            passed: list[R] = []
            while self._line and items < most and len(passed) < 256:
                one = self._line.popleft()
                if one.key == first.key and not one.alone and items + one.items <= most:
                    batch.append(one)
                    items += one.items
                else:
                    passed.append(one)
            self._line.extendleft(reversed(passed))
        self.items -= items
        self.bytes -= sum(one.size for one in batch)
        return batch

    def remove_if_over(self, now: float) -> list[R]:
        """Take out those whose client is gone or has no use for an answer any more."""
        over = [one for one in self._line if one.given_up or one.deadline <= now]
        if over:
            self._line = deque(one for one in self._line if not (one.given_up or one.deadline <= now))
            self.items -= sum(one.items for one in over)
            self.bytes -= sum(one.size for one in over)
        return over
