"""Who has which bytes of a piece of shared memory that grows. Pure: nothing is mapped or touched here.

Bytes are handed out inside *runs*, the stretches that others map as one: small places share a run of `RUN` bytes, a
large one is a run of its own. So a value is mapped once and for all, and many small ones cost one mapping. A place
that is given back is handed out again for the same size, with its pages in memory already; values keep their sizes,
so nothing is ever split or joined.
"""

from __future__ import annotations

import msgspec

__all__ = ["RUN", "Extent", "Heap", "room_for"]

RUN = 64 * 2**20
_PAGE = 4096
_LINE = 64  #: bytes of a cache line: no two places share one
_LARGE = RUN // 4


class Extent(msgspec.Struct, frozen=True, array_like=True):
    """`size` bytes at `offset` of the run of `length` bytes that begins at byte `run`."""

    run: int
    length: int
    offset: int
    size: int

    def part(self, begin: int, size: int) -> Extent:
        """Some of these bytes."""
        assert 0 <= begin <= begin + size <= self.size
        return Extent(self.run, self.length, self.offset + begin, size)


def room_for(size: int) -> int:
    """How many bytes are set aside for `size`."""
    unit = _LINE if size < _PAGE else _PAGE
    return -(-max(size, 1) // unit) * unit


class Heap:
    """>>> heap = Heap(0); one = heap.take(100); heap.give(one); heap.take(90) == Extent(0, RUN, 0, 90)
    True
    """

    def __init__(self, top: int, used: int = 0) -> None:
        self.used = used  #: bytes that were ever set aside; those that were given back wait for others of their size
        self.top = -(-top // _PAGE) * _PAGE  #: everything is below this byte
        self._run, self._used = 0, RUN  # the run that small places are cut from, and how much of it is cut
        self._free: dict[int, list[Extent]] = {}

    def take(self, size: int) -> Extent:
        """Some place for `size` bytes; look at `top` afterwards: the memory may have to grow."""
        room = room_for(size)
        if free := self._free.get(room):
            old = free.pop()
            return Extent(old.run, old.length, old.offset, size)
        self.used += room
        if room >= _LARGE:
            run, self.top = self.top, self.top + -(-room // _PAGE) * _PAGE
            return Extent(run, self.top - run, 0, size)
        if self._used + room > RUN:
            self._run, self._used, self.top = self.top, 0, self.top + RUN
        self._used += room
        return Extent(self._run, RUN, self._used - room, size)

    def more(self, size: int) -> int:
        """How many bytes more would be in use after `take`; 0: some that were given back will do."""
        room = room_for(size)
        return 0 if self._free.get(room) else room

    def grows(self, size: int) -> bool:
        """Would `take` move `top`?"""
        room = self.more(size)
        return room >= _LARGE or (room > 0 and self._used + room > RUN)

    def give(self, place: Extent) -> None:
        """Nobody looks at this place any more."""
        self._free.setdefault(room_for(place.size), []).append(place)
