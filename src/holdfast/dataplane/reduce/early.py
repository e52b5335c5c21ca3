"""Sending gradients while backward still runs: what of a host's partial sum is complete goes on its way at once.

In the last unit of a step, on a host with one worker, nothing but this backward is missing from what the host owes the
other hosts. Backward makes the gradients of the last layers first; as soon as all gradients of a slice are there, the
slice of the host's partial sum is made, apart from the slots (`host` section), and may be sent. The slots are filled at
the unit's end as ever, so nothing else depends on this.

The script may still change gradients after `backward()`. Whatever it changed is noticed at the unit's end (tensors
count their writes) and sent again, before this worker arrives; and nothing is summed anywhere before it has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from holdfast.core.tree import Node, push
from holdfast.dataplane.memory import board as cells
from holdfast.dataplane.memory.board import Board
from holdfast.dataplane.memory.space import Space
from holdfast.dataplane.reduce.gradients import LaneGradients

__all__ = ["Early"]

#: With fewer slices to send than this, there is nothing to gain.
LEAST = 2
#: Bytes that become ready before the senders are told.
_TOLD = 1 << 20


class Early:
    """Watches the gradients of one worker's last unit of a step."""

    def __init__(self, space: Space, gradients: LaneGradients, board: Board, ring: Callable[[], None]) -> None:
        self._space, self._gradients, self._board, self._ring = space, gradients, board, ring
        slices = space.layout.slices
        self._of: list[list[int]] = [[] for _ in space.trainable]  # entry -> slices it lies in
        for piece in slices:
            for part in piece.pieces:
                self._of[part.entry].append(piece.index)
        self._leaf = {
            name: torch.zeros(max(s.stop - s.start for s in slices if s.dtype == name), dtype=space.dtypes[name])
            for name in space.layout.totals
        }
        self._left: dict[int, int] = {}  # slice -> gradients that are still to come; empty: nothing is watched
        self._step, self._lane = -1, -1
        self._weight: float | None = None
        self._nodes: list[Node] = []
        self._inside: list[int] = []
        self._sent: dict[int, tuple[int, int]] = {}  # entry -> (identity, number of writes) of the gradient used
        self._ready = 0

    def begin(
        self, step: int, leaf: Node, lanes: Sequence[int], weight: float | None, wanted: Sequence[int]
    ) -> None:
        """The last unit of this host begins, which becomes this leaf: watch for the slices that other hosts want.

        `lanes` are those with work in this step. Does nothing where the host's lanes do not make up one node.
        """
        self._left = {}
        nodes = [*self._gradients.held(step), leaf]
        _, stack = push(nodes[:-1], nodes[-1], self._board.num_lanes)
        if len(stack) != 1 or len(wanted) < LEAST:
            return
        (whole,) = stack
        self._nodes, self._step, self._lane, self._weight = nodes, step, leaf.lane, weight
        self._inside = [n for n in lanes if whole.lane <= n < whole.lane + whole.span]
        slices = self._space.layout.slices
        self._left = {index: len({part.entry for part in slices[index].pieces}) for index in wanted}
        self._sent, self._ready = {}, 0
        self._board.put(cells.R_EARLY, (step + 1) << 32 | whole.lane << 16 | whole.span)

    def came(self, entry: int) -> None:
        """Backward has made the gradient of a parameter."""
        if not self._left:
            return
        gradient = self._space.trainable[entry].grad
        if gradient is None or gradient.layout != torch.strided or entry in self._sent:
            self._left = {}  # a second backward, or nothing that has slices: all goes at the unit's end
            return
        self._sent[entry] = id(gradient), gradient._version
        for index in self._of[entry]:
            if index not in self._left:
                continue
            self._left[index] -= 1
            if not self._left[index]:
                self._make(index)

    def _make(self, index: int) -> None:
        piece = self._space.layout.slices[index]
        leaf = self._leaf[piece.dtype][: piece.stop - piece.start]
        if sum(part.stop - part.start for part in piece.pieces) < len(leaf):
            leaf.zero_()  # what lies between the parts counts in norms, and is zero in the slots
        for part in piece.pieces:
            gradient = self._space.trainable[part.entry].grad
            assert gradient is not None
            flat = gradient.detach().reshape(-1)[part.offset : part.offset + part.stop - part.start]
            place = leaf[part.start - piece.start : part.stop - piece.start]
            if self._weight is None:
                place.copy_(flat)
            else:
                torch.mul(flat, self._weight, out=place)
        self._gradients.total(
            piece, self._nodes, self._inside, 1.0, self._gradients.gathered(piece), leaf=(self._lane, leaf)
        )
        self._board.publish_gathered(index, self._step + 1)
        self._ready += piece.nbytes
        if self._ready >= _TOLD:
            self._ready = 0
            self._ring()

    def end(self) -> None:
        """The unit's gradient has been taken: withdraw what was made of gradients that have changed since."""
        if self._step < 0:
            return
        stale: set[int] = set()
        for entry, (identity, writes) in self._sent.items():
            gradient = self._space.trainable[entry].grad
            if gradient is None or (id(gradient), gradient._version) != (identity, writes):
                stale.update(self._of[entry])
        for index in stale:
            self._board.publish_gathered(index, 0)
        self._left, self._step = {}, -1

    def close(self) -> None:
        """The unit is shown: what was not sent early goes from its slot."""
        self._board.put(cells.R_EARLY, 0)
