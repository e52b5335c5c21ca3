"""Where the gradients of pushes lie until they are applied: as many for each lane as its mode has room for.

Unlike lane slots they are never merged before their docket is known: which pushes are summed depends on who was in
time. A docket that takes a whole step is summed by the same additions, in the same order, as an exact step.

Where stale pushes are compensated (`core.staleness`), the parameters that a push was computed from lie beside it, as
long as it does. So whoever applies it, after whatever death, comes to the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.core.clocks import Taken
from holdfast.core.slices import Slice
from holdfast.core.tree import Node, plan
from holdfast.exchange.slots import add_up, refuse_sparse, spare_buffers
from holdfast.exchange.space import Space, typed
from holdfast.transport.arena import Arena

__all__ = ["Drift", "PushSlots", "compensated"]


@dataclass(frozen=True, slots=True)
class Drift:
    """How far the parameters have moved since stale pushes were computed, and what to make of it."""

    lanes: frozenset[int]  #: whose pushes are stale
    compensation: float
    parameters: Mapping[str, Tensor]  #: as they are now, flat per dtype


def compensated(gradient: Tensor, now: Tensor, then: Tensor, compensation: float, out: Tensor) -> Tensor:
    """The gradient as it would be at the parameters of `now`, into `out`: g + lambda * g * g * (now - then)."""
    torch.sub(now, then, out=out)
    return out.mul_(gradient).mul_(gradient).mul_(compensation).add_(gradient)


class PushSlots:
    """The slots of all lanes."""

    def __init__(self, space: Space, arena: Arena, num_lanes: int, depth: int) -> None:
        self._space, self._num_lanes, self._depth, self._arena = space, num_lanes, depth, arena
        self._flats = [[self._flat("push", lane, turn) for turn in range(depth)] for lane in range(num_lanes)]
        self._reads: dict[tuple[int, int], dict[str, Tensor]] = {}
        self._windows: dict[tuple[int, int], list[Tensor]] = {}
        self._present = arena.section("push-present").cast("B")
        self._spare = spare_buffers(space, num_lanes)

    def _flat(self, kind: str, lane: int, turn: int) -> dict[str, Tensor]:
        space = self._space
        sections = {name: self._arena.section(f"{kind}/{lane}/{turn}/{name}") for name in space.layout.totals}
        return {name: typed(sections[name], space.dtypes[name])[:total] for name, total in space.layout.totals.items()}

    def _read(self, push: Taken) -> dict[str, Tensor]:
        key = push.lane, push.step % self._depth
        if key not in self._reads:
            self._reads[key] = self._flat("read", *key)
        return self._reads[key]

    def keep(self, push: Taken, parameters: Mapping[str, Tensor]) -> None:
        """Keep the parameters that a push was computed from, until it is applied."""
        for name, flat in self._read(push).items():
            flat.copy_(parameters[name])

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

    def total(
        self, piece: Slice, pushes: Mapping[int, Taken], weights: Mapping[int, float], out: Tensor,
        drift: Drift | None = None,
    ) -> None:  # fmt: skip
        """The mean of these pushes (by lane) over one slice, each with its weight, summed over the tree of lanes.

        With `drift`, those that are stale are compensated for it.
        """
        name, start, stop = piece.dtype, piece.start, piece.stop
        even = len(set(weights.values())) == 1
        spare = [buffer[: stop - start] for buffer in self._spare[name]]

        def load(lane: int) -> Tensor:
            leaf = self._flats[lane][pushes[lane].step % self._depth][name][start:stop]
            if drift is None or lane not in drift.lanes:
                return leaf if even else torch.mul(leaf, weights[lane], out=spare.pop())
            then, now = self._read(pushes[lane])[name][start:stop], drift.parameters[name][start:stop]
            moved = compensated(leaf, now, then, drift.compensation, spare.pop())
            return moved if even else moved.mul_(weights[lane])

        codes = plan([Node(lane, 1) for lane in pushes], sorted(pushes), self._num_lanes)
        factor = 1.0 / (len(pushes) if even else sum(weights.values()))
        torch.mul(add_up(codes, load, spare), factor, out=out)
