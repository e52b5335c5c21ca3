"""A push of a whole value on its way: applied to a copy of the published version, as far as it is here.

An elementwise handler gets it piece by piece while the rest is still being written. Nothing of it is published before
all of it is applied; whoever is published first makes it begin anew.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from holdfast.store.handlers import Handler, is_elementwise, is_into
from holdfast.store.heap import Extent
from holdfast.store.server.stored_value import StoredValue

__all__ = ["BLOCK", "PartialPush"]

#: Bytes of a value that an elementwise handler gets at a time: small enough that the copy, the handler and what was
#: pushed meet in a cache, large enough that the calls cost little. (10 MB in blocks of 256 KiB took 1.6 times as long.)
BLOCK = 2**20


class PartialPush:
    """A push of a whole value on its way into its next version. `spare` gives a buffer to write it into."""

    def __init__(
        self, held: StoredValue, pushed: Tensor, handler: Handler, spare: Callable[[StoredValue], int]
    ) -> None:
        self.held, self._pushed, self._handler, self._spare = held, pushed, handler, spare
        self._base, self.buffer, self._done = -1, -1, 0
        self._mark = object()
        self.attempt = 0  #: how often it was begun

    @property
    def made(self) -> int:
        """How many bytes of the next version are there, where the handler makes them piece by piece."""
        return self._done * self._pushed.element_size()

    @property
    def place(self) -> Extent:
        """Where the next version is being made."""
        found = self.held.places[self.buffer]
        assert found is not None
        return found

    def advance(self, here: int) -> None:
        """Apply what is there of the push, `here` bytes. Raises what the handler raises."""
        held, handler = self.held, self._handler
        # From the beginning, also where others have overtaken us: they may have failed in the middle of our buffer.
        if self._base != held.version or held.authors[self.buffer] is not self._mark:
            self._base, self.buffer, self._done = held.version, self._spare(held), 0
            held.authors[self.buffer] = self._mark
            self.attempt += 1
        new = held.tensors[self.buffer]
        assert new is not None
        if not is_elementwise(handler):
            if here >= held.size:
                new.copy_(held.value)
                handler(held.name, new, self._pushed)
            return
        begin, stop, step = self._done, here // new.element_size(), BLOCK // new.element_size()
        old = held.sealed_value if is_into(handler) else held.value
        if here == held.size <= BLOCK and not begin:  # these come often
            self._apply(old.view(-1), new.view(-1), self._pushed.view(-1))
        elif begin < stop:
            flats = (tensor.view(-1)[begin:stop].split(step) for tensor in (old, new, self._pushed))
            for blocks in zip(*flats, strict=True):
                self._apply(*blocks)
        self._done = stop

    def _apply(self, old: Tensor, new: Tensor, pushed: Tensor) -> None:
        if is_into(self._handler):
            self._handler(self.held.name, old, pushed, new)
        else:
            new.copy_(old)
            self._handler(self.held.name, new, pushed)
