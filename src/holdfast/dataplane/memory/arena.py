"""The arena: one piece of shared memory that outlives any single worker, cut into named sections.

It is an anonymous memfd that the launcher holds and hands out by descriptor. It has no name in any
file system, so no kill, however hard, can leave it behind: the kernel frees it with its last holder.
A run of one process uses private memory of the same layout; nothing else differs.

`Sections` is pure arithmetic and is computed by every worker from the same inputs; the arena only
maps bytes. Nothing in it is ever unpickled: sections hold plain numbers.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

__all__ = ["Arena", "PrivateSection", "Sections", "discard", "grow"]

_ALIGN = 4096  # a page: sections never share one, so that each can be accounted for and advised alone
_MAP_FIXED = 0x10  # at this very address, in place of what is mapped there; Python has no name for it
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]


@dataclass(slots=True)
class Sections:
    """Where each section lies. Add them in a fixed order; the result depends on nothing else."""

    size: int = 0
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)

    def add(self, name: str, size: int) -> None:
        """Append a section of `size` bytes."""
        if name in self.spans:
            raise ValueError(f"section {name!r} was added twice")
        self.spans[name] = (self.size, size)
        self.size += _pages(size)


def _pages(size: int) -> int:
    return -(-max(size, 1) // _ALIGN) * _ALIGN


def grow(fd: int, size: int) -> None:
    """Let there be so many bytes behind `fd`, at least. Pages that nobody touches take no memory."""
    if os.fstat(fd).st_size < size:
        os.ftruncate(fd, size)


def discard(fd: int, spans: Iterable[tuple[int, int]]) -> None:
    """Give memory behind `fd` back to the system, as (begin, size) of sections. What is in them is zero then."""
    for begin, size in spans:
        with mmap.mmap(fd, _pages(size), offset=begin) as memory:
            memory.madvise(mmap.MADV_REMOVE)


class PrivateSection:
    """A section of which this process sees its own changes: what it has not written to shows what the arena holds."""

    def __init__(self, memory: memoryview, second: mmap.mmap | None) -> None:
        self.memory, self._second = memory, second

    def renew(self) -> None:
        """Forget what was written here: show what the arena holds."""
        if self._second is not None:
            self._second.madvise(mmap.MADV_DONTNEED)


class Arena:
    """Mapped memory with named sections. `begin` is where they lie behind `fd`, a multiple of a page.

    Resources: `close` unmaps it, unless tensors still look into it (then the process's end does).
    """

    def __init__(self, sections: Sections, *, fd: int | None = None, begin: int = 0) -> None:
        self.sections = sections
        if fd is None:
            self._map = mmap.mmap(-1, sections.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        else:
            self._map = mmap.mmap(fd, sections.size, offset=begin)
        self._fd, self._begin = fd, begin

    @property
    def memory(self) -> memoryview:
        """All of it."""
        return memoryview(self._map)

    def section(self, name: str) -> memoryview:
        """The bytes of one section, writable."""
        start, size = self.sections.spans[name]
        return memoryview(self._map)[start : start + size]

    def copied_on_write(self, name: str) -> PrivateSection:
        """A section as a second mapping, in which this process may write without anybody seeing it.

        Where nobody else has the memory, it is the section itself.
        """
        start, size = self.sections.spans[name]
        if self._fd is None:
            return PrivateSection(self.section(name), None)
        second = mmap.mmap(self._fd, _pages(size), flags=mmap.MAP_PRIVATE, offset=self._begin + start)
        return PrivateSection(memoryview(second)[:size], second)

    @contextlib.contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """While this process alone writes to a section. Who is killed meanwhile holds nothing any more."""
        start, size = self.sections.spans[name]
        if self._fd is not None:
            fcntl.lockf(self._fd, fcntl.LOCK_EX, size, self._begin + start)
        try:
            yield
        finally:
            if self._fd is not None:
                fcntl.lockf(self._fd, fcntl.LOCK_UN, size, self._begin + start)

    def isolate(self) -> None:
        """From now on nobody sees what this process writes, at the same addresses: for a process that was forked.

        What it has not written to shows what the arena holds. Memory without `fd` is copied by the fork itself.
        """
        if self._fd is None:
            return
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        readable, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | _MAP_FIXED
        if _libc.mmap(address, self.sections.size, readable, flags, self._fd, self._begin) != address:
            raise OSError(ctypes.get_errno(), "the arena could not be mapped again")

    def close(self) -> None:
        """Unmap where nothing looks into it any more."""
        try:
            self._map.close()
        except BufferError:
            return  # tensors of the user still show the parameters; the kernel unmaps at exit
