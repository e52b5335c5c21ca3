"""The memory in which a batch lies: written by one side, read by the other, one batch at a time.

Each side of a replica's link has one for what it writes. It has no name in any file system; a larger one is made when a
batch needs it, and its descriptor handed over. So no client can address it, nothing is left over, and a replica that
was stopped and wakes up again has only memory of its own to write to.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence

from holdfast.transport.memory import reserve

__all__ = ["BatchReader", "BatchWriter", "aligned"]

_LEAST = 1 << 16


def aligned(size: int) -> int:
    """The next place at which a tensor may begin.

    >>> aligned(0), aligned(1), aligned(64)
    (0, 64, 64)
    """
    return -(-size // 64) * 64


class BatchWriter:
    """The side that writes. Views of the memory that somebody still has keep it, not the other side's next batch."""

    def __init__(self) -> None:
        self._fd = -1
        self.memory = memoryview(b"")

    def room(self, size: int) -> tuple[int, ...]:
        """Have room for so many bytes; a descriptor to hand over where it is a new one. Raises ResourceError."""
        if size <= len(self.memory):
            return ()
        self.close()
        wanted = max(_LEAST, 1 << (size - 1).bit_length())
        self._fd = reserve(wanted)
        self.memory = memoryview(mmap.mmap(self._fd, wanted))
        return (self._fd,)

    def close(self) -> None:
        """Give it back, as far as this side is concerned."""
        self.memory = memoryview(b"")
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class BatchReader:
    """The side that reads."""

    def __init__(self) -> None:
        self.memory = memoryview(b"")

    def take(self, fds: Sequence[int]) -> None:
        """A message came with these descriptors: the last of them is the memory from now on."""
        for fd in fds:
            try:
                self.memory = memoryview(mmap.mmap(fd, os.fstat(fd).st_size, prot=mmap.PROT_READ))
            finally:
                os.close(fd)

    def close(self) -> None:
        """Give it back."""
        self.memory = memoryview(b"")
