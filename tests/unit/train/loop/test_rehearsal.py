"""A turn of which nothing counts, as a late worker takes it of a loop that is over."""

from __future__ import annotations

import random

import pytest
import torch
from torch import optim

from holdfast.data.randomness import seed_everything
from holdfast.errors import UsageError
from holdfast.train.loop.rehearsal import Rehearsal
from holdfast.train.loop.step_batches import StepBatches
from tests.unit.train.problems import loader_of, loss_of, net, points


def test_an_evaluation_may_follow_the_optimizers_step_in_a_plain_loop(join) -> None:
    run = join(lanes=3)
    model = net()
    model, optimizer, loader = run.prepare(model, optim.SGD(model.parameters(), lr=0.05), loader_of(points()))
    for batch in loader:
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    training = run._training
    batches = StepBatches(training.loaders, 1, training.seed)
    rehearsal = Rehearsal(training, batches, 0)
    batch = next(given := iter(rehearsal))
    with pytest.raises(UsageError, match="was called inside of the loop over the units"):
        rehearsal.measured(lambda row: (1, {"loss": 1.0}))
    rehearsal.end("optimizer.step()")
    assert rehearsal.measured(lambda row: (1, {"loss": 2.0})) == {"loss": 2.0}, "the batch is through"
    assert len(batch[0]) and next(given, None) is None


def test_what_is_drawn_after_a_plain_loop_follows_from_its_place_alone(join) -> None:
    """A late worker has made none of the evaluations in a loop that is over."""
    drawn = []
    for evaluates in (True, False):
        seed_everything(0)
        run = join(lanes=2)
        model = net()
        model, optimizer, loader = run.prepare(model, optim.SGD(model.parameters(), lr=0.05), loader_of(points()))
        for batch in loader:
            loss_of(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            if evaluates:
                run.evaluate(lambda *batch, of=model: {"loss": loss_of(of, batch)}, loader_of(points()))
        drawn.append((torch.rand(1).item(), random.random()))
        run.close()
    assert drawn[0] == drawn[1]
