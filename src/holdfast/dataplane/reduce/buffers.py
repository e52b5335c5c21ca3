"""Buffers of the model (BatchNorm statistics and the like): part of the state, changed by forward passes.

A unit must be a pure function, so each starts from the buffers of its step's version. What it leaves
in them is put into the lane's record; when the step is finished, the owner of the first slice merges
the lanes in lane order:

* statistics of normalisation (torch's layers; what a module of the script names in `averaged_buffers`): the mean over
  the lanes, weighted by their samples. For BatchNorm's running statistics this is the same exponential average, of the
  lanes' mean statistic;
* all others (BatchNorm's counter, a queue, a memory bank): all lanes must agree; if they do not, the step stops with a
  sentence, because there is no meaning that one machine would have given them.

Buffers that a step does not touch (masks, tables) are not copied. torch counts writes to a tensor, but
its batch normalisation writes running statistics past that count; so a buffer counts as touched when its
number of writes changed, when it belongs to a normalisation layer, or, if it is small, when its bytes differ.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from holdfast.core.tree import reference_sum
from holdfast.dataplane.memory.arena import Arena
from holdfast.dataplane.memory.space import Space, typed
from holdfast.errors import NotExact

__all__ = ["Buffers"]

_SMALL = 64 * 1024  # bytes


class Buffers:
    """The buffers of the models, as one worker computes with them."""

    def __init__(self, models: Sequence[nn.Module], space: Space, arena: Arena, num_lanes: int) -> None:
        self._count, self._num_lanes, self._space = len(space.buffers), num_lanes, space
        self._names = [name for name, _ in space.buffers]
        self._live = [buffer for _, buffer in space.buffers]
        self._homes = _homes(models, self._live)
        copies = self._copies(arena, 2 + 2 * num_lanes)
        self._stores, self._records = copies[:2], copies[2:]
        self._changed = arena.section("buffers-changed").cast("B")
        self._newest = arena.section("buffers-versions").cast("q")  # buffer -> version that last changed it
        self._shown = [0] * self._count  # buffer -> version that the live one shows
        self._versions = [b._version for b in self._live]
        self._silent = [
            isinstance(module, _NormBase) or b.numel() * b.element_size() <= _SMALL
            for (module, _), b in zip(self._homes, self._live, strict=True)
        ]
        self._averaged = [
            isinstance(module, _NormBase) or key in getattr(module, "averaged_buffers", ())
            for module, key in self._homes
        ]
        self._dirty = [False] * self._count

    def _copies(self, arena: Arena, number: int) -> list[list[Tensor]]:
        offsets, size = self._space.placed()
        raw = typed(arena.section("buffers"), torch.uint8) if size else torch.empty(0, dtype=torch.uint8)
        return [
            [
                raw[copy * size + at : copy * size + at + b.numel() * b.element_size()].view(b.dtype).view(b.shape)
                for at, b in zip(offsets, self._live, strict=True)
            ]
            for copy in range(number)
        ]

    def seed(self) -> None:
        """Take over the values of the first worker."""
        for copy in (0, 1):
            for store, live in zip(self._stores[copy], self._live, strict=True):
                store.copy_(live)

    def distrust(self) -> None:
        """The script may have run the model outside of a unit: `load` brings back what such a run changes silently."""
        self._dirty = [dirty or silent for dirty, silent in zip(self._dirty, self._silent, strict=True)]
        for index, (module, key) in enumerate(self._homes):
            if module._buffers[key] is not self._live[index]:
                module._buffers[key], self._dirty[index] = self._live[index], True

    def load(self, step: int, *, everything: bool = False) -> None:
        """Make the live buffers those of version `step`: at a unit's start, or all of them on joining."""
        base = self._stores[step % 2]
        for index, live in enumerate(self._live):
            if everything or self._dirty[index] or live._version != self._versions[index]:
                self._show(index, base[index], step)

    def settle(self) -> None:
        """Take over tensors that modules have put in place of the old ones."""
        for index, live in enumerate(self._live):
            module, key = self._homes[index]
            now = module._buffers[key]
            if now is not live:
                _copy_over(live, now, self._names[index])
                module._buffers[key] = live

    def copies(self) -> list[Tensor]:
        """The live buffers as they are now."""
        return [live.detach().clone() for live in self._live]

    def live(self) -> list[tuple[str, Tensor]]:
        """Each buffer's name and tensor, as a unit has left it."""
        self.settle()
        return list(zip(self._names, self._live, strict=True))

    def put(self, values: Sequence[Tensor]) -> None:
        """Make the live buffers these, of no version; the next `load` brings back what is published."""
        with torch.no_grad():
            for live, value in zip(self._live, values, strict=True):
                live.copy_(value)

    def _show(self, index: int, value: Tensor, version: int) -> None:
        live = self._live[index]
        with torch.no_grad():
            live.copy_(value)
        self._versions[index], self._dirty[index], self._shown[index] = live._version, False, version

    def record(self, lane: int, step: int, version: int | None = None) -> None:
        """Put what the unit left in the buffers into the lane's record. It began with those of `version`."""
        began = self._stores[(step if version is None else version) % 2]
        at = self._record(lane, step)
        self.settle()
        for index, live in enumerate(self._live):
            changed = live._version != self._versions[index]
            if not changed and self._silent[index]:
                changed = not torch.equal(live, began[index])
            self._changed[at * self._count + index] = 1 if changed else 0
            if changed:
                self._records[at][index].copy_(live)
                self._dirty[index] = True

    def merge(
        self, step: int, lanes: Sequence[int], weights: dict[int, int], steps: dict[int, int] | None = None
    ) -> None:
        """Merge the lanes' records into version `step + 1`. Done by one worker; doing it twice is harmless.

        `steps` says of which step each lane's record is, where they may differ; whole numbers then may, too.
        """
        old, new = self._stores[step % 2], self._stores[(step + 1) % 2]
        records = {lane: self._record(lane, step if steps is None else steps[lane]) for lane in lanes}
        for index in range(self._count):
            values = self._values(index, records, old[index])
            if not values:
                if self._newest[index] == step:  # else the two copies are the same already
                    new[index].copy_(old[index])
                continue
            if steps is not None and not old[index].is_floating_point():
                new[index].copy_(torch.stack(list(values.values())).amax(0))  # a count: the one that is furthest on
            else:
                new[index].copy_(self._merged(index, values, weights))
            self._newest[index] = step + 1

    def preview(self, step: int, lanes: Sequence[int], weights: dict[int, int]) -> None:
        """Show what the lanes' records of `step` come to, before that is a version: as `merge` will make it."""
        old = self._stores[step % 2]
        records = {lane: self._record(lane, step) for lane in lanes}
        for index, live in enumerate(self._live):
            values = self._values(index, records, old[index])
            if values or self._dirty[index] or live._version != self._versions[index]:
                self._show(index, self._merged(index, values, weights) if values else old[index], step)
                self._dirty[index] = bool(values)  # of no version yet

    def advance(self, step: int) -> None:
        """Step `step` is complete: show its merged buffers where it changed them.

        The lanes' flags cannot be asked any more: who is faster may have written those of the next step.
        """
        base = self._stores[(step + 1) % 2]
        for index in range(self._count):
            if self._dirty[index] or self._newest[index] > self._shown[index]:
                self._show(index, base[index], step + 1)

    def _values(self, index: int, records: dict[int, int], old: Tensor) -> dict[int, Tensor]:
        """Lane -> what its unit left in a buffer; empty where no unit touched it."""
        touched = {lane for lane, record in records.items() if self._changed[record * self._count + index]}
        return {n: self._records[at][index] if n in touched else old for n, at in records.items()} if touched else {}

    def _record(self, lane: int, step: int) -> int:
        """The lane's record for `step`: where there are several hosts, a faster one may be a step ahead."""
        return step % 2 * self._num_lanes + lane

    def _merged(self, index: int, values: dict[int, Tensor], weights: dict[int, int]) -> Tensor:
        first = values[min(values)]
        if all(torch.equal(first, value) for value in values.values()):
            return first
        if not (first.is_floating_point() and self._averaged[index]):
            module, key = self._homes[index]
            kind, name = type(module).__name__, self._names[index]
            averaged = f'; a statistic that may be averaged is named in the class: averaged_buffers = ("{key}",)'
            raise NotExact(
                f"buffer {name} ({first.dtype}, of a {kind}) ended with different values in different lanes",
                "A forward pass sees one lane's samples: write what comes of the whole batch in the turn, after the "
                f"inner loop, to an object that is kept (run.keep){averaged if first.is_floating_point() else ''}.",
            )
        even = len({weights[lane] for lane in values}) == 1
        leaves = {lane: value if even else value * weights[lane] for lane, value in values.items()}
        total = reference_sum(leaves, self._num_lanes, torch.add)
        return total / (len(values) if even else sum(weights[lane] for lane in values))


def _homes(models: Sequence[nn.Module], buffers: Sequence[Tensor]) -> list[tuple[nn.Module, str]]:
    where: dict[int, tuple[nn.Module, str]] = {}
    for model in models:
        for module in model.modules():
            for key, buffer in module._buffers.items():
                if buffer is not None:
                    where.setdefault(id(buffer), (module, key))
    return [where[id(buffer)] for buffer in buffers]


def _copy_over(live: Tensor, now: Tensor | None, name: str) -> None:
    if now is None or now.shape != live.shape or now.dtype != live.dtype:
        shape = None if now is None else (tuple(now.shape), now.dtype)
        raise NotExact(
            f"buffer {name} changed from {(tuple(live.shape), live.dtype)} to {shape} during a unit",
            "Keep the shape and type of registered buffers.",
        )
    with torch.no_grad():
        live.copy_(now)
