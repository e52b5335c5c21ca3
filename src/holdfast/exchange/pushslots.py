"""Where the gradients of pushes lie until they are applied: as many for each lane as its mode has room for.

Unlike lane slots they are never merged before their docket is known: which pushes are summed depends on who was in
time. A docket that takes a whole step is summed by the same additions, in the same order, as an exact step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from holdfast.core.clocks import Taken
from holdfast.core.slices import Slice
from holdfast.core.tree import Node, plan
from holdfast.exchange.slots import add_up, refuse_sparse, spare_buffers
from holdfast.exchange.space import Space, typed
from holdfast.transport.arena import Arena, Sections

__all__ = ["PushSlots", "add_sections"]


def add_sections(sections: Sections, space: Space, num_lanes: int, depth: int) -> None:
    """Lay out `depth` slots per lane, and which parameters had a gradient."""
    for name, total in space.layout.totals.items():
        for lane in range(num_lanes):
            for turn in range(depth):
                sections.add(f"push/{lane}/{turn}/{name}", total * space.dtypes[name].itemsize)
    sections.add("push-present", depth * num_lanes * max(1, len(space.trainable)))


class PushSlots:
    """The slots of all lanes."""

    def __init__(self, space: Space, arena: Arena, num_lanes: int, depth: int) -> None:
        self._space, self._num_lanes, self._depth = space, num_lanes, depth
        names = space.layout.totals
        self._flats = [
            [
                {n: typed(arena.section(f"push/{lane}/{turn}/{n}"), space.dtypes[n])[: names[n]] for n in names}
                for turn in range(depth)
            ]
            for lane in range(num_lanes)
        ]
        self._windows: dict[tuple[int, int], list[Tensor]] = {}
        self._present = arena.section("push-present").cast("B")
        self._spare = spare_buffers(space, num_lanes)

    def fill(self, push: Taken, gradients: Sequence[Tensor | None]) -> None:
        """Put a unit's gradient into its place. Nobody uses it before the lane's clock has moved."""
        turn = push.step % self._depth
        key = push.lane, turn
        if key not in self._windows:
            self._windows[key] = self._space.views(self._flats[push.lane][turn])
        for window, gradient, name in zip(self._windows[key], gradients, self._space.names, strict=False):
            if gradient is None:
                window.zero_()
            else:
                refuse_sparse(gradient, name)
                window.copy_(gradient)
        count = len(gradients)
        at = (turn * self._num_lanes + push.lane) * count
        self._present[at : at + count] = bytes(gradient is not None for gradient in gradients)

    def absent(self, pushes: Sequence[Taken]) -> frozenset[int]:
        """Entries that got a gradient in none of these."""
        count = len(self._space.trainable)
        places = [(push.step % self._depth * self._num_lanes + push.lane) * count for push in pushes]
        flags = [bytes(self._present[at : at + count]) for at in places]
        return frozenset(index for index in range(count) if not any(flag[index] for flag in flags))

    def total(self, piece: Slice, pushes: Mapping[int, Taken], weights: Mapping[int, float], out: Tensor) -> None:
        """The mean of these pushes (by lane) over one slice, each with its weight, summed over the tree of lanes."""
        name, start, stop = piece.dtype, piece.start, piece.stop
        even = len(set(weights.values())) == 1
        spare = [buffer[: stop - start] for buffer in self._spare[name]]

        def load(lane: int) -> Tensor:
            leaf = self._flats[lane][pushes[lane].step % self._depth][name][start:stop]
            return leaf if even else torch.mul(leaf, weights[lane], out=spare.pop())

        codes = plan([Node(lane, 1) for lane in pushes], sorted(pushes), self._num_lanes)
        factor = 1.0 / (len(pushes) if even else sum(weights.values()))
        torch.mul(add_up(codes, load, spare), factor, out=out)
