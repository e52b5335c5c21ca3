"""A worker that is late sees merged buffers, although a faster one has begun to record the next step's."""

from __future__ import annotations

import torch
from torch import nn

from holdfast.core.sync.modes import EXACT
from holdfast.dataplane.memory.arena import Arena
from holdfast.dataplane.memory.sections import lay_out, measure
from holdfast.dataplane.memory.space import Space
from holdfast.dataplane.reduce.buffers import Buffers


class Sometimes(nn.Module):
    averaged_buffers = ("level",)

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.register_buffer("level", torch.zeros(3))


def test_a_buffer_changed_in_one_step_and_not_in_the_next() -> None:
    models = [Sometimes(), Sometimes()]
    spaces = [Space([model], torch.optim.SGD(model.parameters(), lr=0.1)) for model in models]
    sections = lay_out(measure(spaces[0], spaces[0].room(2), 4, state={}, undo=0), EXACT)
    arena = Arena(sections)
    fast, late = (Buffers([model], space, arena, 2) for model, space in zip(models, spaces, strict=True))
    fast.seed()
    models[0].level.add_(1.0)
    fast.record(0, 0)
    late.record(1, 0)
    fast.merge(0, (0, 1), {0: 4, 1: 4})
    fast.advance(0)
    fast.load(1)
    fast.record(0, 1)  # the fast one's unit of step 1 leaves the buffer alone, before the late one has advanced
    late.advance(0)
    assert torch.equal(models[0].level, torch.full((3,), 0.5))
    assert torch.equal(models[1].level, models[0].level)
