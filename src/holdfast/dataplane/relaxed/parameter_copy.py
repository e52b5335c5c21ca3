"""A worker's own copy of the parameters, where others may change them while it computes.

It is taken over slice by slice, never a half-written one: a slice is copied while nobody changes it, and once more if
its version moved meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from torch import Tensor

from holdfast.dataplane.memory.board import Board
from holdfast.dataplane.memory.space import Space

__all__ = ["ParameterCopy"]


class ParameterCopy:
    """The copy, flat per dtype. `published` are the parameters of the arena."""

    def __init__(self, space: Space, board: Board, published: dict[str, Tensor]) -> None:
        self._space, self._board, self._published = space, board, published
        self.flats = {name: flat.clone() for name, flat in published.items()}
        self._have = [-1] * len(space.layout.slices)
        self.version = 0  #: the oldest of the versions that it is made of

    def pull(self, asked: Callable[[], bool]) -> bool:
        """Take over what is published: whole slices, the newest of each.

        False: a slice is torn, and quiet was `asked` for. Its owner may be gone, and who owns it next mends it when all
        are quiet; so waiting for it would be for ever.
        """
        versions = self._board.versions()
        for index, version in enumerate(versions):
            if self._have[index] == version and index not in self._board.torn():
                continue
            while (copied := self._copy(index)) is None:
                time.sleep(0)  # its owner is at it, or was when it died
                if asked():
                    return False
            self._have[index] = copied
        self.version = min(self._have)
        return True

    def distrust(self) -> None:
        """Another generation: a version that only a host had which is lost may have come to nothing."""
        self._have = [-1] * len(self._have)

    def _copy(self, index: int) -> int | None:
        """Copy a slice; its version, or None where somebody is changing it."""
        piece, board = self._space.layout.slices[index], self._board
        before = board.versions()[index]
        if index in board.torn():
            return None
        self.flats[piece.dtype][piece.start : piece.stop].copy_(self._published[piece.dtype][piece.start : piece.stop])
        return before if index not in board.torn() and board.versions()[index] == before else None
