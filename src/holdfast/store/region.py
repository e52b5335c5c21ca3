"""A region: shared memory without a name that grows, and the mappings one process has of it.

Whoever made it says how large it is and what lies where (`heap`); others map the runs they are told of. Bytes are
never moved, so a mapping stays right for as long as anybody looks through it. No torch here.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable

import numpy as np

from holdfast.errors import ResourceError, UsageError
from holdfast.store.heap import Heap, Place
from holdfast.transport.memory import available

__all__ = ["Owned", "Region", "Tie", "create"]


def create() -> int:
    """A descriptor of an empty region, close-on-exec. The caller closes it."""
    return os.memfd_create("holdfast-store", os.MFD_CLOEXEC)


class Tie:
    """Whoever looks at a place keeps its tie; when nobody has it any more, `end` is called, in whatever thread."""

    def __init__(self, end: Callable[[], object]) -> None:
        self._end = end

    def __del__(self) -> None:
        self._end()


class Region:
    """A region as one process sees it.

    Resources: owns the descriptor; `close` closes it, and unmaps what nobody looks at any more.
    """

    def __init__(self, fd: int, *, writable: bool) -> None:
        self.fd = fd
        self._prot = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self._maps: dict[tuple[int, int], mmap.mmap] = {}
        self._starts: dict[tuple[int, int], int] = {}

    def look_only(self) -> int:
        """A descriptor of the same memory through which nothing can be written. The caller closes it."""
        return os.open(f"/proc/self/fd/{self.fd}", os.O_RDONLY | os.O_CLOEXEC)

    def run(self, place: Place) -> mmap.mmap:
        """The mapping that a place lies in. Raises UsageError where there is no such place."""
        found = self._maps.get((place.run, place.length))
        if found is None:
            found = self._map(place)
        if place.size < 0 or place.offset < 0 or place.offset + place.size > place.length:
            raise UsageError(f"{place} does not lie inside its own run. Both sides must be of one version.")
        return found

    def start(self, place: Place) -> int:
        """The address of a place's first byte in this process."""
        run = self._starts.get((place.run, place.length))
        if run is None:  # NumPy tells the address also of what is not to be written
            run = np.frombuffer(self.run(place), dtype=np.uint8).__array_interface__["data"][0]
            self._starts[place.run, place.length] = run
        return run + place.offset

    def bytes(self, place: Place) -> memoryview:
        """The bytes at a place."""
        return memoryview(self.run(place))[place.offset : place.offset + place.size]

    def _map(self, place: Place) -> mmap.mmap:
        # Mapping more than there is succeeds, and kills whoever touches it.
        there = os.fstat(self.fd).st_size
        if place.run < 0 or place.length <= 0 or place.run + place.length > there:
            raise UsageError(f"{place} is beyond the {there} bytes that there are. Both sides must be of one version.")
        found = mmap.mmap(self.fd, place.length, mmap.MAP_SHARED, self._prot, offset=place.run)
        self._maps[place.run, place.length] = found
        return found

    def close(self) -> None:
        """Close the descriptor and unmap; what tensors look at is unmapped at the process's end."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        for one in self._maps.values():
            try:
                one.close()
            except BufferError:
                pass  # a view of the user's: its pages stay for as long as it does
        self._maps.clear()
        self._starts.clear()


class Owned(Region):
    """A region by the process that hands out its places."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd, writable=True)
        self._heap = Heap(0)

    def begin(self, top: int) -> None:
        """Hand out what is above `top`; below it others have."""
        self._heap = Heap(top)

    @property
    def top(self) -> int:
        """Everything handed out is below this byte."""
        return self._heap.top

    def take(self, size: int, what: str) -> Place:
        """A place for `size` bytes; `what` is it for, in words. Raises ResourceError."""
        before = self._heap.top
        place = self._heap.take(size)
        if self._heap.top > before:
            free, limit = available()
            if size > free:
                raise ResourceError(
                    f"{what} needs {size / 2**20:,.1f} MiB of shared memory, but only {free / 2**20:,.1f} MiB are "
                    f"{limit}. Spread the key over servers on other machines, or free some memory."
                )
            os.ftruncate(self.fd, max(self._heap.top, os.fstat(self.fd).st_size))
        return place

    def give(self, place: Place) -> None:
        """Nobody looks at this place any more."""
        self._heap.give(place)
