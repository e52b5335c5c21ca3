"""A region: shared memory without a name that grows, and the mappings one process has of it.

Whoever made it says how large it is and what lies where (`heap`); others map the runs they are told of. Bytes are
never moved, so a mapping stays right for as long as anybody looks through it. No torch here.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from holdfast.errors import ResourceError, UsageError
from holdfast.store.heap import Extent, Heap
from holdfast.transport.memory import available

__all__ = ["Limit", "Owned", "Region", "Tie", "create", "refuse_beyond"]


def create() -> int:
    """A descriptor of an empty region, close-on-exec. The caller closes it."""
    return os.memfd_create("holdfast-store", os.MFD_CLOEXEC)


class Limit(NamedTuple):
    """At most `size` bytes, for `who`; `setting` is how somebody has said so."""

    size: int
    who: str
    setting: str


def refuse_beyond(limit: Limit | None, what: str, more: int, used: int) -> None:
    """Refuse what does not fit a limit; pure. Raises ResourceError."""
    if limit is not None and used + more > limit.size:
        raise ResourceError(
            f"{what} needs {more / 2**20:,.1f} MiB more, but {limit.who} uses {used / 2**20:,.1f} of the "
            f"{limit.size / 2**20:,.1f} MiB that it may use ({limit.setting}). It goes on with what it has. Allow it "
            "more, or spread large keys over more servers (spread=True)."
        )


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

    def run(self, place: Extent) -> mmap.mmap:
        """The mapping that a place lies in. Raises UsageError where there is no such place."""
        found = self._maps.get((place.run, place.length))
        if found is None:
            found = self._map(place)
        if place.size < 0 or place.offset < 0 or place.offset + place.size > place.length:
            raise UsageError(f"{place} does not lie inside its own run. Both sides must be of one version.")
        return found

    def start(self, place: Extent) -> int:
        """The address of a place's first byte in this process."""
        run = self._starts.get((place.run, place.length))
        if run is None:  # NumPy tells the address also of what is not to be written
            run = np.frombuffer(self.run(place), dtype=np.uint8).__array_interface__["data"][0]
            self._starts[place.run, place.length] = run
        return run + place.offset

    def bytes(self, place: Extent) -> memoryview:
        """The bytes at a place."""
        return memoryview(self.run(place))[place.offset : place.offset + place.size]

    def _map(self, place: Extent) -> mmap.mmap:
        # Mapping more than there is succeeds, and kills whoever touches it.
        there = os.fstat(self.fd).st_size
        if place.run < 0 or place.length <= 0 or place.run + place.length > there:
            raise UsageError(f"{place} is beyond the {there} bytes that there are. Both sides must be of one version.")
        try:
            found = mmap.mmap(self.fd, place.length, mmap.MAP_SHARED, self._prot, offset=place.run)
        except OSError as error:
            raise ResourceError(
                f"The system refused process {os.getpid()} {place.length / 2**20:,.1f} MiB of shared memory "
                f"({error.strerror}). Free some memory, or raise the limit that was set for it (ulimit -v)."
            ) from None
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
    """A region by the process that hands out its places. `limit`: at most so many bytes of them, by whose word."""

    def __init__(self, fd: int, limit: Limit | None = None) -> None:
        super().__init__(fd, writable=True)
        self._heap, self._limit = Heap(0), limit

    def begin(self, top: int, used: int) -> None:
        """Hand out what is above `top`; below it others have, and `used` bytes of that count."""
        self._heap = Heap(top, used)

    @property
    def top(self) -> int:
        """Everything handed out is below this byte."""
        return self._heap.top

    def take(self, size: int, what: str) -> Extent:
        """A place for `size` bytes; `what` is it for, in words. Raises ResourceError, and then nothing has changed."""
        if more := self._heap.more(size):
            refuse_beyond(self._limit, what, more, self._heap.used)
        grows = self._heap.grows(size)
        if grows:
            free, limit = available()
            if size > free:
                raise ResourceError(
                    f"{what} needs {size / 2**20:,.1f} MiB of shared memory, but only {free / 2**20:,.1f} MiB are "
                    f"{limit}. Spread the key over servers on other machines, or free some memory."
                )
        place = self._heap.take(size)
        if grows:
            os.ftruncate(self.fd, max(self._heap.top, os.fstat(self.fd).st_size))
            try:
                self.run(place)
            except ResourceError as error:
                raise ResourceError(f"{what}: {error}") from None
        return place

    def give(self, place: Extent) -> None:
        """Nobody looks at this place any more."""
        self._heap.give(place)
