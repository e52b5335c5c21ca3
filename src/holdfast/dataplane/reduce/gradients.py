"""Lane slots: where the gradients of units lie until their step is finished.

Every lane has a slot as large as the gradient; a complete partial sum of several lanes lies in the
slot of its first lane. A worker that drives a run of lanes adds each new gradient straight into the
slot it belongs to, so a run that is a subtree leaves one slot behind, and the pages of the others are
never touched. Slots are in the arena: they are as good after their writer's death as before.

The gradient is copied (or added) into its slot when the unit ends. Letting autograd accumulate straight into
the slot was measured too: it needs the slot zeroed first and then reads it again, and is 4% slower for a
model of 20 million parameters.

Canonical weights. With equal shares the leaves are summed as they are, and the sum is multiplied by
1/lanes. With unequal shares each leaf is first multiplied by its number of samples, and the sum by
1/samples. Both are decided by the batch alone, so no assignment of lanes can change a bit. A parameter
that got no gradient in a lane counts as zeros there; one that got none in any lane is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from holdfast.core.slices import Slice
from holdfast.core.tree import ADD, Node, Plan, keep, plan, push
from holdfast.dataplane.memory.arena import Arena
from holdfast.dataplane.memory.board import Board
from holdfast.dataplane.memory.pieces import Pieces
from holdfast.dataplane.memory.space import Space, dtype_name, typed
from holdfast.dataplane.reduce.finite import edges, glance, small
from holdfast.errors import NotExact

__all__ = ["LaneGradients", "add_up", "refuse_sparse", "spare_buffers"]


def refuse_sparse(gradient: Tensor, name: str) -> None:
    """A gradient must be dense, as slices are."""
    if gradient.layout != torch.strided:
        raise NotExact(
            f"the gradient of {name} is sparse, and slices are dense", "Use sparse=False for this embedding."
        )


def spare_buffers(space: Space, num_lanes: int) -> dict[str, list[Tensor]]:
    """Room for what lies between in adding up any slice, by dtype."""
    longest = {n: max(s.stop - s.start for s in space.layout.slices if s.dtype == n) for n in space.layout.totals}
    deep = max(1, num_lanes.bit_length()) + 1
    return {n: [torch.empty(longest[n], dtype=space.dtypes[n]) for _ in range(deep)] for n in longest}


def add_up(codes: Plan, load: Callable[[int], Tensor], spare: list[Tensor], out: Tensor | None = None) -> Tensor:
    """Carry out a plan of `core.tree`, with few buffers: `load` gives a lane's values, which are not written to.

    Values that `load` has taken from `spare` are written to. The sum is in one of those buffers; with `out`, there, if
    anything was added.
    """
    mine = {buffer.data_ptr() for buffer in spare}
    stack: list[Tensor] = []
    for place, code in enumerate(codes):
        if code != ADD:
            stack.append(load(code))
            continue
        right, left = stack.pop(), stack.pop()
        ours = [value for value in (left, right) if value.data_ptr() in mine]
        target = ours[0] if ours else spare.pop()
        spare += ours[1:]
        if out is not None and place == len(codes) - 1:
            target = out
        stack.append(torch.add(left, right, out=target))
    return stack.pop()


class LaneGradients:
    """The slots of all lanes, as one worker fills and sums them."""

    def __init__(self, space: Space, arena: Arena, board: Board) -> None:
        self._space, self._board, self._num_lanes = space, board, board.num_lanes
        names = space.layout.totals
        self._flats = [
            {n: typed(arena.section(f"slot/{lane}/{n}"), space.dtypes[n])[: names[n]] for n in names}
            for lane in range(self._num_lanes)
        ]
        self._sums = {n: typed(arena.section(f"sum/{n}"), space.dtypes[n])[: names[n]] for n in names}
        self._windows: list[list[Tensor] | None] = [None] * self._num_lanes
        self._looks: dict[int, list[Tensor]] = {}  # lane -> where in its slot to look at a glance
        count = len(space.trainable)
        self._hosts = {n: typed(arena.section(f"host/{n}"), space.dtypes[n])[: names[n]] for n in names}
        self._present = arena.section("present").cast("B")[: 2 * self._num_lanes * count]
        self.pieces = Pieces(arena.section("pieces"), self._num_lanes, len(space.layout.slices))
        self._all_present = bytes([1]) * count
        self._stack: list[Node] = []
        self._stack_step = -1
        self._spare = spare_buffers(space, self._num_lanes)

    # ------------------------------------------------------------ filling

    def fill(
        self, step: int, lane: int, gradients: Sequence[Tensor | None], weight: float | None, span: int = 1
    ) -> None:
        """Add a unit's gradient into its slot. Nobody uses it before `show`. A share counts for `span` lanes."""
        if self._stack_step != step:
            self._stack, self._stack_step = [], step
        merges, self._stack = push(self._stack, Node(lane, span), self._num_lanes)
        leaves = self._leaves(step, lane, gradients)
        if weight is not None:
            leaves = list(torch._foreach_mul(leaves, weight))
        board, held = self._board, lane
        if merges and merges[0].into.lane != lane:  # the leaf is a right child: add it where it belongs
            held = merges[0].into.lane
            board.open_slot(held)
            torch._foreach_add_(self._window(held), leaves)
            merges = merges[1:]
        else:
            board.open_slot(lane)
            torch._foreach_copy_(self._window(lane), leaves)
        for merge in merges:
            left, right = merge.into.lane, merge.take.lane
            board.open_slot(left)
            for name, flat in self._flats[left].items():
                flat.add_(self._flats[right][name])
            board.open_slot(right)
            held = left
        assert self._stack[-1].lane == held, f"the partial sum {self._stack[-1]} lies in slot {held}"

    def clean(self) -> bool:
        """Is the partial sum that the last `fill` completed finite, at a glance?"""
        lane = self._stack[-1].lane
        if lane not in self._looks:
            self._looks[lane] = self._looks_at(lane)
        return glance(self._looks[lane])

    def _looks_at(self, lane: int) -> list[Tensor]:
        """Neighbours that are small are looked at as one: what lies between them in a slot is zero."""
        found = list[Tensor]()
        places = list(zip(self._window(lane), self._space.layout.offsets, self._space.kinds, strict=True))
        for name, flat in self._flats[lane].items():
            begin = 0
            for window, start, kind in places:
                if dtype_name(kind) == name and not small(window):
                    found += flat[begin:start], *edges(window)
                    begin = start + window.numel()
            found.append(flat[begin:])
        return [look for look in found if look.numel()]

    def forget(self) -> None:
        """What was filled is not to be used: it is to be computed again."""
        self._stack, self._stack_step = [], -1

    def show(self) -> None:
        """Let the partial sum that the last `fill` completed be used."""
        grown = self._stack[-1]
        self._board.close_slot(grown.lane, self._stack_step, grown.span)

    def install(self, driver: Sequence[int], worker: int) -> None:
        """A new generation: what I published stays, but I merge only into what is still all mine."""
        shown = self._board.nodes(self._stack_step)  # what the others cannot see any more has to be computed again
        self._stack = [node for node in keep(self._stack, driver, worker) if node in shown]

    def _leaves(self, step: int, lane: int, gradients: Sequence[Tensor | None]) -> list[Tensor]:
        count = len(gradients)
        at = (step % 2 * self._num_lanes + lane) * count
        leaves: list[Tensor] = []
        flags = self._all_present
        for index, gradient in enumerate(gradients):
            if gradient is None:
                flags = bytes(0 if g is None else 1 for g in gradients)
                gradient = torch.zeros_like(self._space.trainable[index])
            elif gradient.layout != torch.strided:
                refuse_sparse(gradient, self._space.names[index])
            leaves.append(gradient)
        self._present[at : at + count] = flags
        return leaves

    def _window(self, lane: int) -> list[Tensor]:
        windows = self._windows[lane]
        if windows is None:
            windows = self._windows[lane] = self._space.views(self._flats[lane])
        return windows

    # ------------------------------------------------------------ summing

    def absent(self, step: int, lanes: Sequence[int]) -> frozenset[int]:
        """Entries that got a gradient in no lane of this step."""
        count = len(self._space.trainable)
        turn = step % 2 * self._num_lanes
        flags = [bytes(self._present[(turn + lane) * count : (turn + lane + 1) * count]) for lane in lanes]
        if self._all_present in flags:
            return frozenset()
        return frozenset(i for i in range(count) if not any(flag[i] for flag in flags))

    def held(self, step: int) -> list[Node]:
        """The partial sums of this worker that it would merge with its next unit of `step`."""
        return list(self._stack) if self._stack_step == step else []

    def total(
        self, piece: Slice, nodes: Sequence[Node], lanes: Sequence[int], factor: float, out: Tensor,
        leaf: tuple[int, Tensor] | None = None,
    ) -> None:  # fmt: skip
        """Finish the tree for one slice: the weighted gradient of the step, into `out`.

        With `leaf` = (lane, values), the slice of that lane's slot is taken from there.
        """
        name, start, stop = piece.dtype, piece.start, piece.stop

        def load(lane: int) -> Tensor:
            if leaf is not None and lane == leaf[0]:
                return leaf[1]
            return self._flats[lane][name][start:stop]

        spare = [buffer[: stop - start] for buffer in self._spare[name]]
        value = add_up(plan(nodes, lanes, self._num_lanes), load, spare, out if factor == 1.0 else None)
        if factor != 1.0:
            torch.mul(value, factor, out=out)
        elif value is not out:
            out.copy_(value)

    def sum_of(self, piece: Slice) -> Tensor:
        """Where the slice's weighted gradient is kept until it is used (steps that clip, several hosts)."""
        return self._sums[piece.dtype][piece.start : piece.stop]

    def gathered(self, piece: Slice) -> Tensor:
        """Where what the workers of this host have of a slice is merged, to be sent to its home."""
        return self._hosts[piece.dtype][piece.start : piece.stop]

    def culprits(self, piece: Slice, nodes: Sequence[Node]) -> list[Node]:
        """The partial sums of a slice that hold a NaN or an infinity."""
        flats = ((node, self._flats[node.lane][piece.dtype][piece.start : piece.stop]) for node in nodes)
        return [node for node, flat in flats if not torch.isfinite(flat).all()]
