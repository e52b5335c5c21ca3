"""The gradient of a whole step as the script sees it: `.grad` between the units of a step and its end (`run.steps`).

It is the section of sums, mapped a second time, copied on write. So reading it moves no byte, and what the script does
to it (clipping, masks, noise, also through `.data`) stays in this process. Every worker's script does the same to the
same bits; each owner takes its slices from its own view. A gradient that the script has replaced is copied in.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from holdfast.core.slices import Slice
from holdfast.dataplane.memory.arena import Arena
from holdfast.dataplane.memory.space import Space, typed
from holdfast.errors import NotExact

__all__ = ["StepGradient"]


class StepGradient:
    """One worker's view of the summed gradient."""

    def __init__(self, space: Space, arena: Arena) -> None:
        self._space = space
        self._sections = {name: arena.copied_on_write(f"sum/{name}") for name in space.layout.totals}
        self._flats = {
            name: typed(self._sections[name].memory, space.dtypes[name])[:total]
            for name, total in space.layout.totals.items()
        }
        # Each with a count of writes of its own, as gradients have.
        self._views = [view.data for view in space.views(self._flats)]

    def show(self, absent: Collection[int]) -> None:
        """Let `.grad` be the sums that are in the arena now; None for parameters that got no gradient."""
        for section in self._sections.values():
            section.renew()
        for index, (parameter, view) in enumerate(zip(self._space.trainable, self._views, strict=True)):
            parameter.grad = None if index in absent else view

    def take(self) -> frozenset[int]:
        """What the script has made of it counts from now on. Returns the parameters that have no gradient."""
        absent = set()
        for index, (parameter, view) in enumerate(zip(self._space.trainable, self._views, strict=True)):
            gradient = parameter.grad
            if gradient is None:
                absent.add(index)
            elif gradient is not view:
                if gradient.layout != torch.strided or gradient.shape != view.shape:
                    raise NotExact(
                        f"the gradient of {self._space.names[index]} was replaced by one of shape "
                        f"{tuple(gradient.shape)}, {gradient.layout}",
                        "Give a gradient the shape of its parameter, dense.",
                    )
                view.copy_(gradient)
        return frozenset(absent)

    def of(self, piece: Slice) -> Tensor:
        """The gradient of a slice, as this worker's script has left it."""
        return self._flats[piece.dtype][piece.start : piece.stop]
