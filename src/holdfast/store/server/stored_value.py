"""One key, as its server holds it: its buffers, which of them is published, and who looks at them."""

from __future__ import annotations

from collections import Counter

from torch import Tensor

from holdfast.store.heap import Extent
from holdfast.store.messages import Meta
from holdfast.store.server.ledger import MAX_BUFFERS
from holdfast.store.tensors import nbytes

__all__ = ["StoredValue"]


class StoredValue:
    """One key, as its server holds it."""

    def __init__(self, number: int, name: str, meta: Meta) -> None:
        self.number, self.name, self.meta = number, name, meta
        self.size = nbytes(meta)
        self.current, self.version = 0, 0
        self.places: list[Extent | None] = [None] * MAX_BUFFERS
        self.tensors: list[Tensor | None] = [None] * MAX_BUFFERS
        self.sealed: list[Tensor | None] = [None] * MAX_BUFFERS  #: the same, only to be read; for some handlers
        self.looks: list[Counter[str]] = [Counter() for _ in range(MAX_BUFFERS)]
        self.authors: list[object] = [None] * MAX_BUFFERS  #: whoever was last given a buffer to write to

    @property
    def value(self) -> Tensor:
        """The published version."""
        found = self.tensors[self.current]
        assert found is not None
        return found

    @property
    def sealed_value(self) -> Tensor:
        """The published version, only to be read: the system ends a process that writes to it."""
        found = self.sealed[self.current]
        assert found is not None
        return found

    def spare(self) -> int | None:
        """A buffer that may be written: nobody looks at it, and it is not published. Best one that is there."""
        new = None
        for i, place in enumerate(self.places):
            if i != self.current and not self.looks[i]:
                if place is not None:
                    return i
                new = i if new is None else new
        return new
