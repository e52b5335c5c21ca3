"""The optimizer on slices, with an undo record so that no kill can tear an update.

The user's optimizer is run, unchanged, on the pieces of one slice after another. Parameters and state
lie in the arena; whoever owns a slice next finds them there.

Updates are in place (one copy of the state per host, not two), so a worker that is killed in the
middle of one leaves a torn slice. Before a slice is touched, its parameters and state are therefore
copied into the worker's *undo* section; the undo word on the board is set; the optimizer runs; the
slice's new version is published with one store; the word is cleared. Whoever owns the slice after a
death puts the copy back and does the work again. The section is one slice long and used over and over,
so it stays in the cache and warms the very bytes the optimizer reads next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from holdfast.core.slices import Slice
from holdfast.dataplane.memory.space import Space, dtype_name, typed
from holdfast.dataplane.reduce.schema import Schema, clone
from holdfast.dataplane.reduce.several_optimizers import owner
from holdfast.errors import NotExact

__all__ = ["SliceOptimizer", "state_kinds", "state_sizes", "undo_bytes"]


def state_sizes(space: Space, schemas: dict[tuple[int, str], Schema]) -> dict[str, int]:
    """The sections of the optimizer's state, with their bytes."""
    sizes = {key: dtype.itemsize * count for key, (dtype, count) in _state_arrays(space, schemas).items()}
    return {**sizes, "ready": _num_pieces(space)}


def state_kinds(space: Space, schemas: dict[tuple[int, str], Schema]) -> dict[str, str]:
    """Of what type the numbers of these sections are."""
    return {key: dtype_name(dtype) for key, (dtype, _) in _state_arrays(space, schemas).items()}


