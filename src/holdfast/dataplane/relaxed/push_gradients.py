"""Where the gradients of pushes lie until they are applied: one for each lane.

Unlike lane slots they are never merged before their commit set is known: which pushes are summed depends on who was in
time. A commit set that takes a whole step is summed by the same additions, in the same order, as an exact step.

Where stale pushes are compensated (`core.sync.staleness`), the parameters that a push was computed from lie beside it,
as long as it does. So whoever applies it, after whatever death, comes to the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.core.slices import Slice
from holdfast.core.tree import Node, plan
from holdfast.dataplane.memory.arena import Arena
from holdfast.dataplane.memory.space import Space, typed
from holdfast.dataplane.reduce.gradients import add_up, refuse_sparse, spare_buffers

__all__ = ["Drift", "PushGradients", "compensated"]


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


class PushGradients:
    """The slots of all lanes."""

    def __init__(self, space: Space, arena: Arena, num_lanes: int) -> None:
        self._space, self._num_lanes, self._arena = space, num_lanes, arena
        self._flats = [self._flat("push", lane) for lane in range(num_lanes)]
        self._reads: dict[int, dict[str, Tensor]] = {}
        self._windows: dict[int, list[Tensor]] = {}
        self._present = arena.section("push-present").cast("B")
        self._spare = spare_buffers(space, num_lanes)

    def _flat(self, kind: str, lane: int) -> dict[str, Tensor]:
        space = self._space
        sections = {name: self._arena.section(f"{kind}/{lane}/{name}") for name in space.layout.totals}
        return {name: typed(sections[name], space.dtypes[name])[:total] for name, total in space.layout.totals.items()}

    def _read(self, lane: int) -> dict[str, Tensor]:
        if lane not in self._reads:
            self._reads[lane] = self._flat("read", lane)
        return self._reads[lane]

    def keep(self, lane: int, parameters: Mapping[str, Tensor]) -> None:
        """Keep the parameters that a lane's push was computed from, until it is applied."""
        for name, flat in self._read(lane).items():
            flat.copy_(parameters[name])

    def fill(self, lane: int, gradients: Sequence[Tensor | None]) -> None:
        """Put a unit's gradient into its place. Nobody uses it before the lane's clock has moved."""
        if lane not in self._windows:
            self._windows[lane] = self._space.views(self._flats[lane])
        for window, gradient, name in zip(self._windows[lane], gradients, self._space.names, strict=False):
            if gradient is None:
                window.zero_()
            else:
                refuse_sparse(gradient, name)
                window.copy_(gradient)
        count = len(gradients)
        at = lane * count
        self._present[at : at + count] = bytes(gradient is not None for gradient in gradients)

    def absent(self, lanes: Iterable[int]) -> frozenset[int]:
        """Entries that got a gradient in the push of none of these lanes."""
        count = len(self._space.trainable)
        flags = [bytes(self._present[lane * count : (lane + 1) * count]) for lane in lanes]
        return frozenset(index for index in range(count) if not any(flag[index] for flag in flags))

    def total(
        self, piece: Slice, lanes: Collection[int], weights: Mapping[int, float], out: Tensor,
        drift: Drift | None = None,
    ) -> None:  # fmt: skip
        """The mean of the pushes of these lanes over one slice, each with its weight, summed over the tree of lanes.

        With `drift`, those that are stale are compensated for it.
        """
        name, start, stop = piece.dtype, piece.start, piece.stop
        even = len(set(weights.values())) == 1
        spare = [buffer[: stop - start] for buffer in self._spare[name]]

        def load(lane: int) -> Tensor:
            leaf = self._flats[lane][name][start:stop]
            if drift is None or lane not in drift.lanes:
                return leaf if even else torch.mul(leaf, weights[lane], out=spare.pop())
            then, now = self._read(lane)[name][start:stop], drift.parameters[name][start:stop]
            moved = compensated(leaf, now, then, drift.compensation, spare.pop())
            return moved if even else moved.mul_(weights[lane])

        codes = plan([Node(lane, 1) for lane in lanes], sorted(lanes), self._num_lanes)
        factor = 1.0 / (len(lanes) if even else sum(weights.values()))
        torch.mul(add_up(codes, load, spare), factor, out=out)
