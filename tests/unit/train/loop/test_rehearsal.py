"""A turn of which nothing counts, as a late worker takes it of a loop that is over."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import nn, optim

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


def normed() -> nn.Module:
    model = net()
    return nn.Sequential(model[0], nn.BatchNorm1d(8), nn.Dropout(0.2), *model[1:])


@pytest.mark.parametrize("of_a_function", [False, True])
def test_a_batch_in_place_of_an_empty_inner_loop_counts_for_nothing(
    join, of_a_function: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a server has it: it drives no lane. Here there is nobody else, so the units follow."""
    found = []
    for drives in (True, False):
        seed_everything(0)
        run = join(lanes=3, seed=0)
        uncounted, told = list[int](), list[Any]()
        model = normed()
        model, optimizer, loader = run.prepare(model, optim.SGD(model.parameters(), lr=0.05), loader_of(points()))

        def unit(batch: Any, number: int, *, run=run, model=model, uncounted=uncounted) -> torch.Tensor:
            if run.unit is None:
                uncounted.append(number)
            loss = loss_of(model, batch)
            loss.backward()
            return loss

        def units(step: Any, unit=unit) -> torch.Tensor:
            for batch in step:
                loss = unit(batch, step.number)
            return loss

        for _ in run.epochs(2):
            for step in run.steps(loader):
                if not drives:
                    monkeypatch.setattr(run._training.bound.member, "driven", list)
                if of_a_function:
                    loss = units(step)
                else:
                    for batch in step:
                        loss = unit(batch, step.number)
                told.append([loss.item(), step.loss, *(p.grad.sum().item() for p in model.parameters())])
                told.append([*(b.sum().item() for b in model.buffers()), torch.rand(1).item()])
                optimizer.step()
                optimizer.zero_grad()
        assert uncounted == ([] if drives else list(range(8)) if of_a_function else [0, 4])
        found.append((told, run.result()["samples"], run.weights_sha256()))
        run.close()
    assert found[0] == found[1]


def test_each_phase_of_a_turn_has_its_own(join, monkeypatch: pytest.MonkeyPatch) -> None:
    run = join(lanes=2)
    one, other = net(), net()
    first, second = optim.SGD(one.parameters(), lr=0.05), optim.SGD(other.parameters(), lr=0.05)
    one, other, first, second, loader = run.prepare(one, other, first, second, loader_of(points()))
    before = []
    for step in run.steps(loader):
        monkeypatch.setattr(run._training.bound.member, "driven", list)
        for phase, (model, optimizer) in enumerate(((one, first), (other, second))):
            for batch in step:
                if run.unit is None:
                    before.append((step.number, phase))
                loss_of(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert before == [(0, 0), (0, 1)]
