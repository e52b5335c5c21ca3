"""An optimizer that was not prepared may be stepped outside of loops, and in them only by us."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn, optim

from holdfast.errors import NotExact
from tests.unit.train.problems import loader_of, loss_of, net, points


def test_it_is_refused_by_name_in_a_turn(join) -> None:
    run = join()
    model, other = net(), nn.Linear(2, 2)
    stray = optim.AdamW(other.parameters())
    model, optimizer, loader = run.prepare(model, optim.SGD(model.parameters(), lr=0.1), loader_of(points()))
    stray.step()  # before a loop it is the script's own
    with pytest.raises(NotExact) as told:
        for step in run.steps(loader):
            for batch in step:
                loss_of(model, batch).backward()
            if step.number == 1:
                stray.step()
            optimizer.step()
            optimizer.zero_grad()
    assert str(told.value) == (
        "This cannot be kept exact: the optimizer stray (AdamW) over 2 parameters was stepped in step 1 and was not "
        "handed to run.prepare(...), so each worker would step it by itself. Put its parameters into groups of the "
        "prepared optimizer, and their modules into run.prepare(...)."
    )


def test_it_is_refused_without_a_name_and_alone_in_a_plain_loop_it_is_the_scripts_own_business(join) -> None:
    run = join()
    model = net()
    held = [optim.SGD([nn.Parameter(nn.Linear(1, 1).weight.detach())], lr=0.1)]
    model, _, loader = run.prepare(model, optim.SGD(model.parameters(), lr=0.1), loader_of(points()))
    for batch in loader:
        loss_of(model, batch).backward()
        held[0].step()
        model.zero_grad()
    with pytest.raises(NotExact, match=r"exact: an optimizer \(SGD\) over 1 parameter was stepped in step 0 and"):
        for step in run.steps(loader):
            for batch in step:
                loss_of(model, batch).backward()
            held[0].step()


@pytest.mark.parametrize("make", [optim.SGD, optim.Adam, optim.Adagrad])
def test_the_prepared_one_and_those_after_the_loop_are_not(join, make: Any) -> None:
    run = join()
    model, other = net(), nn.Linear(2, 2)
    stray = optim.SGD(other.parameters(), lr=0.1)
    model, optimizer, loader = run.prepare(model, make(model.parameters(), lr=0.1), loader_of(points()))
    schedule = optim.lr_scheduler.StepLR(stray, 1)
    for step in run.steps(loader):
        for batch in step:
            loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    stray.step()
    schedule.step()
    assert run.step == len(loader)
    run.close()
    stray.step()


def test_a_prepared_one_whose_class_calls_the_step_that_it_extends_is_not(join) -> None:
    class Mine(optim.SGD):
        def step(self, closure: None = None) -> None:
            super().step(closure)

    run, model = join(lanes=2), net()
    model, optimizer, loader = run.prepare(model, Mine(model.parameters(), lr=0.1), loader_of(points()))
    for step in run.steps(loader):
        for batch in step:
            loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert run.step == len(loader)
