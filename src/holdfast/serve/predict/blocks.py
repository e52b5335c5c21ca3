"""Blocks: a data set cut into numbered runs of rows, and the window of those that are under way. Pure.

Cutting follows from the number of rows and the size alone. A block is computed as one batch, so what a row is computed
together with, and with it every bit of its outputs, is the same whoever computes it and whenever.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

__all__ = ["Block", "Window", "block", "block_count", "block_size"]

_ROWS = 512  #: of a block, at the most, unless somebody says otherwise
_BYTES = 32 << 20  #: of a block's inputs, about, at the most
T = TypeVar("T")


class Block(NamedTuple):
    """Rows `begin` to `end`, the latter not included."""

    number: int
    begin: int
    end: int


def block_size(row_bytes: int, *, batched: bool = True) -> int:
    """How many rows a block has where nobody says: fewer where rows are large.

    >>> block_size(4 * 784), block_size(4 * 3 * 224 * 224), block_size(1 << 30)
    (512, 55, 1)
    """
    return max(1, min(_ROWS if batched else _ROWS // 8, _BYTES // max(1, row_bytes)))


def block_count(rows: int, size: int) -> int:
    """How many blocks there are.

    >>> block_count(1000, 512), block_count(1024, 512), block_count(0, 512)
    (2, 2, 0)
    """
    return -(-rows // size)


def block(number: int, rows: int, size: int) -> Block:
    """The block of this number.

    >>> block(1, 1000, 512)
    Block(number=1, begin=512, end=1000)
    """
    return Block(number, number * size, min(rows, (number + 1) * size))


class Window(Generic[T]):
    """Which blocks are begun, and in which order what came of them is written.

    Only so many are begun and not written at a time: one that takes long holds the others up before what is waiting for
    it fills the memory.
    """

    def __init__(self, rows: int, size: int, *, done: int, most: int) -> None:
        self._rows, self._size, self._most = rows, size, most
        self._next, self._written, self._count = done, done, block_count(rows, size)
        self._waiting: dict[int, T] = {}

    def begin(self) -> Block | None:
        """The next block to compute; None: there is none, or others have to be written first."""
        if self._next == self._count or self._next - self._written >= self._most:
            return None
        self._next += 1
        return block(self._next - 1, self._rows, self._size)

    def finish(self, number: int, result: T) -> list[tuple[Block, T]]:
        """A block is computed. What is to be written now, in order: it, and those that have waited for it."""
        if not self._written <= number < self._next or number in self._waiting:
            raise ValueError(f"block {number} was not begun, or was computed twice")
        self._waiting[number] = result
        ready = []
        while self._written in self._waiting:
            ready.append((block(self._written, self._rows, self._size), self._waiting.pop(self._written)))
            self._written += 1
        return ready

    @property
    def written(self) -> int:
        """How many blocks were given out to be written, those of earlier times included."""
        return self._written

    @property
    def over(self) -> bool:
        """Is there nothing more to do?"""
        return self._written == self._count