def undo_bytes(space: Space, schemas: dict[tuple[int, str], Schema]) -> int:
    """How much a worker needs to undo an update of any slice."""
    return max(
        (sum(-(-size // 64) * 64 for size in _undo_sizes(space, schemas, piece)) for piece in space.layout.slices),
        default=0,
    )


class SliceOptimizer:
    """Runs the user's optimizer on the slices this worker owns. `section` finds the bytes of a section."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, space: Space, schemas: dict[tuple[int, str], Schema],
        section: Callable[[str], memoryview], num_rows: int,
    ) -> None:  # fmt: skip
        self._optimizer, self._space, self._schemas = optimizer, space, schemas
        self.parameters = {n: typed(section(f"parameters/{n}"), d)[:t] for (n, d), t in _totals(space)}
        arrays = _state_arrays(space, schemas)
        self._arrays = {key: typed(section(key), dtype)[:count] for key, (dtype, count) in arrays.items()}
        self._ready = typed(section("ready"), torch.uint8)
        self._flags = section("ready").cast("B")  # the same bytes, for the looks that every step takes
        undo = typed(section("undo"), torch.uint8)
        self._undo_rows = undo[: len(undo) // num_rows * num_rows].view(num_rows, -1)
        self._first_piece = _first_pieces(space)
        self._scratch = {n: torch.empty(_longest(space, n), dtype=d) for (n, d), _ in _totals(space)}
        self._twins: dict[int, torch.optim.Optimizer] = {}
        self._takes: dict[int, int] = {}  # slice -> where its twin takes gradients from
        groups = range(len(optimizer.param_groups))
        self._steps = [_bare_step(type(owner(optimizer, group)[0])) for group in groups]  # of each group
        self._guarded: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = {}

    def scratch(self, piece: Slice) -> Tensor:
        """Where the slice's gradient has to be put before `apply`."""
        return self._scratch[piece.dtype][: piece.stop - piece.start]

    def seed(self) -> None:
        """Take over parameters and any state the user's optimizer already has (a loaded checkpoint)."""
        for parameter, window in zip(self._space.trainable, self._space.views(self.parameters), strict=True):
            window.copy_(parameter.detach())
        for index, piece in enumerate(self._pieces()):
            parameter = self._space.trainable[piece.entry]
            group = self._space.groups[piece.entry]
            state = owner(self._optimizer, group)[0].state.get(parameter)
            if not state:
                continue
            schema = self._schemas[group, dtype_name(parameter.dtype)]
            for key in schema.tensors:
                if state.get(key) is not None:
                    part = state[key].detach().flatten()[piece.offset : piece.offset + piece.stop - piece.start]
                    self._arrays[_key(key, parameter.dtype)][piece.start : piece.stop] = part
            for key in (*schema.scalars, *schema.numbers):
                if state.get(key) is not None:
                    self._arrays[_scalar(key, parameter.dtype)][index] = float(state[key])
            if all(state.get(key) is not None for key in (*schema.tensors, *schema.scalars, *schema.numbers)):
                self._ready[index] = 1

    def guard(self, slice_: int, row: int) -> None:
        """Copy the slice's parameters and state into the undo section of `row`."""
        for live, copy in self._undo_pairs(slice_, row):
            copy.copy_(live)

    def restore(self, slice_: int, row: int) -> None:
        """Put the copy of a torn slice back."""
        for live, copy in self._undo_pairs(slice_, row):
            live.copy_(copy)
        self._twins.pop(slice_, None)

    def forget(self) -> None:
        """Ownership changed: what others did to the state since must be read from the arena again."""
        self._twins.clear()

    def apply(
        self, slice_: int, hyper: dict[str, Any], absent: frozenset[int], gradient: Tensor | None = None
    ) -> None:
        """Run the optimizer on one slice; its gradient is in `scratch`, or given. `absent` entries had no gradient."""
        piece = self._space.layout.slices[slice_]
        gradient = self.scratch(piece) if gradient is None else gradient
        twin = self._twins.get(slice_)
        if twin is None:
            twin = self._twins[slice_] = self._twin(slice_)
        if self._takes.get(slice_) != gradient.data_ptr():
            _let_take(twin, piece, gradient)
            self._takes[slice_] = gradient.data_ptr()
        group = twin.param_groups[0]
        for key, value in hyper.items():
            group[key] = value
        first = self._first_piece[slice_]
        ready = bytes(self._flags[first : first + len(piece.pieces)])
        if absent or len(set(ready)) > 1:
            self._step_apart(piece, twin, ready, absent, gradient)
        else:
            self._steps[piece.group](twin)
        self._settle(slice_, twin, absent)

    def _step_apart(
        self, piece: Slice, twin: torch.optim.Optimizer, ready: bytes, absent: frozenset[int], gradient: Tensor
    ) -> None:
        """One step in two goes: fused and foreach code wants all of its parameters to have state, or none of them."""
        pieces = list(zip(twin.param_groups[0]["params"], piece.pieces, ready, strict=True))
        for turn in set(ready):
            for tensor, part, had in pieces:
                there = part.entry not in absent and had == turn
                tensor.grad = gradient[part.start - piece.start : part.stop - piece.start] if there else None
            if any(tensor.grad is not None for tensor, _, _ in pieces):
                self._steps[piece.group](twin)
        _let_take(twin, piece, gradient)

    def state_of(self, parameter_index: int) -> dict[str, Any]:
        """The state of one whole parameter, as torch would show it: views of the arena."""
        parameter, dtype = self._space.trainable[parameter_index], self._space.kinds[parameter_index]
        schema = self._schemas[self._space.groups[parameter_index], dtype_name(dtype)]
        first = next((i for i, p in enumerate(self._pieces()) if p.entry == parameter_index), None)
        if first is None or not self._ready[first]:  # without elements, or never had a gradient
            return {}
        start = self._space.layout.offsets[parameter_index]
        state: dict[str, Any] = {}
        for key in schema.scalars:
            state[key] = self._arrays[_scalar(key, dtype)][first].clone()
        for key, kind in schema.numbers.items():
            state[key] = kind(self._arrays[_scalar(key, dtype)][first].item())
        for key in schema.tensors:
            flat = self._arrays[_key(key, dtype)]
            state[key] = flat[start : start + parameter.numel()].view(parameter.shape)
        return state

    def _pieces(self) -> list[Any]:
        return [part for piece in self._space.layout.slices for part in piece.pieces]

    def _twin(self, slice_: int) -> torch.optim.Optimizer:
        piece, first = self._space.layout.slices[slice_], self._first_piece[slice_]
        flat = self.parameters[piece.dtype]
        tensors = [flat[part.start : part.stop] for part in piece.pieces]
        twin = clone(self._optimizer, piece.group, tensors)
        schema = self._schemas[piece.group, piece.dtype]
        self._takes.pop(slice_, None)
        for place, (tensor, part) in enumerate(zip(tensors, piece.pieces, strict=True)):
            if self._ready[first + place]:
                twin.state[tensor] = self._piece_state(schema, tensor, part, first + place)
        return twin

    def _piece_state(self, schema: Schema, tensor: Tensor, part: Any, index: int) -> dict[str, Any]:
        state: dict[str, Any] = {}
        for key in schema.scalars:
            state[key] = self._arrays[_scalar(key, tensor.dtype)][index]
        for key, kind in schema.numbers.items():
            state[key] = kind(self._arrays[_scalar(key, tensor.dtype)][index].item())
        for key in schema.tensors:
            state[key] = self._arrays[_key(key, tensor.dtype)][part.start : part.stop]
        return state

    def _settle(self, slice_: int, twin: torch.optim.Optimizer, absent: frozenset[int]) -> None:
        """Move state that the optimizer has just made into the arena, and write plain numbers back."""
        piece, first = self._space.layout.slices[slice_], self._first_piece[slice_]
        schema = self._schemas[piece.group, piece.dtype]
        fresh = 0 in bytes(self._flags[first : first + len(piece.pieces)])
        if not fresh and not schema.numbers and not schema.rebinds:
            return
        for place, (tensor, part) in enumerate(zip(twin.param_groups[0]["params"], piece.pieces, strict=True)):
            index = first + place
            if part.entry in absent:
                continue
            state = twin.state[tensor]
            for key in schema.numbers:
                self._arrays[_scalar(key, tensor.dtype)][index] = state[key]
            if schema.rebinds or not self._ready[index]:
                shared = self._piece_state(schema, tensor, part, index)
                for key in (*schema.tensors, *schema.scalars):
                    if state[key].data_ptr() != shared[key].data_ptr():
                        shared[key].copy_(state[key])
                        state[key] = shared[key]
                self._ready[index] = 1

    def _undo_pairs(self, slice_: int, row: int) -> list[tuple[Tensor, Tensor]]:
        pairs = self._guarded.get((slice_, row))
        if pairs is None:
            piece, first = self._space.layout.slices[slice_], self._first_piece[slice_]
            last = first + len(piece.pieces)
            schema = self._schemas[piece.group, piece.dtype]
            dtype = self._space.dtypes[piece.dtype]
            live = [self.parameters[piece.dtype][piece.start : piece.stop]]
            live += [self._arrays[_key(k, dtype)][piece.start : piece.stop] for k in schema.tensors]
            dtype = self._space.dtypes[piece.dtype]
            live += [self._arrays[_scalar(k, dtype)][first:last] for k in (*schema.scalars, *schema.numbers)]
            live += [self._ready[first:last]]
            pairs, at = [], 0
            for tensor in live:
                size = tensor.numel() * tensor.element_size()
                pairs.append((tensor, self._undo_rows[row, at : at + size].view(tensor.dtype)))
                at += -(-size // 64) * 64
            self._guarded[slice_, row] = pairs
        return pairs


def _let_take(twin: torch.optim.Optimizer, piece: Slice, gradient: Tensor) -> None:
    """Let a slice's optimizer take its gradients from there."""
    for tensor, part in zip(twin.param_groups[0]["params"], piece.pieces, strict=True):
        tensor.grad = gradient[part.start - piece.start : part.stop - piece.start]


def _bare_step(kind: type[torch.optim.Optimizer]) -> Callable[[torch.optim.Optimizer], object]:
    """The class's `step` without the wrapper that opens a profiler range and runs hooks around every call.

    The profiler would show hundreds of slices instead of one step, and hooks are refused by the probe.
    """
    step: Callable[[torch.optim.Optimizer], object] = kind.step
    return getattr(step, "__wrapped__", step) if getattr(step, "hooked", False) else step


def _key(name: str, dtype: torch.dtype) -> str:
    return f"state/{name}/{dtype_name(dtype)}"


def _scalar(name: str, dtype: torch.dtype) -> str:
    return f"scalar/{name}/{dtype_name(dtype)}"


def _totals(space: Space) -> list[tuple[tuple[str, torch.dtype], int]]:
    return [((name, space.dtypes[name]), total) for name, total in space.layout.totals.items()]


def _longest(space: Space, dtype: str) -> int:
    return max((s.stop - s.start for s in space.layout.slices if s.dtype == dtype), default=0)


def _num_pieces(space: Space) -> int:
    return sum(len(s.pieces) for s in space.layout.slices)


def _first_pieces(space: Space) -> list[int]:
    firsts, count = [], 0
    for piece in space.layout.slices:
        firsts.append(count)
        count += len(piece.pieces)
    return firsts


def _state_arrays(space: Space, schemas: dict[tuple[int, str], Schema]) -> dict[str, tuple[torch.dtype, int]]:
    arrays: dict[str, tuple[torch.dtype, int]] = {}
    for (_, name), schema in sorted(schemas.items()):
        dtype, total = space.dtypes[name], space.layout.totals[name]
        wanted = {_key(key, dtype): (kind, total) for key, kind in schema.tensors.items()}
        wanted |= {_scalar(key, dtype): (kind, _num_pieces(space)) for key, kind in schema.scalars.items()}
        wanted |= {_scalar(key, dtype): (torch.float64, _num_pieces(space)) for key in schema.numbers}
        for key, array in wanted.items():
            if arrays.setdefault(key, array) != array:
                raise NotExact(
                    f"two parameter groups keep {key!r} as {arrays[key][0]} and as {array[0]}",
                    "Let the optimizer keep a state of one name in one type.",
                )
    return arrays


def _undo_sizes(space: Space, schemas: dict[tuple[int, str], Schema], piece: Slice) -> list[int]:
    schema, length, parts = schemas[piece.group, piece.dtype], piece.stop - piece.start, len(piece.pieces)
    sizes = [length * space.dtypes[piece.dtype].itemsize]
    sizes += [length * dtype.itemsize for dtype in schema.tensors.values()]
    sizes += [parts * dtype.itemsize for dtype in schema.scalars.values()] + [parts * 8] * len(schema.numbers)
    return [*sizes, parts]
