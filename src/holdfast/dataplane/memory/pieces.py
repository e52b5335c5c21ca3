"""Pieces: partial sums of single slices that came from other hosts, and where they count.

A host sends to a slice's home only that slice, so a slot of the home fills piece by piece. One word per lane and slice
says what the slot of the lane holds of the slice: the sum of `span` lanes, for one step. The word is written after
the bytes. No torch here: the peer session writes it, the workers read it.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.tree import Node

__all__ = ["Pieces"]

_SPAN = 16  # bits; lanes are far fewer
_SPANS = (1 << _SPAN) - 1


class Pieces:
    """The words of all lanes and slices."""

    def __init__(self, memory: memoryview, num_lanes: int, num_slices: int) -> None:
        self._words = memory.cast("B").cast("q")[: num_lanes * num_slices]
        self._num_slices = num_slices

    def marks(self) -> bytes:
        """All words: while they are the same, nothing has come."""
        return bytes(self._words)

    def clear(self) -> None:
        """A new generation: whoever has something to send sends it again."""
        self._words[:] = memoryview(bytes(8 * len(self._words))).cast("q")

    def put(self, node: Node, step: int, first: int, last: int) -> None:
        """Slices [first, last) of the slot of `node.lane` hold the sum of the node for `step`."""
        word, at = step + 1 << _SPAN | node.span, node.lane * self._num_slices
        for slice_ in range(first, last):
            self._words[at + slice_] = word

    def holds(self, node: Node, step: int, slice_: int) -> bool:
        """Has this piece come already?"""
        return self._words[node.lane * self._num_slices + slice_] == step + 1 << _SPAN | node.span

    def missing(self, step: int, slice_: int, wanted: int, but: int) -> int:
        """Those of the `wanted` lanes, a bit each, that no piece of a slice covers which has come for `step`.

        Slots of the lanes in `but` hold something else. (`nodes` would tell, too; but this is asked for every frame.)
        """
        for lane, word in enumerate(self._words[slice_ :: self._num_slices].tolist()):
            if word >> _SPAN == step + 1 and not but >> lane & 1:
                wanted &= ~((1 << (word & _SPANS)) - 1 << lane)
        return wanted

    def nodes(self, step: int, slice_: int, but: Sequence[Node] = ()) -> list[Node]:
        """The partial sums of a slice that have come for `step`, but for those in the slots of `but`."""
        taken = {node.lane for node in but}
        column = self._words[slice_ :: self._num_slices].tolist()
        return [
            Node(lane, word & _SPANS)
            for lane, word in enumerate(column)
            if word >> _SPAN == step + 1 and lane not in taken
        ]
